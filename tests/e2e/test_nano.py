"""The bundled MiMo-Nano: how good it is, that no drafter, batch, chunk or page size changes a token of its answers,
and that a damaged drafter is refused or left out."""
import functools
import json
import shutil
import struct
import zipfile

import pytest

from conftest import ROOT

NANO = ROOT / "models" / "nano"
SHIPPED_BYTES = 32 * 10**6
DRAFTS = 7  # of a block of 8

# Raised with the weights.
LEAST_ACCURACY = 0.97
LEAST_ACCEPT_LENGTH = 6.5
LEAST_TOOLCALL = 0.98
FP8_KV_POINTS = 0.02

ALGORITHMS = {
    "none": ("--speculative-algorithm", "NONE"),
    "dflash7": ("--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", 7),
    "dflash3": ("--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", 3),
    "mtp3": ("--speculative-algorithm", "MTP", "--speculative-num-draft-tokens", 3),
    "adaptive": (),
}


@pytest.fixture(scope="session")
def ask(mimo):
    """ask("nano-gsm", ...) is the result of `mimo eval` on the bundled model; the same question is asked once."""

    @functools.cache
    def evaluate(*arguments):
        return mimo("eval", *arguments[:1], "--model", NANO, "--json", *arguments[1:]).json()

    return evaluate


@pytest.fixture
def nano_copy(tmp_path):
    """A directory of links to the bundled model: what a test damages it replaces by a file."""
    copy = tmp_path / "nano"
    for path in NANO.rglob("*"):
        if path.is_file():
            link = copy / path.relative_to(NANO)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return copy


def answers(out):
    assert out["failed"] == 0
    return {item["prompt_id"]: item["token_ids"] for item in out["items"]}


def replace(path, content):
    path.unlink()
    path.write_bytes(content)


