"""What the server writes about its requests, and what it must not."""
import json
import re
import time

import pytest
from conftest import TINY
from serving import serving

ASK = [{"role": "user", "content": "What is 13 plus 29?"}]


def request_lines(server, count):
    """The JSON lines of requests, when there are `count`. All lines are JSON once the model is loaded."""
    def lines():
        *whole, _ = server.log.read_text().split("\n")
        ready = next(i for i, line in enumerate(whole) if "ready: " in line)
        return [json.loads(line) for line in whole[ready:]]

    server.wait_for(lambda: sum(line["event"] == "request" for line in lines()) >= count)
    return [line for line in lines() if line["event"] == "request"]


@pytest.fixture(scope="module")
def nano(mimo, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("logs"), "--log-format", "text") as running:
        yield running


def test_one_json_line_for_each_request(mimo, tmp_path):
    # "ready: URL" stands inside the JSON of its line.
    with serving(tmp_path, "--log-format", "json", "--served-model-name", "nano") as server:
        body = {"messages": ASK, "temperature": 0, "max_tokens": 60, "ignore_eos": True}
        _, headers, whole = server.post("/v1/chat/completions", **body)
        server.request("POST", "/v1/chat/completions", {**body, "stream": True, "n": 2}, {"X-Request-Id": "mine-1"})
        server.post("/v1/completions", prompt="x", max_tokens=0)
        server.request("GET", "/nowhere")
        server.request("POST", "/v1/completions", {"prompt": "The", "max_tokens": 1, "rid": "mine-2"})
        server.request("GET", "/health")
        lines = request_lines(server, 5)
        # A line may be written just after the client has its answer: two of them can change places.
        first, second, one = (next(line for line in lines if line["id"] == id) for id in (headers["X-Request-Id"], "mine-1", "mine-2"))
        wrong, missing = (next(line for line in lines if line["status"] == status) for status in (400, 404))
        assert len(lines) == 5
        assert (first["status"], first["route"], first["method"]) == (200, "/v1/chat/completions", "POST")
        assert first["client"] == "127.0.0.1" and first["model"] == "nano" and first["choices"] == 1
        assert not first["stream"] and first["finish"] == "length" == whole["choices"][0]["finish_reason"]
        usage = whole["usage"]
        assert first["prompt_tokens"] == usage["prompt_tokens"]
        assert first["completion_tokens"] == usage["completion_tokens"] == 60
        assert first["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert first["reasoning_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < first["ttft"] < first["duration"] and first["accept_length"] > 2
        assert first["tpot"] * 59 <= first["duration"]
        assert second["id"] == "mine-1" and second["stream"] and second["choices"] == 2
        assert second["prompt_tokens"] == first["prompt_tokens"] and second["completion_tokens"] == 120
        assert (wrong["status"], wrong["route"]) == (400, "/v1/completions") and "finish" not in wrong
        assert (missing["status"], missing["route"]) == (404, "/nowhere")
        assert one["id"] == "mine-2" and "tpot" not in one and one["ttft"] > 0


def test_a_client_that_leaves_is_499(nano):
    connection = nano.connect()
    body = {"prompt": "The", "max_tokens": 20000, "ignore_eos": True, "rid": "leaver"}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    nano.wait_for(lambda: nano.metric("mimo:num_requests_running") == 1)
    connection.close()
    nano.wait_for(lambda: re.search(r"request leaver: POST /v1/completions 499, .*, abort$", nano.log.read_text(), re.M), 5)


def test_the_text_line(nano):
    nano.request("POST", "/v1/messages", {"model": "nano", "max_tokens": 5, "messages": ASK}, {"X-Request-Id": "texty"})
    nano.wait_for(lambda: "request texty: " in nano.log.read_text())
    assert re.search(r"Z request texty: POST /v1/messages 200, client 127\.0\.0\.1, \d+\.\d{3} s, \d+ prompt tokens \(\d+ cached\), "
                     r"5 generated, queue \S+ s, TTFT \S+ s, TPOT \S+ ms, accept length \S+, length\n", nano.log.read_text())


def test_request_lines_can_be_left_out(mimo, tmp_path):
    with serving(tmp_path, "--disable-log-requests", model=TINY) as server:
        server.post("/v1/completions", prompt="x", max_tokens=1)
        server.request("GET", "/nowhere")
        time.sleep(0.2)
        assert "request " not in server.log.read_text()


MARK = "MaRk"
TOOL = {"type": "function", "function": {
    "name": MARK + "tool", "description": MARK + " described",
    "parameters": {"type": "object", "properties": {MARK + "property": {"type": "string", "enum": [MARK + "value"]}}}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "c1", "type": "function", "function": {"name": MARK + "tool", "arguments": json.dumps({MARK + "property": MARK})}}]}
