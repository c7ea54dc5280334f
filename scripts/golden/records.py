"""Record shapes to canonical messages, and the label masks, as the peers' own code defines them."""

IM_START, IM_END, ASSISTANT = 151644, 151645, 77091
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


class BadRecord(ValueError):
    """The record contradicts itself."""


def as_list(value):
    """No, one or many links as a list."""
    return [] if value is None else ([value] if isinstance(value, str) else list(value))


def split_tags(text, links, strip):
    """`a <image> b` as content parts; takes from `links`. strip: trim each text piece and drop blank ones."""
    pieces, content = text.split("<image>"), []
    for i, piece in enumerate(pieces):
        if strip:
            piece = piece.strip()
        if piece:
            content.append({"type": "text", "text": piece})
        if i + 1 < len(pieces):
            if not links:
                raise BadRecord("more <image> tags than images")
            content.append({"type": "image", "image": links.pop(0)})
    return content


def from_messages(record):
    """Messages already; only image_url parts are rewritten."""
    out = []
    for m in record["messages"]:
        content = m["content"]
        if not isinstance(content, str):
            content = [{"type": "image", "image": p["image_url"]["url"]} if p["type"] == "image_url" else p for p in content]
        out.append({"role": m["role"], "content": content})
    return out


def canonical(shape, record, strip):
    """Messages of a record. strip: True cuts tags as Qwen's finetune code does, False as ms-swift and LLaMA-Factory do."""
    if shape == "messages":
        return from_messages(record)
    if shape == "vqa":
        content = [{"type": "image", "image": link} for link in as_list(record.get("image"))]
        content.append({"type": "text", "text": record["question"]})
        return [{"role": "user", "content": content}, {"role": "assistant", "content": record["answer"]}]
    if shape == "swift":
        links, turns = as_list(record.get("images")), [dict(m) for m in record["messages"]]
        missing = len(links) - sum(t["content"].count("<image>") for t in turns)
        if missing > 0:
            first = next(t for t in turns if t["role"] != "system")
            first["content"] = "<image>" * missing + first["content"]
    else:
        links = as_list(record.get("image" if shape == "llava" else "images"))
        turns = [{"role": ROLES[t["from"]], "content": t["value"]} for t in record["conversations"]]
        if record.get("system"):
            turns.insert(0, {"role": "system", "content": record["system"]})
    out = [{"role": t["role"], "content": split_tags(t["content"], links, strip) if t["role"] == "user" else t["content"]}
           for t in turns]
    if links:
        raise BadRecord("%d image(s) without an <image> tag" % len(links))
    return out


def kept(ids, starts, skip):
    """Mask of what follows each position where `starts` holds: from `skip` on to the end token and the newline after it."""
    mask, i = [0] * len(ids), 0
    while i < len(ids):
        if starts(i):
            j = i + skip
            while j < len(ids) and ids[j] != IM_END:
                j += 1
            if j < len(ids):
                for k in range(i + skip, min(j + 2, len(ids))):
                    mask[k] = 1
                i = j
        i += 1
    return mask


def mask_assistant(ids):
    """Answers after a real assistant header."""
    return kept(ids, lambda i: i + 1 < len(ids) and ids[i] == IM_START and ids[i + 1] == ASSISTANT, 3)


def mask_qwen_finetune(ids):
    """The official rule to the letter: any token 77091 starts an answer two tokens later."""
    return kept(ids, lambda i: ids[i] == ASSISTANT, 2)


def runs(mask):
    """[0,1,1,0] -> [[1,3]]: half-open runs of ones."""
    out, start = [], None
    for i, value in enumerate(list(mask) + [0]):
        if value and start is None:
            start = i
        elif not value and start is not None:
            out.append([start, i])
            start = None
    return out
