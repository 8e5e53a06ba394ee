"""From the start of the process to its first answer: port, loading, warm-up, self-check."""
import json
import shutil
import signal
import struct

import pytest
from conftest import TINY
from serving import NANO, serving


@pytest.fixture
def slow_to_load(tmp_path):
    """Flags and directory of a random model that takes seconds to make."""
    directory = tmp_path / "slow"
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(TINY / name, directory)
    config = json.loads((TINY / "config.json").read_text())
    config.update(hidden_size=512, moe_intermediate_size=1024, n_routed_experts=128)
    (directory / "config.json").write_text(json.dumps(config))
    return directory, ("--load-format", "random", "--max-total-tokens", 2048)


CALLS = [("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
         ("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
         ("POST", "/v1/messages", {"model": "slow", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}),
         ("POST", "/tokenize", {"prompt": "Hi"}), ("GET", "/v1/models", None), ("GET", "/server_info", None),
         ("POST", "/flush_cache", {}), ("GET", "/health", None), ("GET", "/ping", None)]


def test_c81_the_port_is_open_and_says_503_until_the_model_answers(mimo, slow_to_load, tmp_path):
    directory, flags = slow_to_load
    with serving(tmp_path, *flags, model=directory, until="listening") as server:
        for method, path, body in CALLS:
            status, headers, reply = server.request(method, path, body)
            assert status == 503, (path, reply)
            error = reply["error"]
            assert error["message"] == "the model is loading"
            assert error["type"] == ("overloaded_error" if path == "/v1/messages" else "unavailable_error")
            assert "/health" in path or "/ping" in path or headers["Retry-After"]
        status, _, text = server.request("GET", "/metrics")
        assert status == 200 and "mimo:num_requests_running" in text
        status, _, text = server.request("GET", "/")
        assert status == 200 and "<title>mimo</title>" in text
        assert "ready:" not in server.log.read_text(), "the model was loaded before anything could be seen"
        server.wait_for(lambda: server.request("GET", "/health")[0] == 200, 60)
        for method, path, body in CALLS:
            status, _, reply = server.request(method, path, body)
            assert status == 200, (path, reply)
        log = server.log.read_text()
        assert log.index("listening: ") < log.index("warm-up: ") < log.index("ready: ")


def test_c81_a_key_is_needed_while_loading_too(mimo, slow_to_load, tmp_path):
    directory, flags = slow_to_load
    with serving(tmp_path, *flags, "--api-key", "k1", model=directory, until="listening") as server:
        assert server.request("GET", "/v1/models")[0] == 401
        assert server.request("GET", "/v1/models", headers={"x-api-key": "k1"})[0] == 503
        assert server.request("GET", "/health")[0] == 503


def test_a_signal_while_loading_ends_the_process(mimo, slow_to_load, tmp_path):
    directory, flags = slow_to_load
    with serving(tmp_path, *flags, model=directory, until="listening") as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(2) == 0
        assert "ready" not in server.log.read_text()


def test_what_cannot_be_loaded_ends_the_process_after_the_port_was_open(mimo, tiny_copy):
    shard = tiny_copy / "model_pp0_ep1_shard0.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    run = mimo("serve", tiny_copy, "--port", 0)
    assert run.status == 1
    assert "listening: " in run.err and "ready: " not in run.err
    assert shard.name in run.err.splitlines()[-1]


def test_a_taken_port_is_known_before_loading(mimo, tmp_path):
    with serving(tmp_path, model=TINY) as server:
        run = mimo("serve", TINY, "--port", server.port)
        assert run.status == 1 and str(server.port) in run.err
        assert "loaded" not in run.err


def zero_tensor(path, name):
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
    data[8 + length + begin:8 + length + end] = bytes(end - begin)
    path.write_bytes(data)


def test_c28_a_drafter_that_is_never_right_is_reported_at_the_start(mimo, tmp_path):
    """A zeroed weight of the drafter: the server starts, says so, counts it, and answers as without drafts."""
    broken = tmp_path / "broken"
    shutil.copytree(NANO, broken)
    zero_tensor(broken / "dflash" / "dflash_draft_model.safetensors", "norm.weight")
    ask = {"messages": [{"role": "user", "content": "What is 13 plus 29?"}], "temperature": 0, "max_tokens": 100}
    # All drafts of all steps: how many there are must not hang on how busy the machine is.
    with serving(tmp_path, "--speculative-adaptive-width", "off", model=broken) as server:
        log = server.log.read_text()
        assert "warning: self-check: none of " in log and "Likely causes" in log
        drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
        status, _, reply = server.post("/v1/chat/completions", **ask)
        assert status == 200
        assert server.metric("vllm:spec_decode_num_draft_tokens_total") > drafted > 0
        assert server.metric("vllm:spec_decode_num_accepted_tokens_total") == 0
    with serving(tmp_path) as server:
        assert "warning" not in server.log.read_text()
        assert server.post("/v1/chat/completions", **ask)[2]["choices"] == reply["choices"]


def test_the_warm_up_can_be_left_out(mimo, tmp_path):
    with serving(tmp_path, "--skip-server-warmup", model=TINY) as server:
        assert "warm-up" not in server.log.read_text()
        assert server.post("/v1/completions", prompt="Hi", max_tokens=1)[0] == 200


def test_the_warm_up_leaves_nothing_in_the_cache(mimo, tmp_path):
    with serving(tmp_path, model=TINY) as server:
        assert server.metric("mimo:kv_evictable_tokens") == 0
        assert server.metric("mimo:kv_available_tokens") == server.metric("mimo:kv_total_tokens")
        assert server.metric("mimo:num_requests_total") == 0
