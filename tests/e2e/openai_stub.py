"""A server of the OpenAI form that answers from a script: what `mimo eval --url` is tested against."""
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Reply:
    """What to send for one request. `body`: bytes as they are, or an object for JSON."""

    def __init__(self, body=b"", status=200, delay=0.0, length=None, drop=False):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status, self.delay, self.drop = status, delay, drop
        self.length = len(self.body) if length is None else length


def message(content=None, finish="stop", token_ids=None, prompt_tokens=3, **fields):
    """A chat completion with one choice."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **fields}, "finish_reason": finish}
    if token_ids is not None:
        choice["token_ids"] = token_ids
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(token_ids or [0, 0])}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}


class Stub:
    """`answer(path, body)` gives the Reply, or an object sent with status 200. Requests are kept in order of arrival."""

    def __init__(self, answer, models=True, close_after=None):
        self.requests, self.headers, self.connections = [], [], 0
        self.most_at_once = self.at_once = 0
        stub, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                with lock:
                    stub.connections += 1
                self.served = 0

            def log_message(self, *arguments):
                pass

            def send(self, reply):
                time.sleep(reply.delay)
                if reply.drop:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(reply.length))
                self.end_headers()
                try:
                    self.wfile.write(reply.body)
                except OSError:
                    pass
                self.served += 1
                # Closes without saying so, as idle connections are closed.
                if close_after is not None and self.served >= close_after or reply.length != len(reply.body):
                    self.close_connection = True

            def do_GET(self):
                if models and self.path == "/v1/models":
                    self.send(Reply({"data": [{"id": "stub-model"}]}))
                else:
                    self.send(Reply({"error": {"message": "not here"}}, status=404))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    stub.requests.append((self.path, body))
                    stub.headers.append(dict(self.headers))
                    stub.at_once += 1
                    stub.most_at_once = max(stub.most_at_once, stub.at_once)
                try:
                    reply = answer(self.path, body)
                    self.send(reply if isinstance(reply, Reply) else Reply(reply))
                finally:
                    with lock:
                        stub.at_once -= 1

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.server.shutdown()
        self.server.server_close()
