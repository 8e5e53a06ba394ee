"""`mimo eval --url` against a scripted server: right and wrong answers, and everything a server can do wrong."""
import json
import socket
import time

import pytest

from openai_stub import Reply, Stub, message

COUNT = 8


@pytest.fixture
def gsm(tmp_path):
    path = tmp_path / "gsm.jsonl"
    path.write_text("".join(json.dumps({"id": f"p-{i}", "question": f"Question {i}", "answer": str(i)}) + "\n" for i in range(COUNT)))
    return path


def number(body):
    return int(body["messages"][-1]["content"].split()[-1])


def right(path, body):
    return message(f"So \\boxed{{{number(body)}}}.", token_ids=[number(body), 7], reasoning_content="I think 99")


@pytest.fixture
def ask(mimo, gsm):
    def run(stub, *more):
        url = stub if isinstance(stub, str) else stub.url
        return mimo("eval", "nano-gsm", "--url", url, "--data", gsm, "--json", *more)

    return run


def last_line(run):
    return json.loads(run.out.splitlines()[-1])


def test_right_and_wrong_answers(ask):
    def answer(path, body):
        return right(path, body) if number(body) % 2 == 0 else message("It is 1000.", finish="length", token_ids=[1, 2])

    with Stub(answer) as stub:
        out = ask(stub, "--concurrency", 3, "-n", 77, "--no-thinking").json()
    assert out["accuracy"] == 0.5 and out["truncated"] == COUNT / 2 and out["failed"] == 0
    assert out["accept_length"] is None
    assert out["prompt_tokens"] == 3 * COUNT and out["generated_tokens"] == 2 * COUNT
    assert [item["token_ids"] for item in out["items"]][:2] == [[0, 7], [1, 2]]
    assert out["items"][0]["reasoning_content"] == "I think 99"
    path, body = stub.requests[0]
    assert path == "/v1/chat/completions"
    assert body["model"] == "stub-model" and body["max_tokens"] == 77 and body["stream"] is False
    assert body["temperature"] == 0 and body["return_token_ids"] is True
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_connections_are_kept_and_counted(ask):
    def answer(path, body):
        time.sleep(0.05)
        return right(path, body)

    with Stub(answer) as stub:
        out = ask(stub, "--concurrency", 4).json()
    assert out["accuracy"] == 1
    assert stub.most_at_once == 4
    assert stub.connections == 1 + 4  # the model list, and one for each problem in flight


def test_a_closed_connection_is_replaced(ask):
    with Stub(right, close_after=1) as stub:
        out = ask(stub, "--concurrency", 1).json()
    assert out["accuracy"] == 1 and out["failed"] == 0
    assert len(stub.requests) == COUNT


def test_url_with_and_without_v1_and_a_server_without_a_model_list(ask):
    with Stub(right, models=False) as stub:
        assert ask(stub.url + "/v1").json()["accuracy"] == 1
        assert ask(stub.url + "/", "--model-name", "mine", "--limit", 1).json()["accuracy"] == 1
        assert stub.requests[0][1]["model"] == "default"
        assert stub.requests[-1][1]["model"] == "mine"
        assert {path for path, _ in stub.requests} == {"/v1/chat/completions"}


def test_the_key_comes_from_the_flag_or_the_environment_and_is_not_shown(ask, monkeypatch):
    with Stub(right) as stub:
        run = ask(stub, "--api-key", "secret-1", "--limit", 1)
        monkeypatch.setenv("MIMO_API_KEY", "secret-2")
        other = ask(stub, "--limit", 1)
    assert [headers["Authorization"] for headers in stub.headers] == ["Bearer secret-1", "Bearer secret-2"]
    assert "secret" not in run.out + run.err + other.out + other.err


@pytest.mark.parametrize("reply, named", [
    (Reply({"error": {"message": "out of memory on rank 3"}}, status=500), ["status 500", "out of memory on rank 3"]),
    (Reply(b"not json at all"), ["invalid JSON", "not json at all"]),
    (Reply(b"\xff\xfe\x00garbage", status=502), ["status 502"]),
    (Reply({"choices": []}), ["choices[0]"]),
    (Reply({"choices": [{"text": "x"}]}), ["choices[0].message"]),
    (Reply(b"[" * 100000), []),
    (Reply(b"{}", length=500), []),
    (Reply(drop=True), []),
    (Reply(b"", status=204), ["status 204"]),
])
def test_a_bad_answer_fails_its_problem_alone(ask, reply, named):
    with Stub(lambda path, body: reply if number(body) == 5 else right(path, body)) as stub:
        run = ask(stub, "--concurrency", 2)
    assert run.status == 1
    out = last_line(run)
    assert out["failed"] == 1 and out["correct"] == COUNT - 1
    assert out["accuracy"] == (COUNT - 1) / COUNT
    item = out["items"][5]
    assert item["error"] and item["token_ids"] is None and item["correct"] is False
    assert "1 of 8 problems got no answer" in run.err and "p-5" in run.err
    for text in named:
        assert text in run.err, run.err
    assert len(run.err) < 4000


