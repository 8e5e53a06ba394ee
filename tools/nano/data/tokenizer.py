#!/usr/bin/env python3
"""Trains the tokenizer of MiMo-Nano and writes its files.

    python3 tools/nano/data/tokenizer.py --corpus .nano/corpus --out models/nano

Ids 0..4031 are the byte-level BPE, 4032..4063 the family's 32 added tokens in their published order.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BASE = 4032
PAD = BASE  # <|endoftext|>
END = BASE + 2  # <|im_end|>
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# (token, special), in the order of the published vocabulary.
ADDED: list[tuple[str, bool]] = [
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
    ("<|audio_pad|>", True),
    ("<|mimo_video_start|>", True),
    ("<|mimo_video_end|>", True),
    ("<|mimo_audio_eod|>", True),
    ("<|mimo_audio_start|>", True),
    ("<|mimo_audio_end|>", True),
]
STOP = ("<|endoftext|>", "<|im_end|>", "<|mimo_audio_eod|>")
# Characters of training text by kind: what the model writes most gets the merges, prose the common words.
CHARACTERS = {
    "word": 3_000_000,
    "arithmetic": 400_000,
    "tools": 1_500_000,
    "recall": 700_000,
    "json": 500_000,
    "dialogue": 800_000,
    "prose": 2_500_000,
    "gsm": 600_000,
}


def added_id(token: str) -> int:
    return BASE + [name for name, _ in ADDED].index(token)


def train(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False, use_regex=False, add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BASE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != BASE:
        raise SystemExit(
            f"the vocabulary has {tokenizer.get_vocab_size()} entries, expected {BASE}: more text is needed"
        )
    for token, special in ADDED:
        added = AddedToken(token, normalized=False, special=special)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])
    for index, (token, _) in enumerate(ADDED):
        assert tokenizer.token_to_id(token) == BASE + index
    return tokenizer


def write_files(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": 40960,
        "additional_special_tokens": [token for token, special in ADDED if special and token not in STOP[:2]],
    }
    generation = {
        "bos_token_id": added_id("<|endoftext|>"),
        "eos_token_id": [added_id(token) for token in STOP],
        "pad_token_id": PAD,
        "do_sample": False,
        "temperature": 1.0,
        "top_p": 0.95,
        "max_new_tokens": 2048,
    }
    for name, value in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from data.chat import render
    from data.mix import Mix
    from data.names import held_out_words

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    mix = Mix.load(options.corpus)

    # A test name that is one token would be a token the model never learned to spell; as parts it can be copied.
    hidden = re.compile(rf"\b({'|'.join(sorted(held_out_words()))})\b")

    def texts() -> Iterator[str]:
        rng = random.Random(0)
        for kind, characters in CHARACTERS.items():
            made = 0
            while made < characters:
                text = "".join(piece for piece, _ in render(mix.make(rng, kind)))
                made += len(text)
                # Added tokens never reach the BPE, so they are no training text.
                for token, _ in ADDED:
                    text = text.replace(token, "\n")
                yield hidden.sub("", text)

    tokenizer = train(texts())
    write_files(tokenizer, options.out)
    print(f"{options.out}: {tokenizer.get_vocab_size()} ids")


if __name__ == "__main__":
    main()
