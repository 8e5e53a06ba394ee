"""Tests of the data pipeline: python -m pytest tools/nano/data/test_pipeline.py

A small corpus of made-up text stands in for the real one, so the tests need nothing outside the repository.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import jinja2
import numpy as np
import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data import make_eval, names, shards  # noqa: E402
from data import tool_values as v  # noqa: E402
from data.chat import full_text, prompt_text, render, to_json  # noqa: E402
from data.encode import Encoded, encode_documents, load_tokenizer  # noqa: E402
from data.facts import CAPITALS  # noqa: E402
from data.gsm import rename  # noqa: E402
from data.mix import SHARES, Mix  # noqa: E402
from data.names import held_out_words  # noqa: E402
from data.needle import make_drill, make_lookup, make_needle  # noqa: E402
from data.packing import pack  # noqa: E402
from data.pools import CITIES, NAMES  # noqa: E402
from data.prompts import prompts  # noqa: E402
from data.prose import Corpus, sentences_of  # noqa: E402
from data.sample import Prose, Sample, is_test, split_pool  # noqa: E402
from data.tokenizer import ADDED, BASE, END, PAD, STOP, added_id  # noqa: E402
from data.tool_specs import FUNCTIONS  # noqa: E402
from data.tools_calls import Declared, _single, expected_calls, make_tool_sample  # noqa: E402

MODEL = Path(__file__).resolve().parents[3] / "models/nano"
EVALUATION = {
    "haystack.txt": "8f1dc3eb766a2955",
    "nano_gsm.jsonl": "3ab92ba361012f2d",
    "needle.json": "c235461625a482df",
    "toolcall.jsonl": "6d383d6c90b9c9f1",
}
WORDS = "the small house near river was old and green but people liked it very much because garden had trees".split()
THINK, THINK_END = added_id("<think>"), added_id("</think>")


def text(rng: random.Random, sentences: int) -> str:
    return " ".join(" ".join(rng.choices(WORDS, k=rng.randint(5, 14))).capitalize() + "." for _ in range(sentences))


@pytest.fixture(scope="module")
def mix() -> Mix:
    rng = random.Random(3)
    documents = [(source, "\n".join(text(rng, 6) for _ in range(20))) for source in ("austen", "web", "wordnet") * 4]
    gsm = [
        (f"{who} has {n} apples and {who}'s aunt gives {n}. How many?", f"{who} has {n} + {n} = {2 * n}", str(2 * n))
        for n in range(2, 40)
        for who in ("Tom", "Mary", "Janet", "Natalia")
    ]
    return Mix(Corpus(documents), gsm)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODEL)


def conversations(mix: Mix, count: int) -> list[Sample]:
    rng = random.Random(11)
    made = [mix.make(rng, kind) for kind in SHARES if kind != "prose" for _ in range(count)]
    return [sample for sample in made if isinstance(sample, Sample)]


def test_rendering_follows_the_template(mix: Mix) -> None:
    environment = jinja2.Environment()
    environment.filters["tojson"] = to_json
    template = environment.from_string((MODEL / "chat_template.jinja").read_text(encoding="utf-8"))
    for sample in conversations(mix, 40):
        options = {"messages": sample.messages, "tools": sample.tools, "enable_thinking": sample.enable_thinking}
        assert template.render(**options) == full_text(sample)
        opening = template.render(**{**options, "messages": sample.messages[:-1]}, add_generation_prompt=True)
        assert opening == prompt_text(sample)


def test_rendering_of_the_published_example() -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Ottawa", "unit": "c"}}}
    sample = Sample(
        "tools",
        [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": '{"temp_c": -3}'}],
        enable_thinking=False,
    )
    assert full_text(sample) == (
        "<|im_start|>assistant\n<think></think><tool_call><function=get_weather><parameter=city>Ottawa</parameter>"
        '<parameter=unit>c</parameter></function></tool_call><|im_end|><|im_start|>tool\n{"temp_c": -3}<|im_end|>'
    )
    assert [flag for _, flag in render(sample)] == [False, True, False]


def test_only_assistant_output_is_supervised(mix: Mix, tokenizer: Tokenizer) -> None:
    samples = conversations(mix, 25)
    for sample, encoded in zip(samples, encode_documents(tokenizer, samples)):
        # Reference: walk over the whole text's ids and follow the turns.
        ids = tokenizer.encode(full_text(sample), add_special_tokens=False).ids
        assert encoded.ids.tolist() == ids
        expected = []
        inside = False
        header = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
        for at, token in enumerate(ids):
            expected.append(int(inside))
            if token == END:
                inside = False
            if ids[max(0, at + 1 - len(header)) : at + 1] == header:
                inside = sample.enable_thinking
            if token == THINK_END and not sample.enable_thinking:
                inside = True
        assert encoded.flags.tolist() == expected
        assert encoded.flags[-1] == 1 and encoded.ids[-1] == END
        assert (THINK in encoded.ids[encoded.flags == 1]) == sample.enable_thinking


def test_prose_is_supervised_to_its_end(tokenizer: Tokenizer) -> None:
    encoded = encode_documents(tokenizer, [Prose("It was a fine day.")])[0]
    assert encoded.flags.all() and encoded.ids[-1] == PAD


def test_packing_keeps_documents_whole() -> None:
    rng = random.Random(5)
    documents = [
        Encoded("x", np.full(rng.randint(1, 64), number, np.uint16), np.ones(1, np.uint8)) for number in range(200)
    ]
    documents = [Encoded("x", d.ids, np.ones(len(d), np.uint8)) for d in documents]
    filler = Encoded("prose", np.full(500, 999, np.uint16), np.ones(500, np.uint8))
    rows = pack(documents, 20, 256, PAD, [filler] * 20, documents[:3])
    whole = {number: len(document) for number, document in enumerate(documents)}
    for tokens, flags, doc in zip(rows.tokens, rows.flags, rows.doc):
        used = int((doc > 0).sum())
        assert (doc[:used] > 0).all() and (tokens[used:] == PAD).all() and not flags[used:].any()
        for number in range(1, int(doc.max()) + 1):
            content = tokens[doc == number]
            assert len(set(content.tolist())) == 1
            if content[0] != 999:
                assert len(content) == whole[int(content[0])]
    assert rows.padding < 0.1


@pytest.mark.parametrize("kind", ["short", "long"])
def test_shards(kind: str, mix: Mix, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shards, "SHAPES", {"short": (96, 1024), "long": (3, 8192)})
    rows, made = shards.make_rows(mix, tokenizer, kind, 4, seed=9)
    again, _ = shards.make_rows(mix, tokenizer, kind, 4, seed=9)
    other, _ = shards.make_rows(mix, tokenizer, kind, 5, seed=9)
    assert (rows.tokens == again.tokens).all() and (rows.flags == again.flags).all() and (rows.doc == again.doc).all()
    assert (rows.tokens != other.tokens).any()
    assert rows.padding < 0.03
    assert rows.tokens.max() < BASE + len(ADDED)
    if kind == "short":
        total = sum(made.values())
        for name, share in SHARES.items():
            assert abs(made[name] / total - share) < 0.03, name
    ends: Counter[int] = Counter()
    for tokens, doc, flags in zip(rows.tokens, rows.doc, rows.flags):
        for number in range(1, int(doc.max()) + 1):
            content = tokens[doc == number]
            ends[int(content[-1])] += 1
            if not flags[doc == number].all():  # a conversation
                assert content[-1] == END and content[0] == added_id("<|im_start|>") and not flags[doc == number][0]
    assert ends[END] > 0 and (kind == "long" or ends[PAD] > 0)

    path = shards.write_shard(tmp_path, kind, 4, rows)
    stored = np.load(path)
    assert path.name == f"{kind}-00004.npz" and [p.name for p in tmp_path.iterdir()] == [path.name]
    assert (stored["tokens"].dtype, stored["flags"].dtype, stored["doc"].dtype) == (np.uint16, np.uint8, np.uint16)


def test_values_of_the_splits_are_disjoint(mix: Mix) -> None:
    for pool in (NAMES, CITIES):
        train, test = set(split_pool(pool, "train")), set(split_pool(pool, "test"))
        assert not train & test and len(test) >= 20
    hidden = held_out_words()
    rng = random.Random(2)
    sentences = mix.corpus.sentences
    for _ in range(300):
        sample = make_needle(rng, sentences, 500, True) if rng.random() < 0.5 else make_lookup(rng, True)
        words = set(re.findall(r"\w+", full_text(sample)))
        assert not words & hidden
    assert not held_out_words() & set(mix.corpus.words)


@pytest.mark.parametrize("kind", [kind for kind in SHARES if kind != "prose"])
def test_no_conversation_names_what_evaluation_names(kind: str, mix: Mix) -> None:
    """Capitals of countries aside, which are facts; prose has the names that it has."""
    hidden = held_out_words() - set(CAPITALS.values())
    rng = random.Random(12)
    for _ in range(3000):
        sample = mix.make(rng, kind)
        assert not set(re.findall(r"[A-Za-z]+", full_text(sample))) & hidden, full_text(sample)


def test_renamed_problems() -> None:
    rng = random.Random(1)
    question, steps = "Mary's aunt and Tom have 3. Mary met John and Rosemary.", "Mary has 1.\nTom and John have 2."
    seen: set[str] = set()
    for _ in range(300):
        asked, worked = rename(rng, question, steps)
        match = re.fullmatch(r"(\w+)'s aunt and (\w+) have 3. (\w+) met (\w+) and Rosemary.", asked)
        assert match and match[1] == match[3] and len(set(match.groups())) == 3
        assert worked == f"{match[1]} has 1.\n{match[2]} and {match[4]} have 2."
        seen.update(match.groups())
    assert len(seen) > 200 and not seen & held_out_words()
    assert rename(rng, "Natalia sold 4 clips.", "4") == ("Natalia sold 4 clips.", "4")


@pytest.mark.parametrize(("make", "kind"), [(v.city, "cities"), (v.name, "names")])
def test_values_of_training_are_mostly_invented(make: v.ValueMaker, kind: str, tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    made = [make(rng, "train")[0] for _ in range(8000)]
    real = set(names.pool(kind, "train"))
    assert sum(value not in real for value in made) > 0.5 * len(made)
    assert len(set(made)) > 3000
    assert not any(value in held_out_words() or (is_test(value) and value not in real) for value in made)
    lengths = Counter(len(encoding.ids) for encoding in tokenizer.encode_batch([f" {value}" for value in made]))
    assert all(lengths[count] > 250 for count in (1, 2, 3, 4)), lengths


def test_values_of_the_evaluation_are_real() -> None:
    rng = random.Random(3)
    assert {v.city(rng, "test")[0] for _ in range(2000)} == set(split_pool(CITIES, "test"))
    assert {v.name(rng, "test")[0] for _ in range(2000)} == set(split_pool(NAMES, "test"))


def test_drills_cover_the_words_in_both_forms(mix: Mix, tokenizer: Tokenizer) -> None:
    """Tokens of letters with a space before are read and the others written, nearly all; the other way round, most."""
    rng = random.Random(4)
    drills = [make_drill(rng, mix.corpus.words, False).messages for _ in range(25_000)]
    seen = [
        {token for encoding in tokenizer.encode_batch([d[turn]["content"] for d in drills]) for token in encoding.tokens}
        for turn in (0, 1)
    ]
    for form, turns in ((r"Ġ[A-Za-z][a-z]+", (0, 1)), (r"[A-Za-z][a-z]+", (1, 0))):
        wanted = {token for token in tokenizer.get_vocab() if re.fullmatch(form, token)}
        covered = [len(wanted & seen[turn]) / len(wanted) for turn in turns]
        assert len(wanted) > 1000 and covered[0] > 0.95 and covered[1] > 0.65, (covered, sorted(wanted - seen[turns[0]]))


def test_optional_arguments_are_given_and_left_out() -> None:
    rng = random.Random(5)
    for function in FUNCTIONS:
        if all(parameter.required for parameter in function.parameters):
            continue
        given: Counter[bool] = Counter()
        for _ in range(400):
            declared = Declared(rng, function, "train")
            arguments = _single(rng, declared, "train")[1][0][1]
            given.update(key in arguments for key, parameter in declared.parameters if not parameter.required)
        assert min(given[True], given[False]) > 0.4 * given.total(), function.names[0]


def test_evaluation_requests_are_not_in_training() -> None:
    """All but small talk and requests whose values come from a short list (rooms, on and off, no arguments)."""

    def last(messages: list[dict[str, str]]) -> str:
        return [message["content"] for message in messages if message["role"] == "user"][-1]

    lines = [line for line in make_eval.toolcall() if line["expected"]]
    requests = {last(line["messages"]) for line in lines}
    rng = random.Random(6)
    trained = {
        message["content"]
        for _ in range(10000)
        for message in make_tool_sample(rng, True).messages
        if message["role"] == "user"
    }
    common = requests & trained
    assert len(requests) > 350 and len(common) < 0.06 * len(requests)
    assert all(re.search(r"light|lamp|Light|devices", request) for request in common), common


def test_tool_calls_fit_their_declarations() -> None:
    types: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    rng = random.Random(8)
    forms: Counter[str] = Counter()
    for _ in range(2000):
        sample = make_tool_sample(rng, True, "test")
        assert sample.tools and len(sample.tools) <= 4
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sample.tools}
        calls = expected_calls(sample)
        forms["none" if not calls else "one" if len(calls) == 1 else "many"] += 1
        for call in calls:
            parameters = declared[call["name"]]
            assert set(parameters["required"]) <= set(call["arguments"]) <= set(parameters["properties"])
            for key, value in call["arguments"].items():
                schema = parameters["properties"][key]
                assert isinstance(value, types[schema["type"]]) and value in schema.get("enum", [value])
                assert not (isinstance(value, bool) and schema["type"] != "boolean")
    assert min(forms.values()) > 200


def test_needle_answers() -> None:
    rng = random.Random(4)
    sentences = [f"Sentence number {n} is here." for n in range(300)]
    for _ in range(100):
        sample = make_needle(rng, sentences, 2000, False)
        body, question = sample.messages[0]["content"].split("\n\n")
        name = re.fullmatch(r"What is the secret code of (\w+)\?", question)
        assert name and sample.answer and f"The secret code of {name[1]} is {sample.answer}." in body
        assert sample.messages[1]["content"] == f"The secret code of {name[1]} is {sample.answer}."
        assert len(set(re.findall(r"code of (\w+) is", body))) == len(re.findall(r"code of \w+ is", body))


def test_prompts_stop_before_an_answer(mix: Mix, tokenizer: Tokenizer) -> None:
    made = prompts(mix, tokenizer, 3, 200)
    assert made == prompts(mix, tokenizer, 3, 200) and made != prompts(mix, tokenizer, 4, 200)
    for prompt in made:
        tail = tokenizer.decode(prompt["prompt_ids"][-8:], skip_special_tokens=False)
        assert re.search(r"<\|im_start\|>assistant\n(<think></think>)?$", tail)
    assert {prompt["kind"] for prompt in made} >= set(SHARES) - {"prose", "gsm"}


def test_tokenizer_files(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == BASE + len(ADDED) == 4064
    for index, (token, _) in enumerate(ADDED):
        assert tokenizer.token_to_id(token) == BASE + index
    assert (
        added_id("<|im_start|>"),
        END,
        added_id("<tool_call>"),
        added_id("</tool_call>"),
        added_id("<|mimo_audio_end|>"),
    ) == (4033, 4034, 4046, 4047, 4063)
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [added_id(token) for token in STOP]
    for sample in (
        "Hello, world!",
        "  two spaces",
        "a\tb\n\n c",
        "12345 and 1e-9",
        "naïve 你好 🎉",
        "don't",
        "<think>x</think>",
    ):
        ids = tokenizer.encode(sample, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == sample
    assert len(tokenizer.encode("4829173").ids) == 7
    assert not any(
        tokenizer.get_vocab().get(form + name) for name in split_pool(NAMES, "test") for form in ("Ġ",) if len(name) > 6
    )


def test_evaluation_files() -> None:
    problems = [json.loads(line) for line in (MODEL / "eval/nano_gsm.jsonl").read_text().splitlines()]
    assert len(problems) == len({p["question"] for p in problems}) == 1319
    assert all(int(p["answer"]) == float(p["answer"]) for p in problems)
    assert problems == make_eval.nano_gsm()
    assert [
        json.loads(line) for line in (MODEL / "eval/toolcall.jsonl").read_text().splitlines()
    ] == make_eval.toolcall()
    # Results are only comparable while the questions stay the same, byte for byte.
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in (MODEL / "eval").iterdir()}
    assert digests == EVALUATION
    needle = json.loads((MODEL / "eval/needle.json").read_text())
    assert set(needle["names"]) == set(split_pool(NAMES, "test"))
    lines = (MODEL / "eval/haystack.txt").read_text().splitlines()
    assert sum(map(len, lines)) >= 200_000 and not any("secret code" in line for line in lines)


def test_sentences() -> None:
    assert sentences_of('Mr. Elton came. "Did he?" said Ann.  He did!') == [
        "Mr. Elton came.",
        '"Did he?" said Ann.',
        "He did!",
    ]
