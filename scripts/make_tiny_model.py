#!/usr/bin/env python3
"""Make tests/models/tiny: a small model folder that ships with the repository, so that tests and the quick
start need no download. Its tokenizer has the layout of Qwen's (byte-level BPE, NFC, the same splitting rule and
the same special tokens) with a vocabulary of its own, trained on the text below.

usage: make_tiny_model.py [DIR]        needs PyPI tokenizers 0.22; the result is the same bytes each time
"""
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 1200

# How Qwen's tokenizers cut text before merging: contractions, words, single digits, punctuation, line ends, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]
ADDED = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]

TEXT = """
A training run waits for data more often than for anything else. The pictures lie in a bucket, the questions in a
file of lines, and each step asks for a few hundred of both. Somebody has to fetch them, decode them, bring them to
the right size, cut them into patches, turn the words into numbers and hand all of that to the graphics card before
the card has nothing left to do. If the work is done again in every epoch, it is paid for again in every epoch.

What is in this picture? A cup of coffee stands on a wooden table. There are two cats in the picture: one is grey,
the other one is brown and white. The first image shows a rocket on the launch pad at night; the second image shows
an astronaut in an orange suit, who smiles at the camera. How many people are there? There are three people. Which
one is larger, the left or the right? The left one. Is it day or night? It is night, because the sky is dark. What
colour is the car? The car is red. Where is the dog? The dog is under the chair. Describe the image in one short
sentence. Compare the first photo with the second photo. Read the text on the sign. The sign says "open from nine to
five". What is the answer? The answer is 42. Why? Because the street is wet and the people carry umbrellas.

Count carefully. Be brief. Answer in one word: yes or no. Yes. No. I do not know. Thank you. You are welcome. You are
a helpful assistant. The assistant answers the user. The user asks the assistant. A system message comes first, then
the user speaks, then the assistant speaks. I can't say that; it's too small, we're sure, they've left, I'm
here, she'll come, he'd go.

A table has rows and columns. A square has four sides, a triangle three, a circle none. The map shows a river, a
bridge, two roads and a mountain. Trees, grass, water, sand, snow and stone. Black, white, grey, red, green, blue,
yellow, orange, brown, purple, pink. Man, woman, child, boy, girl, cat, dog, horse, bird, fish, cow, sheep. House,
window, door, wall, roof, kitchen, street, bus, train, bicycle, plane, boat, ship. Above, below, behind, before,
between, beside, inside, outside, near, far, left, right, top, bottom, middle, corner, centre, front, back.

def area(width, height):
    \"\"\"The area of a rectangle.\"\"\"
    return width * height


for row in range(10):
    print(row, area(row, 2) + 1)

fn main() {
    let total: usize = (0..10).map(|x| x * x).sum();
    println!("{total}");
}

{"name": "area", "description": "the area of a rectangle", "parameters": {"type": "object", "properties": {}}}
{"type": "function", "function": {"name": "look", "arguments": {"left": 0, "top": 1.5, "found": true, "what": null}}}
<table><tr><td>one</td><td>two</td></tr></table>

Das Bild zeigt eine Katze mit gr\u00fcnen Augen. Was zeigt das Bild? Die Stra\u00dfe ist na\u00df, \u00fcber der Br\u00fccke steht der Mond.
Que montre cette image ? Une tasse de caf\u00e9 est pos\u00e9e sur la table, pr\u00e8s de la fen\u00eatre. C'est tr\u00e8s joli, \u00e0 c\u00f4t\u00e9.
\u00bfQu\u00e9 hay en la imagen? Hay un ni\u00f1o y una ni\u00f1a, y ma\u00f1ana llover\u00e1.
\u8fd9\u662f\u4ec0\u4e48\u52a8\u7269\uff1f\u8fd9\u662f\u4e00\u53ea\u732b\u3002\u8fd9\u662f\u4e00\u53ea\u72d7\u3002\u56fe\u7247\u91cc\u6709\u4ec0\u4e48\uff1f\u56fe\u7247\u91cc\u6709\u4e00\u8f86\u8f66\u3002
\u3053\u308c\u306f\u4f55\u3067\u3059\u304b\u3002\u3053\u308c\u306f\u732b\u3067\u3059\u3002 \uc774\uac83\uc740 \uace0\uc591\uc774\uc785\ub2c8\ub2e4. \u042d\u0442\u043e \u043a\u043e\u0448\u043a\u0430. \u042d\u0442\u043e \u0441\u043e\u0431\u0430\u043a\u0430.


It is the end.



It is the end, again.
"""

# Role names become one token each, as in Qwen's vocabulary.
ROLES = "user\nassistant\nsystem\ntool\n" * 20


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=2, show_progress=False, special_tokens=[],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([TEXT, ROLES], trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ADDED])
    for word in ("assistant", "user", "system", "\u010a", "\u010a\u010a"):
        assert tokenizer.token_to_id(word) is not None, word
    return tokenizer


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "tests/models/tiny")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    ids = {t: tokenizer.token_to_id(t) for t in SPECIAL}
    preprocessor = {
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor",
    }
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
    }
    for name, value in (("preprocessor_config.json", preprocessor), ("config.json", config)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    main()