class Safetensors:
    """One file, to be changed."""

    def __init__(self, path):
        self.path = path
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        self.header = json.loads(data[8:8 + length])
        self.data = bytearray(data[8 + length:])

    def drop(self, wanted):
        dropped = [name for name in self.header if wanted in name]
        for name in dropped:
            del self.header[name]
        return dropped

    def fill(self, name, bf16):
        """All values of a BF16 tensor become `bf16`."""
        begin, end = self.header[name]["data_offsets"]
        self.data[begin:end] = struct.pack("<H", bf16) * ((end - begin) // 2)

    def save(self):
        header = json.dumps(self.header).encode()
        header += b" " * (-len(header) % 8)
        replace(self.path, struct.pack("<Q", len(header)) + header + bytes(self.data))


def drop_tensors(directory, wanted):
    """Takes tensors out of the files of a directory, and out of its index."""
    dropped = []
    for path in directory.glob("*.safetensors"):
        tensors = Safetensors(path)
        if names := tensors.drop(wanted):
            dropped += names
            tensors.save()
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    for name in dropped:
        index["weight_map"].pop(name)
    replace(directory / "model.safetensors.index.json", json.dumps(index).encode())
    return dropped


# How good it is.


def test_word_problems(ask):
    assert ask("nano-gsm", "--limit", 100)["accuracy"] >= LEAST_ACCURACY


def test_accept_length(ask):
    out = ask("nano-gsm", "--limit", 100, *ALGORITHMS["dflash7"])
    assert out["accept_length"] >= LEAST_ACCEPT_LENGTH
    assert len(out["speculation"]["accepted_histogram"]) == DRAFTS + 1
    assert out["speculation"]["failures"] == 0 and out["speculation"]["verify_steps"] > 0


def test_word_problems_with_fp8_kv(ask):
    fp8 = ask("nano-gsm", "--limit", 100, "--kv-cache-dtype", "fp8")
    assert fp8["kv_cache_dtype"].startswith("fp8")
    assert abs(fp8["accuracy"] - ask("nano-gsm", "--limit", 100)["accuracy"]) <= FP8_KV_POINTS + 1e-9


def test_word_problems_without_thinking(ask):
    out = ask("nano-gsm", "--limit", 100, "--no-thinking")
    assert out["accuracy"] >= LEAST_ACCURACY
    assert all(not item["reasoning_content"] for item in out["items"])
    thinking = ask("nano-gsm", "--limit", 100)
    assert sum(bool(item["reasoning_content"]) for item in thinking["items"]) >= 90


def test_tool_calls(ask):
    out = ask("toolcall", "--limit", 60)
    assert out["accuracy"] >= LEAST_TOOLCALL
    assert any(item["tool_calls"] for item in out["items"])


@pytest.mark.parametrize("length", [2048, 8192])
def test_needle(ask, length):
    out = ask("needle", "--lengths", length, "--depths", 0.5, "--samples", 1)
    assert [item["prompt_tokens"] for item in out["items"]] == [length]
    assert out["accuracy"] == 1


def test_one_question(mimo):
    """What `make ask` shows."""
    run = mimo("generate", "--message", "Paul pays $39 for a bowl. Paul pays $81 for a puzzle. How many dollars does Paul spend?",
               "--max-tokens", 512)
    assert run.status == 0
    assert "<think>" in run.out and "\\boxed{" in run.out
    assert "DFLASH: accept length" in run.err and "tokens a second" in run.err


# The answers are the same.


@pytest.mark.parametrize("algorithm, concurrency, chunk, page", [
    *((algorithm, *how) for algorithm in ALGORITHMS for how in ((1, 512, 64), (16, 24, 16))),
    *((algorithm, *how) for algorithm in ("none", "adaptive") for how in ((1, 512, 16), (16, 24, 64)))])
def test_no_drafter_batch_chunk_or_page_changes_an_answer(ask, algorithm, concurrency, chunk, page):
    def run(algorithm, concurrency, chunk, page):
        return ask("nano-gsm", "--limit", 60, "--concurrency", concurrency, "--chunked-prefill-size", chunk,
                   "--page-size", page, *ALGORITHMS[algorithm])

    out = run(algorithm, concurrency, chunk, page)
    assert out["speculative_algorithm"] == {"none": "NONE", "mtp3": "MTP"}.get(algorithm, "DFLASH")
    assert answers(out) == answers(run("none", 1, 512, 64))
    if algorithm != "none":
        assert out["accept_length"] > 1.5 and out["speculation"]["failures"] == 0


def test_the_drafter_changes_no_answer_over_an_fp8_kv_cache(ask):
    runs = [ask("nano-gsm", "--limit", 40, "--kv-cache-dtype", "fp8", *ALGORITHMS[name]) for name in ("none", "dflash7")]
    assert answers(runs[0]) == answers(runs[1])


@pytest.mark.parametrize("algorithm", ["dflash7", "mtp3", "adaptive"])
def test_the_drafter_changes_no_sampled_answer(ask, algorithm):
    def run(algorithm, seed):
        return ask("nano-gsm", "--limit", 40, "--temperature", 1, "--sample-seed", seed, *ALGORITHMS[algorithm])

    plain = answers(run("none", 11))
    assert answers(run(algorithm, 11)) == plain
    assert answers(run("none", 12)) != plain


# A drafter that cannot work.


def generate(mimo, directory, *arguments):
    return mimo("generate", directory, "--prompt", "One day", "--max-tokens", 2, "--json", *arguments)


def test_links_to_the_model_are_the_model(mimo, nano_copy):
    generate(mimo, nano_copy).json()
    generate(mimo, nano_copy, "--speculative-algorithm", "MTP").json()


def test_no_mask_embedding(mimo, nano_copy):
    (nano_copy / "dflash" / "mask_embedding.pt").unlink()
    generate(mimo, nano_copy).refusal(nano_copy / "dflash" / "mask_embedding.pt", "--speculative-algorithm NONE")
    assert "drafter none" in generate(mimo, nano_copy, "--speculative-algorithm", "NONE").err
    run = mimo("inspect", nano_copy, "--json")
    assert run.status == 1 and any("mask_embedding.pt" in problem for problem in json.loads(run.out)["problems"])


def test_a_mask_embedding_of_another_width(mimo, nano_copy):
    path = nano_copy / "dflash" / "mask_embedding.pt"
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    path.unlink()
    narrow, halved = 0, 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            if name.endswith("/data.pkl"):  # 256 as the pickle writes it, becomes 128
                narrow = content.count(b"M\x00\x01")
                content = content.replace(b"M\x00\x01", b"M\x80\x00")
            elif len(content) == 512:
                halved += 1
                content = content[:256]
            archive.writestr(name, content)
    assert narrow > 0 and halved == 1
    generate(mimo, nano_copy).refusal(path, "128", "256")


def test_no_sinks(mimo, nano_copy):
    dropped = drop_tensors(nano_copy / "dflash", "layers.1.self_attn.attention_sink_bias")
    assert len(dropped) == 1
    generate(mimo, nano_copy).refusal(nano_copy / "dflash", "layers.1.self_attn.attention_sink_bias")


def test_no_drafter_directory(mimo, nano_copy):
    shutil.rmtree(nano_copy / "dflash")
    generate(mimo, nano_copy, "--speculative-algorithm", "DFLASH").refusal(
        "--speculative-algorithm DFLASH", nano_copy / "dflash", "--speculative-draft-model-path")
    assert "drafter none (the checkpoint ships no dflash/)" in generate(mimo, nano_copy).err


def test_no_mtp_heads(mimo, nano_copy):
    assert drop_tensors(nano_copy, "model.mtp.")
    generate(mimo, nano_copy, "--speculative-algorithm", "MTP").refusal("--speculative-algorithm MTP", "model.mtp.layers.0")
    generate(mimo, nano_copy).json()  # nobody else needs them


BF16_NAN, BF16_LARGEST = 0x7FC0, 0x7F7F


def fill_drafter(directory, name, bf16):
    drafter = Safetensors(directory / "dflash" / "dflash_draft_model.safetensors")
    # The file may spell it with "model." before it.
    drafter.fill(next(key for key in drafter.header if key.removeprefix("model.") == name), bf16)
    drafter.save()


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "layers.0.input_layernorm.weight",
                                  "layers.0.self_attn.q_norm.weight", "layers.1.mlp.down_proj.weight",
                                  "layers.2.self_attn.v_proj.weight"])
