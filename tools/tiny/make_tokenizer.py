#!/usr/bin/env python3
"""Trains the tokenizer of the bundled tiny model: models/tiny/tokenizer.json and tokenizer_config.json.

Exactly 1024 ids: 256 bytes, 736 merges (ids 256..991), then MiMo's 32 added tokens as ids 992..1023. Normaliser and
split pattern are those of the released checkpoints. The training text is generated here (seeded), so the result is
reproducible. Needs the PyPI package tokenizers (made with 0.23.3).

    python tools/tiny/make_tokenizer.py models/tiny
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB = 1024
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# (token, special): the order gives the ids 992..1023, as 151643..151674 in the released vocabulary.
ADDED = [
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True), ("<|box_start|>", True), ("<|box_end|>", True), ("<|quad_start|>", True),
    ("<|quad_end|>", True), ("<|vision_start|>", True), ("<|vision_end|>", True), ("<|vision_pad|>", True),
    ("<|image_pad|>", True), ("<|video_pad|>", True), ("<tool_call>", False), ("</tool_call>", False),
    ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False), ("<|fim_pad|>", False),
    ("<|repo_name|>", False), ("<|file_sep|>", False), ("<tool_response>", False), ("</tool_response>", False),
    ("<think>", False), ("</think>", False), ("<|audio_pad|>", True), ("<|mimo_video_start|>", True),
    ("<|mimo_video_end|>", True), ("<|mimo_audio_eod|>", True), ("<|mimo_audio_start|>", True),
    ("<|mimo_audio_end|>", True),
]

NAMES = "Anna Ben Clara David Emma Felix Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Rosa Sam Tom Zoe".split()
NOUNS = ("apple ball book box bread bridge cake car cat chair cloud coin cup dog door egg fish flower friend game garden "
         "hat hill horse house key lake lamp leaf letter map milk moon mountain music number orange paper park pencil "
         "picture question rain river road room school sea ship shop star stone story street sun table teacher tree "
         "village water window word world year").split()
VERBS = ("asked brought built called carried counted cut drew found gave helped held kept knew left liked looked made "
         "opened painted played put read said saw showed sold started stopped thought told took turned used walked "
         "wanted washed watched went wrote").split()
ADJECTIVES = ("big blue bright clean cold dark deep dry easy fast full good green happy hard heavy high kind large light "
              "little long new old open quiet red round short slow small soft strong sweet tall thin warm white wide "
              "yellow young").split()
PLACES = "in on under near behind into over from with without around after before between through".split()
STARTS = ["Then", "Later", "After that", "One day", "In the morning", "Because of this", "However", "At last", "So",
          "When it was dark", "The next day", "First", "Second", "Finally", "Yes", "No", "Please note", "For example"]
QUESTIONS = ["What is", "Where is", "How many", "Why did", "Who has", "When will", "Can you", "Could you please",
             "Do you know", "Is there", "Are there", "Which of these is"]
KEYS = ["name", "arguments", "type", "function", "description", "parameters", "properties", "string", "number", "city",
        "location", "unit", "celsius", "date", "query", "result", "error", "content", "role", "object", "required"]
CHAT = ["Hello! How can I help you today?", "You are a helpful assistant.", "Let me think about this step by step.",
        "I'm sorry, I don't know that.", "Thank you very much!", "Here is the answer:", "The result is",
        "That's right, and it's also the shortest way.", "We'll see what they've done; you'd better wait.",
        "I can't do this, but I can tell you what I would need.", "The weather in the city is sunny with some wind."]
CODE = ["def {a}({b}):\n    return {b} + {n}\n", "for {b} in range({n}):\n    print({b})\n",
        "if {a} == {n}:\n    {b} = None\nelse:\n    {b} = {a}[0]\n", "const {a} = ({b}) => {b} * {n};\n",
        "int {a}(int {b}) {{ return {b} - {n}; }}\n", "#include <{a}.h>\n", "import {a} as {b}\n"]
OTHER = ["Grüße aus Köln", "Où est la fenêtre ?", "El niño come una manzana.", "Привет, мир!", "Как дела?", "你好，世界。",
         "我是一个助手。", "今天天气很好。", "こんにちは、元気ですか。", "안녕하세요", "नमस्ते दुनिया", "مرحبا بالعالم", "שלום עולם",
         "γειά σου κόσμε", "😀 👍 ❤️ 🎉"]


def sentence(rng):
    noun = lambda: rng.choice([f"the {rng.choice(NOUNS)}", f"a {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}",
                               f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", f"{rng.choice(NOUNS)}s",
                               f"{rng.randint(2, 99)} {rng.choice(NOUNS)}s", rng.choice(NAMES)])
    form = rng.randrange(8)
    if form == 0:
        return f"{rng.choice(NAMES)} {rng.choice(VERBS)} {noun()} {rng.choice(PLACES)} {noun()}."
    if form == 1:
        return f"{rng.choice(STARTS)}, {rng.choice(NAMES)} and {rng.choice(NAMES)} {rng.choice(VERBS)} {noun()}."
    if form == 2:
        return f"{rng.choice(QUESTIONS)} {noun()} {rng.choice(PLACES)} {noun()}?"
    if form == 3:
        return f"\"I {rng.choice(VERBS)} {noun()},\" {rng.choice(NAMES)} said. \"It was {rng.choice(ADJECTIVES)}!\""
    if form == 4:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        return f"{a} + {b} = {a + b}, {a} * {b} = {a * b}, and {max(a, b)} - {min(a, b)} = {abs(a - b)}."
    if form == 5:
        return rng.choice(CHAT)
    if form == 6:
        return f"She has {noun()} which they {rng.choice(VERBS)} {rng.choice(PLACES)} {noun()}, so we were {rng.choice(ADJECTIVES)}."
    return f"There are {noun()} that you will not have seen {rng.choice(PLACES)} this {rng.choice(NOUNS)}."


def document(rng):
    kind = rng.randrange(10)
    if kind < 6:
        return " ".join(sentence(rng) for _ in range(rng.randint(2, 8))) + rng.choice(["\n", "\n\n"])
    if kind == 6:
        fields = {rng.choice(KEYS): rng.choice([rng.choice(NOUNS), rng.randint(0, 999), True, None,
                                                 {rng.choice(KEYS): rng.choice(NAMES)}]) for _ in range(rng.randint(1, 4))}
        return json.dumps({"name": "get_" + rng.choice(NOUNS), "arguments": fields}) + "\n"
    if kind == 7:
        return rng.choice(CODE).format(a=rng.choice(NOUNS), b=rng.choice("xyzijk"), n=rng.randint(0, 100))
    if kind == 8:
        return "\n".join(f"{i + 1}. {sentence(rng)}" for i in range(rng.randint(2, 4))) + "\n\n"
    return rng.choice(OTHER) + "\n"


def main():
    out = Path(sys.argv[1])
    rng = random.Random(20240601)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(ADDED), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((document(rng) for _ in range(30000)), trainer)
    for content, special in ADDED:
        token = AddedToken(content, normalized=False, special=special)
        tokenizer.add_special_tokens([token]) if special else tokenizer.add_tokens([token])
    assert tokenizer.get_vocab_size() == VOCAB, tokenizer.get_vocab_size()
    assert [tokenizer.token_to_id(c) for c, _ in ADDED] == list(range(VOCAB - len(ADDED), VOCAB))
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "add_prefix_space": False, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "errors": "replace",
        "clean_up_tokenization_spaces": False, "split_special_tokens": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


main()
