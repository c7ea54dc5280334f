#!/usr/bin/env python3
"""Write tests/golden/text.jsonl: conversations with tools, calls and awkward text, and what the real chat template
makes of them in the environment in which Hugging Face renders it (jinja2, sandboxed, json.dumps as tojson). The same of
the template of Qwen2-VL and Qwen2.5-VL, tests/golden/qwen2_5_vl.jinja, to text_qwen2_5_vl.jsonl, with the bytes of each answer.

usage: make_golden_text.py MODEL_DIR     needs PyPI jinja2 3.1; MODEL_DIR as scripts/fetch-model makes it
"""
import json
import random
import sys
from pathlib import Path

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

GOLDEN = Path(__file__).resolve().parent.parent / "tests/golden"
RECORDS = 60
TEXTS = [
    "", "a", " \n x\t", "assistant\n", "<|im_end|>", "{{ x }} {% y %}", "\u00e9 e\u0301 \u2028 \u00a0", "<b>&amp;</b> 'q' \"d\"",
    "</think>\n", "<think>\nhm\n</think>\n\nyes", "None", "back\\slash", "\u7b54\u3048 \U0001F600", "line\r\nline",
]
VALUES = [
    None, True, False, 0, -7, 1.0, 0.1, 1e16, 1e-7, 2**64 - 1, "text", "", "\u00e9 \"\n\\ <&>'\u007f\u0001", [], {}, [1, [2.5]],
    {"z": 1, "a": {"m": None}},
]


def text(rng):
    return "".join(rng.choice(TEXTS) for _ in range(rng.randrange(3)))


def content(rng, images):
    if rng.random() < 0.4:
        return text(rng)
    parts = []
    for _ in range(rng.randrange(4)):
        if images and rng.random() < 0.4:
            parts.append(rng.choice([
                {"type": "image", "image": "a.jpg"}, {"type": "image_url", "image_url": {"url": "b.jpg"}}]))
        else:
            parts.append({"type": "text", "text": text(rng)})
    return parts


def call(rng):
    function = {"name": rng.choice(["look", "f_1"]), "arguments": rng.choice([
        {"a": rng.choice(VALUES), "b": rng.choice(VALUES)}, json.dumps({"a": rng.choice(VALUES)}), {}])}
    return rng.choice([function, {"type": "function", "function": function}])


def record(rng, number):
    messages = []
    for _ in range(rng.randrange(1, 7)):
        role = rng.choice(["system", "user", "user", "tool", "assistant"])
        message = {"role": role, "content": content(rng, role in ("user", "tool"))}
        if role == "assistant" and rng.random() < 0.5:
            message["tool_calls"] = [call(rng) for _ in range(rng.randrange(3))]
        messages.append(message)
    messages.append({"role": "assistant", "content": content(rng, False)})
    made = {"id": number, "messages": messages}
    if rng.random() < 0.4:
        made["tools"] = [{"type": "function", "function": {"name": "look", "parameters": {
            "default": rng.choice(VALUES), "enum": rng.choice(VALUES)}}} for _ in range(rng.randrange(1, 3))]
    return made


def answers(render, messages):
    """Half-open runs of bytes: what each assistant turn says, to its end. The template renders turn after turn."""
    runs = []
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        content = message["content"]
        said = content if isinstance(content, str) else "".join(part["text"] for part in content)
        tail = (said + "<|im_end|>\n").encode()
        before = render(messages[: at + 1]).encode()
        assert before.endswith(b"<|im_start|>assistant\n" + tail)
        runs.append([len(before) - len(tail), len(before)])
    return runs


def write(name, source, with_answers):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(source)
    rng = random.Random(20261129)
    with (GOLDEN / name).open("w", encoding="utf-8", newline="\n") as file:
        for number in range(RECORDS):
            made = record(rng, number)

            def render(messages):
                return template.render(messages=messages, tools=made.get("tools"), add_generation_prompt=False)

            row = {"record": made, "text": render(made["messages"])}
            if with_answers:
                row["answers"] = answers(render, made["messages"])
            file.write(json.dumps(row) + "\n")


def main():
    write("text.jsonl", (Path(sys.argv[1]) / "chat_template.jinja").read_text(), False)
    write("text_qwen2_5_vl.jsonl", (GOLDEN / "qwen2_5_vl.jinja").read_text(), True)


if __name__ == "__main__":
    main()
