"""What the guard's cases work on: records with made-up chats, pictures that ship with the repository under many names.

The same bytes on every machine: words and lengths come from a generator of its own, not from Python's.
"""

import base64
import json
import shutil
from pathlib import Path

SYLLABLES = ["ba", "cor", "del", "en", "fis", "gra", "hol", "im", "jun", "kap", "lo", "mer", "nat", "or", "pli", "quo", "ras", "sen", "tur",
             "ul", "vex", "wen", "yor", "zin"]
# Words whose texts the hand-written cutting of ASCII leaves to the tokenizers crate.
FOREIGN = ["\u00fcber", "na\u00efve", "\u6570\u636e\u96c6", "\u7f13\u5b58", "\u043a\u044d\u0448", "\u00e9t\u00e9", "\u221e"]


class Dice:
    """A linear congruential generator."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound

    def text(self, words, foreign):
        """So many words: common ones again and again, rare ones once, numbers, marks; foreign ones in `foreign` of 100 places."""
        out = []
        for _ in range(words):
            draw = self.below(100)
            if draw < foreign:
                out.append(FOREIGN[self.below(len(FOREIGN))])
            elif draw < 8:
                out.append(str(self.below(100_000)))
            else:
                # The square of an even draw: few words are most of the text, as in a language.
                number = self.below(90) ** 2 if draw < 80 else self.below(10**6)
                out.append("".join(SYLLABLES[number // 24**at % 24] for at in range(1 + number % 4)))
            if draw % 9 == 0:
                out[-1] += ".,;:!?\n"[self.below(7)]
        return " ".join(out)


def chat(dice, number, picture, words, foreign):
    """One record: two turns of a user and an assistant, after a picture if there is one."""
    def part(role):
        return {"role": role, "content": dice.text(words // 8 if role == "user" else 3 * words // 8, foreign)}

    messages = [part(role) for role in ("user", "assistant", "user", "assistant")]
    if picture:
        messages[0]["content"] = [{"type": "image", "image": picture}, {"type": "text", "text": messages[0]["content"]}]
    return {"id": "record-%d" % number, "messages": messages}


def chats(folder, links, words=160, foreign=0):
    """A folder with a record for each link to a picture; None is a record without one -> that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = Dice(len(links))
    records = [chat(dice, number, link, words, foreign) for number, link in enumerate(links)]
    (folder / "records.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return folder


def inside(pictures):
    """Links that hold the pictures themselves: valgrind knows no openat2, which opens linked files."""
    kinds = {".jpg": "jpeg", ".png": "png", ".webp": "webp"}
    return ["data:image/%s;base64,%s" % (kinds[path.suffix], base64.b64encode(path.read_bytes()).decode()) for path in pictures]


def copied(folder, pictures, copies):
    """Links to so many copies of each picture, each with a name of its own: as many rows in the cache."""
    folder.mkdir(parents=True)
    names = []
    for path in pictures:
        for copy in range(copies):
            names.append("%d-%s" % (copy, path.name))
            shutil.copyfile(path, folder / names[-1])
    return names


def shipped(root):
    """The repository's pictures that are whole, by name."""
    return [path for path in sorted(Path(root, "examples", "sft", "images").iterdir()) if path.name != "cut-off.jpg"]