def test_slow_answers_time_out(ask):
    with Stub(lambda path, body: Reply(right(path, body), delay=3 if number(body) == 2 else 0)) as stub:
        start = time.monotonic()
        run = ask(stub, "--timeout", 0.5)
        assert time.monotonic() - start < 3
    assert run.status == 1
    assert last_line(run)["failed"] == 1 and "0.5 s" in run.err


def test_a_huge_answer_is_refused(ask):
    with Stub(lambda path, body: Reply(b"x", length=1 << 40) if number(body) == 1 else right(path, body)) as stub:
        run = ask(stub, "--timeout", 20)
    assert run.status == 1
    assert last_line(run)["failed"] == 1 and "more than" in run.err


def test_nobody_listens(ask):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        port = taken.getsockname()[1]
        ask(f"http://127.0.0.1:{port}").refusal(f"127.0.0.1:{port}", "cannot connect")
    ask("http://no-such-host.invalid").refusal("no-such-host.invalid")


def test_tool_calls_come_from_the_message(mimo, tmp_path):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}}}}]
    data = tmp_path / "tools.jsonl"
    data.write_text("".join(json.dumps({
        "id": f"t-{i}", "tools": tools, "messages": [{"role": "user", "content": f"Call {i}"}],
        "expected": [{"name": "add", "arguments": {"a": i}}] if i < 4 else [], "enable_thinking": i % 2 == 0}) + "\n" for i in range(6)))

    def call(name, arguments):
        return [{"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]

    replies = [
        message(None, finish="tool_calls", tool_calls=call("add", '{"a": 0}')),
        message(None, tool_calls=call("add", '{"a": "1"}')),  # a string is not the integer
        message(None, tool_calls=call("add", '{"a": 2')),  # cut
        message(None, tool_calls=call("subtract", '{"a": 3}')),  # not declared
        message("No call is needed."),
        message("Calling.", tool_calls=call("add", "{}")),
    ]
    with Stub(lambda path, body: replies[number(body)]) as stub:
        out = mimo("eval", "toolcall", "--url", stub.url, "--data", data, "--concurrency", 1, "--json").json()
    assert [item["correct"] for item in out["items"]] == [True, False, False, False, True, False]
    assert [item["valid"] for item in out["items"]] == [True, True, False, False, True, True]
    assert out["invalid"] == 2
    assert stub.requests[0][1]["tools"] == tools
    assert [body["chat_template_kwargs"]["enable_thinking"] for _, body in stub.requests] == [True, False] * 3


def test_completions(mimo, tmp_path):
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps({"question": f"Q {i}", "answer": f"#### {i}"}) + "\n" for i in range(7)))

    def answer(path, body):
        assert path == "/v1/completions"
        return {"choices": [{"text": " 1 and 6.", "finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}

    with Stub(answer) as stub:
        out = mimo("eval", "gsm8k", "--protocol", "p3", "--url", stub.url, "--data", data, "--json").json()
    assert [item["correct"] for item in out["items"]] == [False, True]
    assert stub.requests[0][1]["prompt"].startswith("Question: Q 0\nAnswer: ")
    assert stub.requests[0][1]["stop"] == ["Question", "Assistant:", "<|separator|>"]


def test_needles_are_counted_with_the_given_tokenizer(mimo, tmp_path):
    from conftest import TINY
    data = tmp_path / "needle.json"
    data.write_text(json.dumps({"needle": "{name} has {code}.", "question": "What has {name}?", "names": ["Ada"]}))
    (tmp_path / "haystack.txt").write_text("".join(f"Sentence number {i} tells of hills.\n" for i in range(200)))
    counted = 300

    def answer(path, body):
        text = body["messages"][0]["content"]
        return message(f"It is {text.split('Ada has ')[1][:7]}", prompt_tokens=counted)

    arguments = ("eval", "needle", "--data", data, "--tokenizer", TINY, "--lengths", 300, "--depths", "0.5,0.9",
                 "--samples", 1, "--json")
    with Stub(answer) as stub:
        out = mimo(*arguments, "--url", stub.url).json()
        assert out["accuracy"] == 1 and len(out["items"]) == 2
        counted = 301  # the server's tokenizer is another one
        run = mimo(*arguments, "--url", stub.url)
    assert run.status == 1 and "301 prompt tokens, expected 300" in run.err
