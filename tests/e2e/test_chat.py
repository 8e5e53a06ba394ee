"""`mimo chat`: through pipes, in a pseudo-terminal, against our server and against a stub."""
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import BINARY
from serving import NANO, serving

QUESTION = ("Tom has 32 feathers. Jack has twice as many feathers as Tom. Emily has 22 more feathers than Jack. "
            "What is the number of feathers that Emily has?")
ANSWER = "The answer is \\boxed{86}."
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


@pytest.fixture(scope="module")
def server(mimo, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("chat")) as running:
        yield running


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in ("MIMO_API_KEY", "NO_COLOR")}
    return {**kept, "TERM": "xterm", **more}


def piped(*arguments, lines, **variables):
    done = subprocess.run([BINARY, "chat", *map(str, arguments)], input="".join(line + "\n" for line in lines), text=True,
                          capture_output=True, timeout=60, env=environment(**variables))
    return done.returncode, done.stdout, done.stderr


class Terminal:
    """The chat as somebody at a terminal sees it."""

    def __init__(self, *arguments, **variables):
        self.process, self._end = pty.fork()
        if self.process == 0:
            os.execve(BINARY, ["mimo", "chat", *map(str, arguments)], environment(**variables))
        self.seen = ""

    def type(self, text):
        os.write(self._end, text.encode())

    def until(self, text, seconds=30):
        """What came up to and with `text`; the rest is kept."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen[-2000:]!r}"
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._end, 65536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:  # the other end is closed
                    assert text in self.seen, f"ended without {text!r}: {self.seen[-2000:]!r}"
        before, self.seen = self.seen.split(text, 1)
        return before + text

    def some(self):
        """Waits for more than an echo, which is the answer that has begun."""
        self.until("\n")
        end = time.monotonic() + 30
        while len(self.seen) < 20:
            assert time.monotonic() < end, self.seen
            if select.select([self._end], [], [], 0.1)[0]:
                self.seen += os.read(self._end, 65536).decode(errors="replace")

    def kill(self):
        with contextlib.suppress(OSError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            os.close(self._end)

    def ended(self, seconds=20):
        """The exit status."""
        end = time.monotonic() + seconds
        while True:
            if select.select([self._end], [], [], 0)[0]:  # what nobody reads holds the other side up
                with contextlib.suppress(OSError):
                    self.seen += os.read(self._end, 65536).decode(errors="replace")
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                os.close(self._end)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, "it does not end"
            time.sleep(0.02)


@pytest.fixture
def terminal(mimo):
    """terminal("--url", ...) opens a Terminal; none outlives its test."""
    opened = []

    def open_one(*arguments, **variables):
        opened.append(Terminal(*arguments, **variables))
        return opened[-1]

    yield open_one
    for one in opened:
        one.kill()


def stat(process):
    """State and parent of a process, or None."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[:2]


def children_of(process):
    return [int(entry.name) for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and (stat(entry.name) or ["", ""])[1] == str(process)]


def alive(process):
    return (stat(process) or ["Z"])[0] != "Z"


def test_lines_of_a_pipe_are_answered_by_a_checkpoint(mimo):
    status, out, err = piped(NANO, "--temperature", 0, lines=[QUESTION, "", "/clear", QUESTION])
    assert (status, err) == (0, "")
    assert out == f"{ANSWER}\n{ANSWER}\n"