REQUESTS = [
    # Answered.
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": MARK}, {"role": "user", "content": MARK}],
                              "user": MARK, "metadata": {"k": MARK}, "stop": [MARK + "stop"]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": MARK}, CALL, {"role": "tool", "tool_call_id": "c1",
                                                                                     "content": MARK}], "tools": [TOOL]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "regex": MARK + "[ab]"}),
    ("/v1/completions", {"prompt": MARK, "echo": True, "stream": True, "cache_salt": MARK}),
    ("/v1/messages", {"model": "tiny", "system": MARK, "messages": [{"role": "user", "content": MARK}]}),
    ("/tokenize", {"prompt": MARK}),
    # Refused, with messages that quote.
    ("/v1/chat/completions", {"messages": [{"role": MARK, "content": MARK}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {
        "url": "data:image/png;base64," + MARK}}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL],
                              "tool_choice": {"type": "function", "function": {"name": MARK}}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {MARK: 1, "type": MARK}, "strict": True}}}),
    ("/v1/completions", {"prompt": "x", "regex": "(" + MARK}),
    ("/v1/completions", {"prompt": "x", "model": MARK}),
    ("/v1/completions", {"prompt": "x", "temperature": MARK}),
    ("/v1/completions", {"prompt": "x", "logit_bias": {MARK: 1}}),
    ("/v1/messages", {"model": "tiny", "messages": [{"role": "user", "content": MARK}], "thinking": {"type": MARK}}),
    ("/tokenize", {"prompt": "x", "model": MARK}),
]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_c93_nothing_of_clients_and_no_key_in_logs_metrics_or_info(mimo, tmp_path, log_format):
    """Also after the engine was ended by the watchdog in the middle of an answer."""
    keys = tmp_path / "keys"
    keys.write_text(MARK + "FileKey\n")
    flags = ("--api-key", MARK + "FlagKey", "--api-key-file", keys, "--log-format", log_format, "--enable-debug-endpoints",
             "--watchdog-timeout", 3)
    with serving(tmp_path, *flags, model=TINY, environment={"MIMO_API_KEY": ""}) as server:
        key = {"x-api-key": MARK + "FileKey"}
        assert server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {MARK}FlagKey"})[0] == 200
        assert server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {MARK}Wrong"})[0] == 401
        statuses = []
        for path, body in REQUESTS:
            status, _, _ = server.request("POST", path, {"max_tokens": 4, **body} if path.startswith("/v1") else body, key)
            statuses.append(status)
            assert status < 500, (path, body)
        assert statuses[:6] == [200] * 6 and all(status in (400, 404) for status in statuses[6:]), statuses
        assert server.request("POST", "/v1/chat/completions", ('{"' + MARK + '":').encode(), key)[0] == 400
        for path in ("/metrics", "/server_info", "/get_model_info", "/v1/models"):
            status, _, text = server.request("GET", path, headers=key)
            assert status == 200 and MARK not in json.dumps(text)
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": MARK, "max_tokens": 7000, "ignore_eos": True}), key)
        server.wait_for(lambda: server.metric("mimo:num_requests_running") == 1)
        server.request("POST", "/debug/stall", {"seconds": 60}, key)
        assert server.process.wait(20) == 3
        log = server.log.read_text()
        assert log.count("/v1/chat/completions") >= 7  # the lines are there
        assert MARK not in log