def test_weights_that_are_not_finite_are_refused(mimo, nano_copy, name):
    fill_drafter(nano_copy, name, BF16_NAN)
    generate(mimo, nano_copy).refusal(nano_copy / "dflash", name, "not finite", "--speculative-algorithm NONE")


@pytest.mark.parametrize("name", ["layers.1.mlp.down_proj.weight", "norm.weight"])
def test_drafts_that_are_not_finite_end_drafting_alone(mimo, ask, nano_copy, name):
    fill_drafter(nano_copy, name, BF16_LARGEST)  # loads, and overflows
    run = mimo("eval", "nano-gsm", "--model", nano_copy, "--limit", 12, "--json")
    out = run.json()
    assert answers(out) == answers(ask("nano-gsm", "--limit", 12, *ALGORITHMS["none"]))
    assert out["speculation"]["failures"] == 12 and out["speculation"]["accepted"] == 0
    assert run.err.count("goes on without DFLASH") == 12 and "not finite" in run.err


@pytest.mark.parametrize("name", ["norm.weight", "fc.weight", "layers.0.mlp.down_proj.weight"])
def test_zeroed_weights_change_no_answer(mimo, ask, nano_copy, name):
    fill_drafter(nano_copy, name, 0)
    run = mimo("eval", "nano-gsm", "--model", nano_copy, "--limit", 40, "--json", *ALGORITHMS["dflash7"])
    out = run.json()
    assert answers(out) == answers(ask("nano-gsm", "--limit", 40, *ALGORITHMS["none"]))
    counters, healthy = out["speculation"], ask("nano-gsm", "--limit", 100, *ALGORITHMS["dflash7"])["speculation"]
    assert counters["proposed"] > 0 and counters["accept_rate"] < healthy["accept_rate"]
    if name == "norm.weight":  # no draft can be right
        assert counters["accepted"] == 0
        warnings = [line for line in run.err.splitlines() if "warning: speculation" in line]
        assert len(warnings) == 1 and "weights or a mask embedding that are zero" in warnings[0]


# What is shipped.


