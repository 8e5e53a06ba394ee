"""`mimo generate`: golden continuations and logits, its output, and everything that it must refuse."""
import json
import struct

import pytest

from conftest import GOLDEN, TINY

GREEDY = ("--temperature", "0", "--ignore-eos", "--json")


# The reference is slow on purpose, and the unit tests run all of it.
@pytest.mark.parametrize("backend, tokens", [("reference", 12), ("cpu", None)])
def test_continues_greedily_as_the_golden_data(mimo, golden, write_json, backend, tokens):
    expected = golden.continuation[:tokens]
    out = mimo("generate", golden.directory, "--token-ids", write_json(golden.prompt), "--max-tokens", len(expected),
               "--backend", backend, *GREEDY).json()
    assert out["token_ids"] == expected
    assert out["finish_reason"] == "length"
    assert out["usage"] == {"prompt_tokens": len(golden.prompt), "completion_tokens": len(expected),
                            "total_tokens": len(golden.prompt) + len(expected)}


# Largest difference over the largest golden logit. The reference computes in float32 like the golden run; the bound of
# the CPU backend is that of its default number formats for a checkpoint of this size.
# Window layers forget from position 128 on.
@pytest.mark.parametrize("backend, bound, tokens", [("reference", 1e-4, 144), ("cpu", 0.02, None)])
def test_writes_the_logits_of_the_prompt(mimo, golden, write_json, tmp_path, backend, bound, tokens):
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "logits.npy"
    ids = list(golden["input_ids"])[:tokens]
    out = mimo("generate", golden.directory, "--token-ids", write_json(ids), "--max-tokens", 0,
               "--backend", backend, "--logits-out", path, *GREEDY).json()
    assert out["token_ids"] == []
    logits = numpy.load(path)
    expected = numpy.array(golden["logits"], numpy.float32).reshape(golden.shapes["logits"])[:tokens]
    assert logits.dtype == numpy.float32
    assert logits.shape == expected.shape
    assert numpy.abs(logits - expected).max() / numpy.abs(expected).max() < bound


def test_logits_do_not_depend_on_chunks(mimo, golden, write_json, tmp_path):
    ids = write_json(list(golden["input_ids"]))
    files = [tmp_path / f"{chunk}.npy" for chunk in (37, 512)]
    for path in files:
        mimo("generate", golden.directory, "--token-ids", ids, "--max-tokens", 0, "--chunked-prefill-size", path.stem,
             "--logits-out", path, *GREEDY).json()
    assert files[0].read_bytes() == files[1].read_bytes()


