"""A running `mimo serve`, and a strict reader of its event streams."""
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import time

from conftest import BINARY, ROOT

NANO = ROOT / "models" / "nano"


class Server:
    def __init__(self, process, port, log):
        self.process, self.port, self.log = process, port, log

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, parsed JSON or text)."""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            text = reply.read().decode()
            kind = reply.getheader("Content-Type") or ""
            return reply.status, dict(reply.getheaders()), json.loads(text) if "json" in kind else text
        finally:
            connection.close()

    def post(self, path, **body):
        return self.request("POST", path, body)

    def metric(self, name):
        _, _, text = self.request("GET", "/metrics")
        return float(re.search(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)[1])

    def wait_for(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.02)

    def idle(self):
        return self.metric("mimo:num_requests_running") == 0 and self.metric("mimo:num_requests_waiting") == 0


@contextlib.contextmanager
def serving(tmp_path, *flags, model=NANO, until="ready", environment=None):
    """A server whose log has said `until`: "ready", or "listening" while the model is loaded."""
    log_path = tmp_path / "serve.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen([BINARY, "serve", model, "--port", "0", *map(str, flags)], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, env={**os.environ, "MIMO_API_KEY": "", **(environment or {})})
    try:
        deadline = time.monotonic() + 60
        while not (said := re.search(until + r": http://127\.0\.0\.1:(\d+)", log_path.read_text(errors="replace"))):
            assert process.poll() is None, log_path.read_text(errors="replace")
            assert time.monotonic() < deadline, f"no '{until}' in time"
            time.sleep(0.02)
        yield Server(process, int(said[1]), log_path)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def read_events(reply):
    """The events of an SSE stream as (name or None, data text), by the letter: only data, event and comment lines, each
    event ended by an empty line, nothing after the last one."""
    text = reply.read().decode()  # invalid UTF-8 fails here
    assert text.endswith("\n\n"), text[-200:]
    events = []
    for block in text[:-2].split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        name = None
        if lines[0].startswith("event: "):
            name = lines.pop(0)[len("event: "):]
        assert len(lines) == 1 and lines[0].startswith("data: "), block
        events.append((name, lines[0][len("data: "):]))
    return events


def openai_chunks(reply):
    """Parsed chunks of an OpenAI stream, after the checks that hold for every stream (spec serving 7.5)."""
    assert reply.status == 200
    assert reply.getheader("Content-Type").startswith("text/event-stream")
    events = read_events(reply)
    assert all(name is None for name, _ in events)
    assert events[-1][1] == "[DONE]"
    chunks = [json.loads(data) for _, data in events[:-1]]
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    finished = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert not finished.get(choice["index"]), "a chunk after the one with finish_reason"
            finished[choice["index"]] = choice["finish_reason"] is not None
    assert all(finished.values()), finished
    return chunks


def message_of(chunks, index=0):
    """The message and finish_reason that the chunks of one choice make."""
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
            finish = choice["finish_reason"] or finish
    return message, finish