def test_the_conversation_is_kept_saved_and_forgotten(server, tmp_path):
    path = tmp_path / "talk.json"
    status, out, err = piped("--url", server.url, "--temperature", 0,
                             lines=["/system Be short.", QUESTION, "And with one more?", f"/save {path}", "/clear", "/system",
                                    QUESTION, f"/save {path}2"])
    assert (status, err) == (0, "") and out.endswith(ANSWER + "\n")
    saved = json.loads(path.read_text())
    assert [turn["role"] for turn in saved["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert saved["messages"][0]["content"] == "Be short." and saved["messages"][1]["content"] == QUESTION
    question, answer = json.loads((tmp_path / "talk.json2").read_text())["messages"]
    assert question == {"role": "user", "content": QUESTION}
    assert answer["content"] == ANSWER and "64" in answer["reasoning_content"]


def test_what_is_saved_can_be_generated_from(mimo, server, tmp_path):
    path = tmp_path / "talk.json"
    assert piped("--url", server.url, "--max-tokens", 5, lines=["/think off", "Hi.", f"/save {path}"])[0] == 0
    run = mimo("generate", NANO, "--chat", path, "--max-tokens", 4)
    assert run.status == 0, run.err


def test_settings_and_bad_lines(server):
    status, out, err = piped("--url", server.url, lines=["/set", "/set temperature 0", "/set max_tokens 3", "/think off", QUESTION,
                                                         "/set temperature", "/set temperature hot", "/set heat 3", "/nothing",
                                                         "/think maybe", "/save", "/set temperature 99", "Hi."])
    assert status == 1
    assert "temperature (the server's)" in out
    errors = err.splitlines()
    assert [line.split(":")[0] for line in errors] == ["mimo"] * 6
    for said, line in zip(['"hot" is not a number', "heat", "/nothing", "maybe", "which file", "status 400: temperature"], errors):
        assert said in line
    # Three tokens, and after the failure nothing.
    assert 0 < len(out.splitlines()[-1]) < 40
    assert piped("--url", server.url, "--temperature", "hot", lines=[])[2] == 'mimo: temperature: "hot" is not a number\n'


def test_a_message_may_begin_with_a_slash_and_have_lines(stub):
    stub.pieces = ["ok"]
    assert piped("--url", stub.url, lines=["//path", "one\\", "two", "last\\"])[1] == "ok\n" * 3
    assert [request["messages"][-1]["content"] for request in stub.requests] == ["/path", "one\ntwo", "last"]


def test_keys(mimo, tmp_path):
    with serving(tmp_path, "--api-key", "s3cret-key") as server:
        status, _, err = piped("--url", server.url, lines=["Hi."])
        assert status == 1 and "status 401" in err
        assert piped("--url", server.url + "/v1", "--max-tokens", 3, lines=["Hi."], MIMO_API_KEY="s3cret-key")[0] == 0
        assert piped("--url", server.url, "--api-key", "s3cret-key", "--max-tokens", 3, lines=["Hi."])[0] == 0


@pytest.mark.parametrize("arguments,said", [
    (["--url", "http://127.0.0.1:1"], "127.0.0.1:1: Connection refused"),
    (["--url", "ftp://x"], "ftp://x"), (["--url", "https://x"], "https is not supported"),
    (["/no/such/model"], "/no/such/model"), (["--url", "http://x", "/dir"], "excludes"), (["--thinking", "loud"], "loud"),
])
def test_what_cannot_work_is_said(mimo, arguments, said):
    status, out, err = piped(*arguments, lines=["Hi."])
    assert status > 0 and out == "" and said in err


# ---- At a terminal

def test_a_terminal_shows_dimmed_thinking_and_figures(server, terminal):
    chat = terminal("--url", server.url, "--temperature", 0)
    assert "nano. /help shows" in chat.until("> ")
    chat.type("/help\n")
    assert "/clear" in chat.until("Ctrl-C stops") and chat.until("> ")
    chat.type(QUESTION + "\n")
    # Each piece that arrives is dimmed by itself; how many tokens it has depends on the drafts.
    seen = chat.until("tokens/s").replace(f"\x1b[0m{DIM}", "")
    assert f"{DIM}Tom has 32 feathers." in seen
    thinking, answer = seen.split(ANSWER)
    assert "64" in thinking and thinking.endswith("\n\n")
    assert re.search(r"\[\d+ tokens, ", answer)
    assert re.search(r"accept length \d\.\d\d\]", chat.until("> "))
    chat.type("\x04")  # Ctrl-D
    assert chat.ended() == 0


def test_colors_can_be_off(server, terminal):
    chat = terminal("--url", server.url, "--max-tokens", 20, NO_COLOR="1")
    chat.until("> ")
    chat.type(QUESTION + "\n")
    assert "\x1b" not in chat.until("cut by the token limit]\n")
    chat.until("> ")
    chat.type("/exit\n")
    assert chat.ended() == 0


def test_ctrl_c_stops_the_answer_and_then_leaves(server, terminal):
    server.wait_for(server.idle)
    aborted = server.metric("mimo:num_aborted_requests_total")
    chat = terminal("--url", server.url, "--min-tokens", 20000, "--temperature", 1)
    chat.until("> ")
    chat.type("Tell me everything.\n")
    chat.some()
    server.wait_for(lambda: server.metric("mimo:num_requests_running") == 1)
    chat.type("\x03")
    assert "stopped]" in chat.until("> ")
    server.wait_for(server.idle, 5)
    assert server.metric("mimo:num_aborted_requests_total") == aborted + 1
    # The chat goes on.
    for line in ("/set min_tokens 5\n", "/set max_tokens 5\n"):
        chat.type(line)
        chat.until("> ")
    chat.type("And now?\n")
    chat.until("cut by the token limit]")
    chat.until("> ")
    chat.type("\x03")
    assert chat.ended() == 0


@pytest.mark.parametrize("how", ["ctrl-c", "kill"])
def test_the_own_server_ends_with_the_chat(terminal, how):
    chat = terminal(NANO, "--min-tokens", 20000)
    assert "Loading the model" in chat.until("> ")
    (child,) = children_of(chat.process)
    assert "--api-key" not in Path(f"/proc/{child}/cmdline").read_text()
    chat.type("Tell me everything.\n")
    chat.some()
    if how == "kill":
        os.kill(chat.process, signal.SIGKILL)
        assert chat.ended() == -signal.SIGKILL
    else:
        chat.type("\x03")
        chat.until("> ")
        assert alive(child)  # Ctrl-C was not for it
        chat.type("\x03")
        assert chat.ended() == 0
    end = time.monotonic() + 10
    while alive(child):
        assert time.monotonic() < end, "the server lives on"
        time.sleep(0.02)


# ---- Against another server

class Stub:
    """Answers with `pieces`, the one after the other; see `tail` for how the stream ends."""

    def __init__(self):
        self.pieces, self.tail, self.requests = [], "data: [DONE]\n\n", []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                self.reply(200, "application/json", json.dumps({"data": [{"id": "stub"}]}))

            def do_POST(self):
                stub.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in stub.pieces]
                self.reply(200, "text/event-stream", "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events) + stub.tail)

            def reply(self, status, kind, text):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.end_headers()
                for i in range(0, len(text), 7):  # cut anywhere
                    self.wfile.write(text[i:i + 7].encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def stub(mimo):
    made = Stub()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_control_characters_of_a_model_do_not_reach_the_terminal(stub, terminal):
    stub.pieces = ["a\x1b[2J\x07", "\u009b31mb", "é\n"]
    chat = terminal("--url", stub.url)
    chat.until("> ")
    chat.type("x\n")
    chat.until("x\n")
    assert chat.until("é").replace(PLAIN, "") == "a[2J31mbé"
    chat.type("\x04")
    chat.ended()
    assert piped("--url", stub.url, lines=["x"])[1] == "a\x1b[2J\x07\u009b31mbé\n\n"


@pytest.mark.parametrize("tail,said", [
    ("", "connection was lost"), ('data: {"error": {"message": "out of luck"}}\n\n', "out of luck"),
    ("data: {\n\n", "event"), ("nonsense\n\n", "not a line of an event stream"), ('data: {"choices": [1]}\n\n', "choices[0]"),
])
def test_a_broken_stream_is_said_and_the_chat_goes_on(stub, tail, said):
    stub.pieces, stub.tail = ["part"], tail
    status, out, err = piped("--url", stub.url, "--model", "named", lines=["x", "y"])
    assert status == 1 and out == "part\n" * 2
    assert err.count(said) == 2 and len(err.splitlines()) == 2
    assert stub.requests[1]["model"] == "named"
    assert [turn["content"] for turn in stub.requests[1]["messages"]] == ["x", "part", "y"]