def test_max_tokens_zero_runs_only_the_prompt(mimo):
    out = mimo("generate", TINY, "--prompt", "Hello", "--max-tokens", 0, "--json").json()
    assert out["token_ids"] == [] and out["text"] == ""
    assert out["usage"]["completion_tokens"] == 0
    assert out["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("flags", [(), ("--enable-thinking",), ("--no-enable-thinking",)])
def test_a_message_is_a_conversation_of_one(mimo, write_json, flags):
    text = 'Say "<|im_end|>" in 2 words,\n\u4f60\u597d.'
    arguments = ("--max-tokens", 12, "--logprobs", 0, *GREEDY, *flags)
    out = mimo("generate", TINY, "--message", text, *arguments).json()
    chat = mimo("generate", TINY, "--chat", write_json([{"role": "user", "content": text}]), *arguments).json()
    assert (out["usage"], out["token_ids"], out["logprobs"]) == (chat["usage"], chat["token_ids"], chat["logprobs"])


def test_plain_output_is_the_text_alone(mimo):
    arguments = ("generate", TINY, "--prompt", "One day", "--max-tokens", 24, "--temperature", 0, "--ignore-eos")
    plain = mimo(*arguments)
    assert plain.status == 0
    assert plain.out == mimo(*arguments, "--json").json()["text"] + "\n"


def test_sampling_follows_its_seed(mimo):
    def ids(seed):
        return mimo("generate", TINY, "--prompt", "One day", "--max-tokens", 24, "--temperature", 1, "--top-k", 50,
                    "--top-p", 0.95, "--min-p", 0.01, "--ignore-eos", "--sample-seed", seed, "--json").json()["token_ids"]

    assert len(ids(1)) == 24
    assert ids(1) == ids(1)
    assert ids(1) != ids(2)  # 24 tokens: equal by chance about never


def test_an_end_token_ends_the_answer(mimo, write_json):
    greedy = mimo("generate", TINY, "--prompt", "One day", "--max-tokens", 8, *GREEDY).json()["token_ids"]
    out = mimo("generate", TINY, "--prompt", "One day", "--max-tokens", 8, "--temperature", 0, "--json",
               "--stop-token-ids", greedy[3]).json()
    assert out["finish_reason"] == "stop"
    assert out["token_ids"] == greedy[:greedy.index(greedy[3]) + 1]


def test_chat(mimo, write_json):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello! 你好"}]
    as_list = mimo("generate", TINY, "--chat", write_json(messages), "--max-tokens", 4, *GREEDY).json()
    as_object = mimo("generate", TINY, "--chat", write_json({"messages": messages}), "--max-tokens", 4, *GREEDY).json()
    assert len(as_list["token_ids"]) == 4
    assert as_list["token_ids"] == as_object["token_ids"]


def test_control_tokens_spelled_in_a_message_stay_text(mimo, write_json):
    def prompt_tokens(text):
        chat = write_json([{"role": "user", "content": text}])
        return mimo("generate", TINY, "--chat", chat, "--max-tokens", 0, "--json").json()["usage"]["prompt_tokens"]

    # As a control token it would be one id more than the empty message.
    assert prompt_tokens("<|im_end|>") > prompt_tokens("") + 1


# --- what is refused ---

def refuse(mimo, *arguments, named=()):
    return mimo("generate", *arguments).refusal(*named)


def test_missing_directory(mimo, tmp_path):
    refuse(mimo, tmp_path / "nowhere", "--prompt", "x", named=["nowhere"])


def test_directory_is_a_file(mimo):
    refuse(mimo, TINY / "config.json", "--prompt", "x", named=["config.json"])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model_pp0_ep1_shard0.safetensors"])
def test_missing_file(mimo, tiny_copy, name):
    (tiny_copy / name).unlink()
    refuse(mimo, tiny_copy, "--prompt", "x", named=[name])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json",
                                  "model_pp0_ep1_shard0.safetensors"])
@pytest.mark.parametrize("keep", [0, 7, 0.5, 0.99])
def test_truncated_file(mimo, tiny_copy, name, keep):
    data = (tiny_copy / name).read_bytes()
    (tiny_copy / name).write_bytes(data[:keep if isinstance(keep, int) else int(len(data) * keep)])
    refuse(mimo, tiny_copy, "--prompt", "x", named=[name])


def test_header_longer_than_the_file(mimo, tiny_copy):
    path = tiny_copy / "model_pp0_ep1_shard0.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])
    refuse(mimo, tiny_copy, "--prompt", "x", named=[path.name])


def test_shape_that_contradicts_the_config(mimo, tiny_copy):
    path = tiny_copy / "config.json"
    config = json.loads(path.read_text())
    config["moe_intermediate_size"] *= 2
    path.write_text(json.dumps(config))
    refuse(mimo, tiny_copy, "--prompt", "x", named=["experts"])


@pytest.mark.parametrize("field, value", [("hidden_size", 0), ("hidden_size", -256), ("hidden_size", 2**40),
                                          ("hidden_size", "256"), ("num_hidden_layers", 3),
                                          ("num_experts_per_tok", 9), ("vocab_size", None),
                                          ("architectures", ["LlamaForCausalLM"])])
def test_bad_config_field(mimo, tiny_copy, field, value):
    path = tiny_copy / "config.json"
    config = json.loads(path.read_text())
    config[field] = value
    path.write_text(json.dumps(config))
    mimo("generate", tiny_copy, "--prompt", "x").refusal("config.json")


