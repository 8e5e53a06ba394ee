"""Routes of operators, and health that tells the truth."""
import json
import signal
import threading
import time

import pytest
from conftest import TINY
from serving import message_of, openai_chunks, serving

ENDLESS = {"prompt": "The", "max_tokens": 7000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(mimo, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("admin"), "--max-running-requests", 2, "--enable-priority-scheduling",
                 model=TINY) as running:
        yield running


def start(server, path, **body):
    connection = server.connect()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


def running(server, count):
    server.wait_for(lambda: server.metric("mimo:num_requests_running") == count)


def test_health_generate_makes_a_token(server):
    before = server.metric("mimo:num_requests_total")
    for method in ("GET", "POST"):
        assert server.request(method, "/health_generate")[0] == 200
    assert server.metric("mimo:num_requests_total") == before  # not a client's


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_aborted_request_ends_with_what_it_has(server, path, streamed):
    body = {**ENDLESS, "stream": streamed, "rid": "job-7"}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    server.wait_for(server.idle)
    aborted = server.metric("mimo:num_aborted_requests_total")
    connection = start(server, path, **body)
    running(server, 1)
    assert server.post("/abort_request", rid="job-8")[2] == {"success": True, "aborted": 0}
    time.sleep(0.1)
    assert server.post("/abort_request", rid="job-7")[2] == {"success": True, "aborted": 1}
    reply = connection.getresponse()
    if streamed:
        _, finish = message_of(openai_chunks(reply)) if "chat" in path else \
            (None, openai_chunks(reply)[-1]["choices"][0]["finish_reason"])
    else:
        whole = json.loads(reply.read())
        assert reply.status == 200 and 0 < whole["usage"]["completion_tokens"] < 7000
        finish = whole["choices"][0]["finish_reason"]
    assert finish == "abort"
    server.wait_for(server.idle, 2)
    assert server.metric("mimo:num_aborted_requests_total") == aborted + 1


def test_abort_all_ends_running_and_waiting(server):
    connections = [start(server, "/v1/completions", **ENDLESS) for _ in range(6)]
    server.wait_for(lambda: server.metric("mimo:num_requests_running") == 2
                    and server.metric("mimo:num_requests_waiting") == 4)
    assert server.post("/abort_request", abort_all=True)[2]["aborted"] == 6
    for connection in connections:
        assert json.loads(connection.getresponse().read())["choices"][0]["finish_reason"] == "abort"
    server.wait_for(server.idle, 2)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"{", b'{"rid":7}', b'{"abort_all":"yes"}'])
def test_a_wrong_abort_is_a_400(server, body):
    status, _, reply = server.request("POST", "/abort_request", body)
    assert status == 400 and reply["error"]["message"]


def test_priority_counts_where_it_is_enabled_and_is_a_400_elsewhere(server, mimo, tmp_path):
    assert server.post("/v1/completions", prompt="x", max_tokens=1, priority=5)[0] == 200
    with serving(tmp_path, model=TINY) as plain:
        for path, body in [("/v1/completions", {"prompt": "x"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})]:
            status, _, reply = plain.post(path, **body, max_tokens=1, priority=5)
            assert status == 400 and reply["error"]["param"] == "priority"
            assert "--enable-priority-scheduling" in reply["error"]["message"]
            assert plain.post(path, **body, max_tokens=1, priority=0)[0] == 200


@pytest.mark.parametrize("constraint", [{"regex": "yes|no"}, {"structured_outputs": {"choice": ["up", "down"]}}])
@pytest.mark.parametrize("speculation", ["DFLASH", "NONE"])
def test_a_complete_constraint_ends_the_answer_whatever_min_tokens_says(mimo, tmp_path, constraint, speculation):
    with serving(tmp_path, "--speculative-algorithm", speculation) as nano:
        for body in ({}, {"temperature": 0}, {"stop_token_ids": [5]}):
            status, _, reply = nano.post("/v1/chat/completions", messages=[{"role": "user", "content": "Well?"}], **constraint,
                                         **body, min_tokens=40, max_tokens=60, chat_template_kwargs={"enable_thinking": False})
            assert status == 200, reply
            choice = reply["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert choice["message"]["content"] in ("yes", "no", "up", "down")
        # Where the constraint leaves room, the minimum holds.
        status, _, reply = nano.post("/v1/chat/completions", messages=[{"role": "user", "content": "Well?"}], regex="[ab]{1,50}",
                                     min_tokens=20, max_tokens=60, chat_template_kwargs={"enable_thinking": False})
        assert status == 200 and reply["usage"]["completion_tokens"] >= 20


def test_c81_a_stuck_engine_is_seen_and_new_requests_get_503(mimo, tmp_path):
    with serving(tmp_path, "--enable-debug-endpoints", "--health-timeout", 0.5, model=TINY) as server:
        assert server.request("GET", "/health")[0] == 200
        assert server.post("/debug/stall", seconds=4)[0] == 200
        server.wait_for(lambda: server.request("GET", "/health")[0] == 503, 3)
        status, headers, reply = server.post("/v1/completions", prompt="x", max_tokens=1)
        assert status == 503 and "does not answer" in reply["error"]["message"] and headers["Retry-After"]
        assert server.request("GET", "/metrics")[0] == 200
        server.wait_for(lambda: server.request("GET", "/health")[0] == 200, 10)
        assert server.post("/v1/completions", prompt="x", max_tokens=1)[0] == 200


def test_c81_the_watchdog_ends_a_process_whose_engine_is_stuck(mimo, tmp_path):
    with serving(tmp_path, "--enable-debug-endpoints", "--watchdog-timeout", 1, model=TINY) as server:
        server.post("/debug/stall", seconds=60)
        assert server.process.wait(10) == 3


def test_debug_routes_are_not_there_unless_asked_for(server):
    assert server.post("/debug/stall", seconds=0)[0] == 404


def leaving(server):
    try:
        return server.request("GET", "/health")[0] == 503
    except ConnectionError:  # it came just when idle connections were closed
        return False


def test_c87_a_second_signal_ends_at_once(mimo, tmp_path):
    with serving(tmp_path, model=TINY) as server:
        connection = start(server, "/v1/completions", **ENDLESS, stream=True)
        running(server, 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: leaving(server))
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(2) == 0 and time.monotonic() - began < 1
        connection.close()


def test_many_aborts_while_requests_come_and_go(server):
    """Ids that are in use by several requests, aborted while they start and end."""
    stop = threading.Event()
    bad = []

    def work():
        while not stop.is_set():
            status, _, reply = server.post("/v1/completions", prompt="The", max_tokens=20, ignore_eos=True, rid="same")
            if status != 200 or reply["choices"][0]["finish_reason"] not in ("length", "abort"):
                bad.append(reply)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        server.post("/abort_request", rid="same")
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join()
    assert not bad
    server.wait_for(server.idle)
