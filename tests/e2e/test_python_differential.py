"""Tokenizer, chat template and detokenizer against the Python packages that everybody else uses, live."""
import json

import pytest

from conftest import TINY

TEXTS = ["Hello, world!", " two  spaces\n\n\tand a tab ", "It's 12,345.67 EUR; we'll see.", "Grüße, 你好, こんにちは, مرحبا",
         "e\u0301 is \u00e9 when normalised", "😀👍🏽 🇩🇪 👩‍💻", "a" * 500, "0123456789" * 20, "def f(x):\n    return x + 1\n",
         "\u200b\ufeff\u00a0\u3000", "<think>", "नमस्ते दुनिया"]
MESSAGES = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好\n\n"},
     {"role": "assistant", "content": "Hi", "reasoning_content": "A greeting."}, {"role": "user", "content": "And now?"}],
    [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}],
]


@pytest.fixture(scope="module")
def tokenizer():
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(TINY / "tokenizer.json"))


def prompt_tokens(mimo, *arguments):
    out = mimo("generate", TINY, "--max-tokens", 0, "--json", *arguments).json()
    return out["usage"]["prompt_tokens"]


@pytest.mark.parametrize("text", TEXTS)
def test_prompt_has_as_many_tokens(mimo, tokenizer, text):
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert prompt_tokens(mimo, "--prompt", text, "--parse-special") == len(expected)


@pytest.mark.parametrize("messages", MESSAGES, ids=range(len(MESSAGES)))
@pytest.mark.parametrize("thinking", [None, True, False])
def test_chat_has_as_many_tokens(mimo, tokenizer, write_json, messages, thinking):
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    switch = {} if thinking is None else {"enable_thinking": thinking}
    template = environment.from_string((TINY / "chat_template.jinja").read_text())
    text = template.render(messages=messages, add_generation_prompt=True, **switch)
    flag = {None: [], True: ["--enable-thinking"], False: ["--no-enable-thinking"]}[thinking]
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert prompt_tokens(mimo, "--chat", write_json(messages), *flag) == len(expected)


@pytest.mark.parametrize("seed", range(4))
def test_text_is_the_decoded_ids(mimo, tokenizer, seed):
    out = mimo("generate", TINY, "--prompt", "One day", "--max-tokens", 64, "--temperature", 1, "--ignore-eos",
               "--sample-seed", seed, "--json").json()
    assert len(out["token_ids"]) == 64
    assert out["text"] == tokenizer.decode(out["token_ids"], skip_special_tokens=True)