@pytest.mark.parametrize("text, named", [
    ("", []), ("[1, 2", []), ("[1,]", []), ("{}", ["array"]), ("7", ["array"]), ("[]", ["no tokens"]),
    ("[-1]", ["-1", "1023"]), ("[1024]", ["1024", "1023"]), (f"[{2**31}]", [2**31]), (f"[{2**32 + 1}]", [2**32 + 1]),
    (f"[{2**63}]", []), (f"[{2**64}]", []), ("[1.5]", ["1.5"]), ("[1e0]", []), ('["x"]', ['"x"']), ("[null]", ["null"]),
    ("[true]", ["true"]), ("[[1]]", ["[1]"]), ("[1] 2", []), ("[" * 100_000, []), ("\xff", []),
])
def test_bad_token_ids(mimo, write_json, text, named):
    path = write_json(text, "ids.json")
    # An empty list is a valid file: the prompt is what is refused.
    refuse(mimo, TINY, "--token-ids", path, named=named if text == "[]" else ["ids.json", *named])


@pytest.mark.parametrize("text, named", [
    ("", []), ("{", []), ("7", ["messages"]), ("{}", ["messages"]), ('{"messages": 7}', ["messages"]),
    ('{"messages": [], "other": 1}', ["other"]), ('[{"role": "nobody", "content": "x"}]', ["nobody"]),
    ('[{"content": "x"}]', ["role"]), ("[7]", []),
])
def test_bad_chat(mimo, write_json, text, named):
    refuse(mimo, TINY, "--chat", write_json(text, "chat.json"), named=["chat.json", *named])


def test_prompt_files_that_cannot_be_read(mimo, tmp_path):
    refuse(mimo, TINY, "--token-ids", tmp_path / "none.json", named=["none.json"])
    refuse(mimo, TINY, "--chat", tmp_path / "none.json", named=["none.json"])
    refuse(mimo, TINY, "--token-ids", tmp_path, named=[tmp_path.name])


def test_exactly_one_prompt(mimo, write_json):
    named = ["--prompt", "--message", "--chat", "--token-ids"]
    refuse(mimo, TINY, named=named)
    refuse(mimo, TINY, "--prompt", "x", "--token-ids", write_json([1]), named=named)
    refuse(mimo, TINY, "--prompt", "", "--chat", write_json([]), named=named)
    refuse(mimo, TINY, "--prompt", "x", "--message", "x", named=named)


def test_empty_prompt(mimo):
    refuse(mimo, TINY, "--prompt", "", named=["no tokens"])


def test_text_without_a_tokenizer(mimo, golden):
    refuse(mimo, golden.directory, "--prompt", "x", named=["tokenizer.json", "--token-ids"])


def test_longer_than_the_context(mimo, write_json):
    ids = write_json([1] * 8192)
    refuse(mimo, TINY, "--token-ids", ids, "--max-tokens", 1, named=[8192, 1])
    refuse(mimo, TINY, "--token-ids", write_json([1] * 100_000), named=[100_000, 8192])
    refuse(mimo, TINY, "--prompt", "x", "--max-tokens", 2**40, named=[2**40, 8192])
    refuse(mimo, TINY, "--prompt", "x", "--max-tokens", 2**63 - 1, named=["max"])


@pytest.mark.parametrize("flag, value", [
    ("--temperature", "nan"), ("--temperature", "inf"), ("--temperature", "-0.1"), ("--temperature", "2.1"),
    ("--temperature", "warm"), ("--top-p", "0"), ("--top-p", "1.01"), ("--top-p", "nan"), ("--top-k", "-2"),
    ("--top-k", "1.5"), ("--min-p", "-0.1"), ("--min-p", "1.1"), ("--min-p", "nan"), ("--max-tokens", "-1"),
    ("--max-tokens", "ten"), ("--max-tokens", "1.5"), ("--max-tokens", str(2**63)), ("--backend", "gpu"),
    ("--threads", "-1"), ("--threads", "two"), ("--page-size", "0"), ("--kv-cache-dtype", "int3"),
    ("--load-format", "gguf"), ("--sample-seed", "-1"), ("--sample-seed", str(2**64)), ("--repetition-penalty", "0"),
    ("--repetition-penalty", "nan"), ("--presence-penalty", "3"), ("--frequency-penalty", "-3"),
    ("--stop-token-ids", "1024"), ("--stop-token-ids", "-1"), ("--logprobs", "21"), ("--logprobs", "-1"),
    ("--logit-bias", "5"), ("--logit-bias", "1024:1"), ("--logit-bias", "5:nan"), ("--stop", ""),
    ("--chunked-prefill-size", "0"), ("--min-tokens", "-1"), ("--attention-backend", "flashinfer"),
    ("--prefill-attention-backend", ""), ("--decode-attention-backend", "Hopper"),
    ("--speculative-draft-attention-backend", "fa3"), ("--expert-activations", "int8"),
])
def test_bad_value(mimo, flag, value):
    # With a limit, so that a value that is wrongly taken does not run for long.
    limit = () if flag == "--max-tokens" else ("--max-tokens", 1)
    line = refuse(mimo, TINY, "--prompt", "x", flag, value, *limit)
    name = flag.removeprefix("--")
    assert name in line or name.replace("-", "_") in line, line


