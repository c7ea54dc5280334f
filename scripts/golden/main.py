"""Make tests/golden again: `inputs` writes the pictures, `expect` asks the installed transformers.

Called by scripts/make_golden, once for each generation of transformers. Formats: tests/golden/README.md.
"""

import argparse
import hashlib
import importlib.metadata
import json
from pathlib import Path

PACKAGES = ["transformers", "tokenizers", "torch", "torchvision", "pillow", "numpy", "qwen-vl-utils"]
GEOMETRIES = {"hf": ("tv", "path"), "hf_ft": ("tv_ft", "path"), "qwenvl": ("tv", "qwenvl")}


def sha(data):
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def fault(error, *hidden):
    """A short text of an expected failure, without paths of this machine."""
    text = str(error).split("\n")[0]
    for old, new in hidden:
        text = text.replace(old, new)
    return type(error).__name__ + ": " + text[:160]


def write_lines(path, rows):
    """JSON lines, letters kept."""
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")


def image_rows(oracle, out):
    """One row for each picture and profile; resized pixels of tv_path (hf4) are kept as PNG too."""
    import numpy as np
    from PIL import Image

    import oracle as lib

    for path in sorted((out / "images").iterdir()):
        for profile in lib.PROFILES:
            row = {"image": "images/" + path.name, "profile": profile}
            try:
                values, grid = oracle.picture(path, profile)
            except Exception as error:  # an expected failure is part of the golden data
                row["error"] = fault(error, (str(out), ""), (str(path), path.name))
                yield row
                continue
            pixels = None
            try:
                pixels = lib.unpatchify(values, grid, profile)
            except AssertionError as error:
                row["note"] = str(error)
            row.update(grid_thw=grid, pixel_values_sha256=sha(values.astype("<f4").tobytes()),
                       pixel_values_mean=float(values.astype(np.float64).mean()))
            if pixels is not None:
                row["resized_u8_sha256"] = sha(pixels.tobytes())
                if profile == "tv_path" and lib.NAME == "hf4":
                    name = path.name.replace(".", "_") + ".png"
                    Image.fromarray(pixels).save(out / "expected" / "resized" / name, optimize=True)
            yield row


def expectation(oracle, out, messages, geometry):
    """What the library makes of one conversation; checked against its one-call path."""
    import oracle as lib
    import records

    name, how = GEOMETRIES[geometry]
    process = oracle.processors[name]
    links = [p["image"] for m in messages if not isinstance(m["content"], str) for p in m["content"] if p["type"] == "image"]
    loaded, options = [], {}
    for link in links:
        picture, options = lib.hand_over(out / link, how)
        loaded.append(picture)
    text = process.apply_chat_template(messages, tokenize=False)
    found = process(text=[text], images=loaded or None, return_tensors="pt", **options)
    ids = found["input_ids"][0].tolist()
    grids = found["image_grid_thw"].tolist() if "image_grid_thw" in found else []
    positions, delta = oracle.positions(ids, grids)
    row = {"canonical": messages, "text": text, "images": links, "image_grid_thw": grids, "n_tokens": len(ids),
           "input_ids": ids, "loss_mask_runs": records.runs(records.mask_assistant(ids)),
           "position_ids": positions, "mrope_delta": delta}
    quirk = records.runs(records.mask_qwen_finetune(ids))
    if quirk != row["loss_mask_runs"]:
        row["qwen_finetune_mask_runs"] = quirk
    if geometry == "hf":
        one_call(oracle, process, out, messages, found, row)
    if grids:
        row["pixel_values_sha256"] = sha(found["pixel_values"].numpy().astype("<f4").tobytes())
        row["pixel_values_shape"] = list(found["pixel_values"].shape)
    return row


def one_call(oracle, process, out, messages, found, row):
    """The processor's one-call path must agree; from generation 5 on, also TRL's own mask of answers."""
    import oracle as lib
    import records

    # transformers 4.57 accepts only list content here, so strings are wrapped.
    full = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}] if isinstance(m["content"], str) else
             [dict(p, image=str(out / p["image"])) if p["type"] == "image" else p for p in m["content"]]} for m in messages]
    one = process.apply_chat_template([full], tokenize=True, return_dict=True, return_tensors="pt")
    assert one["input_ids"][0].tolist() == row["input_ids"]
    assert not row["image_grid_thw"] or (one["pixel_values"] == found["pixel_values"]).all()
    if lib.MAJOR < 5:
        return
    trained = process.apply_chat_template([full], tokenize=True, return_dict=True, return_tensors="pt",
                                          chat_template=oracle.training_template, return_assistant_tokens_mask=True)
    if trained["input_ids"][0].tolist() != row["input_ids"]:
        row["trl_note"] = "training template tokenises differently"
    mask = records.runs(trained["assistant_masks"][0].tolist())
    if mask != row["loss_mask_runs"]:
        row["trl_assistant_mask_runs"] = mask


def record_rows(oracle, out):
    """One row for each record, text variant and geometry; equal rows refer to the first of them."""
    import records

    for path in sorted((out / "data").glob("*.jsonl")):
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            shape = path.stem if path.stem != "bad" else ("llava" if "conversations" in record else "vqa")
            tagged = shape in ("llava", "swift", "sharegpt")
            seen = {}
            for variant in ("strip", "inplace") if tagged else ("plain",):
                for geometry in GEOMETRIES:
                    head = {"id": record["id"], "file": path.name, "format": shape, "text_variant": variant, "geometry": geometry}
                    try:
                        body = expectation(oracle, out, records.canonical(shape, record, variant == "strip"), geometry)
                    except Exception as error:
                        body = {"error": fault(error, (str(out) + "/", ""))}
                    key = json.dumps(body, sort_keys=True)
                    if key in seen:
                        body = {"same_as": seen[key]}
                    else:
                        seen[key] = [variant, geometry]
                    yield {**head, **body}


def expect(out, model, training_template):
    """Write expected/<oracle>/."""
    import oracle as lib

    tokenizer, template = model / "tokenizer.json", (model / "chat_template.jinja").read_text(encoding="utf-8")
    oracle = lib.Oracle(tokenizer, template, training_template.read_text(encoding="utf-8"))
    folder = out / "expected" / lib.NAME
    folder.mkdir(parents=True, exist_ok=True)
    (out / "expected" / "resized").mkdir(exist_ok=True)
    manifest = {"oracle": lib.NAME, "versions": {p: importlib.metadata.version(p) for p in PACKAGES},
                "tokenizer_sha256": sha(tokenizer.read_bytes()), "chat_template_sha256": sha(template.encode()),
                "hf_size": lib.HF_SIZE, "ft_size": lib.FT_SIZE, "common": lib.COMMON,
                "profiles": {k: "image processor '%s', image handed over as '%s'" % v for k, v in lib.PROFILES.items()}}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    write_lines(folder / "images.jsonl", image_rows(oracle, out))
    write_lines(folder / "records.jsonl", record_rows(oracle, out))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=["inputs", "expect"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="folder with tokenizer.json and chat_template.jinja")
    a = parser.parse_args()
    import pictures

    if a.stage == "inputs":
        (a.out / "images").mkdir(parents=True, exist_ok=True)
        for name, data in pictures.golden().items():
            (a.out / "images" / name).write_bytes(data)
        return
    training = pictures.package_dir("trl") / "chat_templates" / "qwen3_vl_training.jinja"
    expect(a.out.resolve(), a.model, training)


if __name__ == "__main__":
    main()