def test_it_is_small():
    files = [path for path in NANO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= SHIPPED_BYTES


def test_it_is_complete(mimo):
    out = mimo("inspect", NANO, "--json").json()
    assert out["complete"] is True and out["problems"] == [] and out["warnings"] == [] and out["skipped"] == {}
    assert out["bytes_stored"] == out["bytes_expected"]
    assert out["mtp_heads"] == 3
    drafter = out["drafter"]
    assert drafter["block"] == DRAFTS + 1 and drafter["mask_embedding_norm"] > 0
    files = (NANO / "dflash").glob("*.safetensors")
    assert drafter["bytes"] == sum(len(Safetensors(path).data) for path in files)
    assert "drafter (dflash/)" in mimo("inspect", NANO).out


def test_the_plan_charges_the_drafter(mimo):
    def plan(*arguments):
        return mimo("plan", NANO, "--memory", "1GiB", "--json", *arguments).json()

    rows = {row["name"]: row for row in plan()["rows"]}
    none = {row["name"] for row in plan("--speculative-algorithm", "NONE")["rows"]}
    assert set(rows) - none == {"weights: drafter", "KV: drafter"}
    assert rows["weights: drafter"]["bytes"] > mimo("inspect", NANO, "--json").json()["drafter"]["bytes"]
    # What start-up says that it takes with weights as they are stored; the fast mode holds them as int8.
    out = mimo("generate", NANO, "--prompt", "One day", "--max-tokens", 1, "--activations", "exact")
    assert f"{rows['weights: drafter']['bytes'] / 1e6:.1f}" in out.err
    assert f"{rows['KV: drafter']['bytes'] / 8e6:.2f} MB a request" in out.err
    # Not at all, or as MTP heads.
    assert "weights: MTP heads" in {row["name"] for row in plan("--speculative-algorithm", "MTP")["rows"]}


@pytest.fixture(scope="module")
def tokenizer():
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.fixture(scope="module")
def template():
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((NANO / "chat_template.jinja").read_text())


def eval_lines(name):
    return [json.loads(line) for line in (NANO / "eval" / name).read_text().splitlines()]


def test_tokens_of_the_problems(ask, tokenizer, template):
    for out, lines in ((ask("nano-gsm", "--limit", 100), eval_lines("nano_gsm.jsonl")),
                       (ask("toolcall", "--limit", 60), eval_lines("toolcall.jsonl"))):
        for item, line in zip(out["items"], lines):
            assert item["prompt_id"] == line["id"]
            messages = line.get("messages") or [{"role": "user", "content": line["question"]}]
            for call in [call for message in messages for call in message.get("tool_calls", [])]:
                if isinstance(call["function"]["arguments"], str):  # as the API sends them
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            switch = {"enable_thinking": line["enable_thinking"]} if "enable_thinking" in line else {}
            text = template.render(messages=messages, tools=line.get("tools"), add_generation_prompt=True, **switch)
            assert item["prompt_tokens"] == len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_answers_are_the_decoded_ids(ask, tokenizer):
    whole = 0
    for item in ask("nano-gsm", "--limit", 100)["items"]:
        if item["reasoning_content"] and not item["truncated"]:
            whole += 1
            text = tokenizer.decode(item["token_ids"], skip_special_tokens=False)
            thought, _, content = text.removeprefix("<think>").removesuffix("<|im_end|>").partition("</think>")
            assert (item["reasoning_content"].strip(), item["content"].strip()) == (thought.strip(), content.strip())
    assert whole >= 80


def logits_of(mimo, path, *prompt):
    out = mimo("generate", NANO, "--max-tokens", 0, "--logits-out", path, "--json", *prompt).json()
    assert out["usage"]["prompt_tokens"] > 0
    return path.read_bytes()


# Equal logits at every position: the same ids, not only as many.
def test_ids_of_text(mimo, tokenizer, write_json, tmp_path):
    text = "\n".join([line["question"] for line in eval_lines("nano_gsm.jsonl")[:12]] +
                     [json.dumps(line["tools"]) for line in eval_lines("toolcall.jsonl")[:2]] +
                     (NANO / "eval" / "haystack.txt").read_text().splitlines()[:10] +
                     ["Grüße, 你好 e\u0301 😀  \t 12,345.67"])
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert logits_of(mimo, tmp_path / "text.npy", "--prompt", text) == logits_of(
        mimo, tmp_path / "ids.npy", "--token-ids", write_json(ids))


CALL = {"id": "c1", "type": "function", "function": {"name": "local_time", "arguments": {"city": "Oslo", "days": 2}}}
TOOL = {"type": "function", "function": {"name": "local_time", "description": "Zeit für einen Ort",
                                         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What time is it in Oslo?"},
                {"role": "assistant", "content": "", "reasoning_content": "A call.", "tool_calls": [CALL]},
                {"role": "tool", "content": '{"time": "9:30"}'}]
RENDERED = ("<|im_start|>system\nYou are provided with the following tools:\n\n<tools>\n" +
            json.dumps(TOOL, ensure_ascii=False) + "\n</tools><|im_end|><|im_start|>system\nBe brief.<|im_end|>"
            "<|im_start|>user\nWhat time is it in Oslo?<|im_end|><|im_start|>assistant\n<think>A call.</think><tool_call>"
            "<function=local_time><parameter=city>Oslo</parameter><parameter=days>2</parameter></function></tool_call>"
            '<|im_end|><|im_start|>tool\n{"time": "9:30"}<|im_end|><|im_start|>assistant\n')


@pytest.mark.parametrize("flags, end", [((), ""), (("--enable-thinking",), ""),
                                        (("--no-enable-thinking",), "<think></think>")])
def test_chat_format(mimo, tokenizer, template, write_json, tmp_path, flags, end):
    switch = {"enable_thinking": flags[0] == "--enable-thinking"} if flags else {}
    assert template.render(messages=CONVERSATION, tools=[TOOL], add_generation_prompt=True, **switch) == RENDERED + end
    ids = tokenizer.encode(RENDERED + end, add_special_tokens=False).ids
    chat = write_json({"messages": CONVERSATION, "tools": [TOOL]}, "chat.json")
    assert logits_of(mimo, tmp_path / "chat.npy", "--chat", chat, *flags) == logits_of(
        mimo, tmp_path / "ids.npy", "--token-ids", write_json(ids, "ids.json"))