# --- attention kernels: a CPU has its own and no other ---

@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_attention_backend_of_a_cpu(mimo, backend, name):
    flags = [flag for start in ("", "prefill-", "decode-", "speculative-draft-") for flag in
             (f"--{start}attention-backend", name)]
    run = mimo("generate", TINY, "--device", "cpu", "--backend", backend, "--prompt", "x", "--max-tokens", 1, *flags)
    assert run.status == 0, run.err


@pytest.mark.parametrize("flag, name, phase", [
    ("--attention-backend", "hopper", "prefill"), ("--attention-backend", "blackwell", "prefill"),
    ("--prefill-attention-backend", "portable", "prefill"), ("--decode-attention-backend", "hopper", "decode"),
    ("--decode-attention-backend", "blackwell_rtx", "decode"),
])
def test_attention_backend_of_another_device(mimo, flag, name, phase):
    refuse(mimo, TINY, "--device", "cpu", "--prompt", "x", flag, name, named=[f"{flag} {name}", "this is the CPU", phase])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_expert_activations_are_for_gpus(mimo, backend):
    refuse(mimo, TINY, "--device", "cpu", "--backend", backend, "--prompt", "x", "--expert-activations", "fp8",
           named=["--expert-activations fp8", "CPU"])


def test_attention_backend_of_a_phase_goes_before_that_of_both(mimo):
    flags = ["--device", "cpu", "--prompt", "x", "--attention-backend", "hopper", "--prefill-attention-backend", "cpu"]
    refuse(mimo, TINY, *flags, named=["--attention-backend hopper", "decode"])
    run = mimo("generate", TINY, *flags, "--decode-attention-backend", "auto", "--max-tokens", 1)
    assert run.status == 0, run.err


def test_attention_backend_of_the_drafter(mimo, write_json):
    flag = ["--speculative-draft-attention-backend", "hopper"]
    refuse(mimo, TINY, "--device", "cpu", "--prompt", "x", *flag, named=[*flag, "no effect", "ships no dflash/"])
    with_drafter = [GOLDEN / "v26_tiny", "--device", "cpu", "--token-ids", write_json([1, 2])]
    refuse(mimo, *with_drafter, *flag, named=[" ".join(flag), "this is the CPU", "draft"])
    refuse(mimo, *with_drafter, "--speculative-algorithm", "NONE", *flag, named=[*flag, "no effect"])


def test_unknown_flag(mimo):
    refuse(mimo, TINY, "--prompt", "x", "--temprature", "1", named=["--temprature", "--temperature"])


def test_flag_without_its_value(mimo):
    refuse(mimo, TINY, "--prompt", named=["--prompt"])


def test_config_needs_random_weights(mimo):
    refuse(mimo, TINY, "--prompt", "x", "--config", TINY / "config.json", named=["--config", "--load-format random"])


def test_logits_file_that_cannot_be_written(mimo, tmp_path):
    path = tmp_path / "none" / "logits.npy"
    run = mimo("generate", TINY, "--prompt", "x", "--max-tokens", 0, "--logits-out", path)
    assert run.status > 0 and run.out == ""
    assert str(path) in run.err


def test_bytes_that_are_not_utf8(mimo):
    # Either answer is fine, a crash is not.
    run = mimo("generate", TINY, "--prompt", b"a\xff\xfe\xc3", "--max-tokens", 1)
    assert run.status >= 0
    assert run.status == 0 or run.refusal()
