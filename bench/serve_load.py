#!/usr/bin/env python3
"""Loads `mimo serve` with clients that ask, stream, leave and come back, and compares every answer with its cold one.

    bench/serve_load.py [--mimo build/mimo] [--model models/nano] [--requests 2000] [--clients 64] [--runs NAME ...]

Cases first get their cold answers, one at a time from a server without prefix cache and without drafts. Then, for each
run, a server with drafts on and with pools too small for its requests serves them in random order to many clients: chat
and completions, streamed and whole, shared beginnings and conversations, n, seeds, stop strings, structured output, tools;
a part of the clients leaves in the middle of sending, waiting, prefill or decoding. Token ids must be the cold ones,
sampled answers (by seed) included. Meanwhile /health must say yes and /metrics must answer. In the end nothing may run,
the pools must be whole after /flush_cache, memory after all requests must be what it was after a quarter of them (with
host memory, which fills up first, after half of them), requests must have been sent back and pages evicted, the log must
have no error, and SIGTERM must end in status 0.

Prints a table in Markdown, and what was wrong; exit status 1 if anything was.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from nano_eval import ROOT, table

TIGHT = ("--schedule-conservativeness", "0.05", "--max-total-tokens")
HOST = ("--host-kv-gb", "0.1", "--host-kv-min-tokens", "32")  # less than all prefixes need
# KV format, which the cold server has too, and flags of the server under load beside drafts and port. Everywhere the full
# pool is short, in some runs the window pool as well.
RUNS = {
    "bf16-page16": ("bf16", (*TIGHT, "1280", "--page-size", "16", "--chunked-prefill-size", "128")),
    "fp8-page16": ("fp8", (*TIGHT, "1536", "--swa-full-tokens-ratio", "1", "--page-size", "16", "--chunked-prefill-size", "192",
                           "--schedule-policy", "lpm")),
    "bf16-page1": ("bf16", (*TIGHT, "1536", "--swa-full-tokens-ratio", "1", "--page-size", "1", "--chunked-prefill-size", "64",
                            "--max-queued-requests", "24")),
    "fp8-page1": ("fp8", (*TIGHT, "1280", "--page-size", "1", "--chunked-prefill-size", "100", "--no-mixed")),
    "bf16-page16-host": ("bf16", (*TIGHT, "1280", "--page-size", "16", "--chunked-prefill-size", "128", *HOST)),
    "fp8-page1-host": ("fp8", (*TIGHT, "1536", "--swa-full-tokens-ratio", "1", "--page-size", "1", "--chunked-prefill-size",
                               "64", *HOST)),
}
LONGEST = 1200  # tokens of a prompt and its answer; the smallest pool holds 1,280
TOO_MANY = 50  # differences after which a run is given up


class Failure(Exception):
    pass


class Server:
    def __init__(self, arguments, folder, *flags, cold=False):
        self.log = Path(folder) / f"serve-{time.monotonic_ns()}.log"
        program = arguments.cold_mimo if cold else arguments.mimo
        command = [program, "serve", arguments.model, "--port", "0", "--threads", str(arguments.threads), *flags]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, "MIMO_API_KEY": ""})
        end = time.monotonic() + 300
        while not (ready := re.search(r"ready: http://127\.0\.0\.1:(\d+)", self.text())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failure(f"{' '.join(map(str, command))} did not get ready:\n{self.text()}")
            time.sleep(0.05)
        self.port = int(ready[1])

    def text(self):
        return self.log.read_text(errors="replace")

    def connect(self, timeout=600):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None):
        """(status, parsed JSON or text)"""
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            text = reply.read().decode()
            return reply.status, json.loads(text) if "json" in (reply.getheader("Content-Type") or "") else text

    def post(self, path, **body):
        status, reply = self.ask("POST", path, body)
        if status != 200:
            raise Failure(f"{path}: {status} {reply}")
        return reply

    def metrics(self):
        _, text = self.ask("GET", "/metrics")
        return {name: float(value) for name, value in re.findall(r"^(mimo:\w+)\{model_name=\"[^\"]*\"\} (\S+)$", text, re.M)}

    def resident_mb(self):
        return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def wait_idle(self, seconds=120):
        end = time.monotonic() + seconds
        while (now := self.metrics())["mimo:num_requests_running"] or now["mimo:num_requests_waiting"]:
            if time.monotonic() > end:
                raise Failure(f"{now['mimo:num_requests_running']:.0f} requests run and "
                              f"{now['mimo:num_requests_waiting']:.0f} wait {seconds} s after the last client")
            time.sleep(0.05)
        return now

    def stop(self):
        """Exit status after SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failure("no end within 120 s of SIGTERM") from None


class Case:
    """A request, with the ids that it has to give."""

    def __init__(self, kind, path, body, choices=1):
        self.kind, self.path, self.body = kind, path, body
        self.sampled = body["temperature"] > 0
        self.n = choices  # that the cold answers are known of
        self.whole = "stop" in body or "response_format" in body or "tools" in body  # max_tokens stays
        self.prompt = self.ids = None

    def answer_cold(self, server):
        reply = server.post(self.path, **self.body, n=self.n, return_token_ids=True)
        self.ids = [choice["token_ids"] for choice in reply["choices"]]
        self.prompt = reply.get("prompt_token_ids") or reply["choices"][0]["prompt_token_ids"]
        self.reply = reply
        if len(self.prompt) + self.body["max_tokens"] > LONGEST:
            raise Failure(f"{self.kind}: a prompt of {len(self.prompt)} tokens is too long for the load")

    def expected(self, index, max_tokens):
        return self.ids[index if self.sampled else 0][:max_tokens]


def make_cases(server, arguments, rng):
    """Cases with their cold answers."""
    data = Path(arguments.model) / "eval"
    asked = [json.loads(line)["question"] for line in (data / "nano_gsm.jsonl").read_text().splitlines()]
    calls = [json.loads(line) for line in (data / "toolcall.jsonl").read_text().splitlines()]
    prose = server.post("/tokenize", prompt=(data / "haystack.txt").read_text()[:40000])["tokens"]
    beginnings = [prose[start:start + length] for start, length in [(0, 0), (500, 40), (1000, 129), (2000, 300), (2000, 450)]]
    system = ["", "You are a careful helper. " * 6, "Answer with the number alone. " * 20]
    cases = []

    def add(*case, **more):
        cases.append(Case(*case, **more))
        cases[-1].answer_cold(server)
        return cases[-1]

    def sampling():
        return {"temperature": 1, "seed": rng.randrange(1 << 30)} if rng.random() < 0.35 else {"temperature": 0}

    def completion():
        start = rng.randrange(len(prose) - 300)
        prompt = rng.choice(beginnings) + prose[start:start + rng.choice([1, 15, 16, 17, 40, 128, 129, 250])]
        how = sampling()
        case = add("completion", "/v1/completions", {"prompt": prompt, **how, "ignore_eos": True,
                                                     "max_tokens": rng.choice([1, 30, 200, 300])}, choices=rng.choice([1, 3]))
        if not case.sampled and rng.random() < 0.5:  # goes on behind the answer
            more = prompt + case.ids[0] + prose[start:start + rng.randint(1, 30)]
            add("continuation", "/v1/completions", {"prompt": more, "temperature": 0, "ignore_eos": True, "max_tokens": 120})

    def stop_string():
        start = rng.randrange(len(prose) - 300)
        add("stop string", "/v1/completions", {"prompt": prose[start:start + 60], "temperature": 0, "max_tokens": 80,
                                               "stop": [rng.choice([" the", "\n", "and ", "her"])]})

    def conversation():
        prefix = rng.choice(system)
        turns = [{"role": "system", "content": prefix}] if prefix else []
        for _ in range(rng.randint(1, 3)):
            turns = turns + [{"role": "user", "content": rng.choice(asked)}]
            case = add("chat", "/v1/chat/completions", {"messages": turns, **sampling(), "max_tokens": 150},
                       choices=rng.choice([1, 1, 2]))
            message = case.reply["choices"][0]["message"]
            turns = turns + [{"role": "assistant", "content": message.get("content") or "?"}]

    def tools():
        call = rng.choice([c for c in calls if len(json.dumps(c)) < 1300])
        add("tools", "/v1/chat/completions", {"messages": call["messages"], "tools": call["tools"], **sampling(),
                                              "max_tokens": 120})

    def structured():
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
                  "required": ["name", "count"], "additionalProperties": False}
        add("structured", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": rng.choice(asked)}], "temperature": 0, "max_tokens": 60,
            "chat_template_kwargs": {"enable_thinking": False},
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})

    while len(cases) < arguments.cases:
        rng.choices([completion, conversation, stop_string, tools, structured], [10, 6, 1, 1, 1])[0]()
    return cases


class Load:
    """One run: counters and findings that all clients share."""

    def __init__(self, server, cases, arguments):
        self.server, self.cases, self.arguments = server, cases, arguments
        self.lock = threading.Lock()
        self.counts = Counter()
        self.wrong = []
        self.left = 0
        self.over = threading.Event()

    def report(self, text):
        with self.lock:
            self.wrong.append(text)

    def count(self, name, more=1):
        with self.lock:
            self.counts[name] += more

    def run(self, requests, seed):
        self.left = requests
        clients = [threading.Thread(target=self.client, args=(random.Random(seed * 1000 + i),))
                   for i in range(self.arguments.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    def client(self, rng):
        connection = None
        try:
            while True:
                with self.lock:
                    if self.left == 0 or len(self.wrong) >= TOO_MANY:
                        return
                    self.left -= 1
                case = rng.choice(self.cases)
                body = dict(case.body)
                if not case.whole:
                    body["max_tokens"] = rng.randint(1, body["max_tokens"])
                body |= {"n": rng.randint(1, case.n if case.sampled else 3) if rng.random() < 0.3 else 1,
                         "stream": rng.random() < 0.5, "return_token_ids": True}
                if rng.random() < self.arguments.leave:
                    self.leave(case.path, body, rng)
                    continue
                connection = connection if connection and rng.random() < 0.8 else self.server.connect()
                self.ask(connection, case, body)
        except Exception as error:  # a client that dies unseen would hide what it found
            self.report(f"a client ended: {type(error).__name__}: {error}")

    def ask(self, connection, case, body):
        while True:
            connection.request("POST", case.path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status != 429:
                break
            reply.read()
            self.count("429")
            time.sleep(0.05)
        if reply.status != 200:
            self.report(f"{case.kind}: status {reply.status}: {reply.read()[:300]}")
            return
        got = [[] for _ in range(body["n"])]
        usage = None
        if body["stream"]:
            done = False
            for line in reply.read().split(b"\n"):
                if not line.startswith(b"data: "):
                    continue
                done = line == b"data: [DONE]"
                if done:
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    self.report(f"{case.kind}: error event: {event['error']}")
                for choice in event.get("choices", []):
                    got[choice["index"]] += choice.get("token_ids") or []
            if not done:
                self.report(f"{case.kind}: a stream without [DONE]")
        else:
            whole = json.loads(reply.read())
            usage = whole["usage"]["completion_tokens"]
            for choice in whole["choices"]:
                got[choice["index"]] = choice["token_ids"]
        self.count("answers")
        self.count("choices", body["n"])
        self.count(case.kind)
        self.count("tokens", sum(map(len, got)))
        if usage is not None and usage != sum(map(len, got)):
            self.report(f"{case.kind}: usage has {usage} tokens, the choices have {sum(map(len, got))}")
        for index, ids in enumerate(got):
            expected = case.expected(index, body["max_tokens"])
            if ids != expected:
                self.differs(case, body, index, ids, expected)

    def differs(self, case, body, index, ids, expected):
        at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
        self.count("different")
        with self.lock:
            self.wrong.append((case, index, at, f"{case.kind}, {'seeded' if case.sampled else 'greedy'}, prompt of "
                               f"{len(case.prompt)}, n {body['n']}, max_tokens {body['max_tokens']}, stream {body['stream']}: "
                               f"choice {index} has {len(ids)} ids, {len(expected)} expected, first difference at {at}: "
                               f"{ids[at:at + 4]} for {expected[at:at + 4]}"))

    def leave(self, path, body, rng, ways=("half", "at once", "soon", "later", "reading")):
        """Sends a request, or a part of it, and goes away."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=600) as sock:
            how = rng.choice(ways)
            sock.sendall(head + (data[:len(data) // 2] if how == "half" else data))
            if how == "soon":
                time.sleep(rng.uniform(0, 0.05))
            elif how == "later":
                time.sleep(rng.uniform(0, 2))
            elif how == "reading":  # after some of the answer
                for _ in range(rng.randint(1, 8)):
                    if not sock.recv(rng.choice([1, 200, 4096])):
                        break
            if rng.random() < 0.5:  # a reset in place of an end
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.count("left")
        self.count("left " + how)

    def watch(self):
        """Health and metrics, for as long as the load runs."""
        while not self.over.wait(0.5):
            try:
                status, _ = self.server.ask("GET", "/health")
                self.count("health checks")
                if status != 200:
                    self.report(f"/health: {status}")
                now = self.server.metrics()
                for pool in ("kv", "swa"):
                    parts = sum(now[f"mimo:{pool}_{part}_tokens"] for part in ("available", "evictable", "used"))
                    if parts != now[f"mimo:{pool}_total_tokens"]:
                        self.report(f"{pool} pool: available + evictable + used is {parts}")
                status, reply = self.server.ask("POST", "/flush_cache")
                if status not in (200, 400):
                    self.report(f"/flush_cache: {status} {reply}")
            except Exception as error:
                self.report(f"/health or /metrics: {type(error).__name__}: {error}")
                return


def run_load(name, arguments, folder, cases):
    kv, flags = RUNS[name]
    server = Server(arguments, folder, "--speculative-algorithm", "DFLASH", "--kv-cache-dtype", kv, *flags, *arguments.flag)
    load = Load(server, cases, arguments)
    watcher = threading.Thread(target=load.watch)
    began = time.monotonic()
    memory = []
    try:
        watcher.start()
        for quarter in range(4):
            load.run(arguments.requests // 4, quarter + 1)
            server.wait_idle()
            memory.append(server.resident_mb())
        seconds = time.monotonic() - began
        load.over.set()
        watcher.join()
        now = server.wait_idle()
        for pool in ("kv", "swa"):
            if now[f"mimo:{pool}_used_tokens"] != 0:
                load.report(f"{pool} pool: {now[f'mimo:{pool}_used_tokens']} tokens are used by nobody")
        server.post("/flush_cache")
        after = server.metrics()
        for pool in ("kv", "swa"):
            if after[f"mimo:{pool}_available_tokens"] != after[f"mimo:{pool}_total_tokens"]:
                load.report(f"{pool} pool: not whole after /flush_cache")
        figures = {key: int(now[f"mimo:{metric}_total"]) for key, metric in
                   [("retractions", "num_preemptions"), ("evicted full", "evicted_full_pages"),
                    ("evicted window", "evicted_window_pages"), ("aborted", "num_aborted_requests"),
                    ("cached tokens", "cached_tokens"), ("drafts", "spec_decode_num_draft_tokens"),
                    ("restored", "host_restored_tokens"), ("evicted windows of host memory", "host_evicted_windows")]}
        for key in list(figures)[:None if "--host-kv-gb" in flags else -2]:
            if figures[key] == 0:
                load.report(f"{key}: 0, the load does not test what it should")
        _, text = server.ask("GET", "/metrics")
        refused = int(re.search(r'^mimo:refused_requests_total\{.*status="4xx"\} (\d+)$', text, re.M)[1])
        if refused < load.counts["429"]:
            load.report(f"{load.counts['429']} answers were 429, the metrics have {refused} refused requests")
        # Host memory becomes resident as it is used for the first time.
        early = memory[1 if "--host-kv-gb" in flags else 0]
        if not arguments.no_memory_check and memory[3] > early * 1.05 + 8:
            load.report(f"memory after each quarter: {', '.join(f'{mb:.1f}' for mb in memory)} MB")
        status, _ = server.ask("GET", "/health")
        if status != 200:
            load.report(f"/health in the end: {status}")
        # The end comes while requests do.
        rng = random.Random(3)
        for _ in range(30):
            case = rng.choice(cases)
            load.leave(case.path, case.body | {"stream": rng.random() < 0.5}, rng, ["at once"])
    except Failure as failure:
        load.report(str(failure))
        seconds, figures = time.monotonic() - began, Counter()
    finally:
        load.over.set()
        watcher.join()
        with contextlib.suppress(Failure):
            status = server.stop()
    if server.process.returncode != 0:
        load.report(f"exit status {server.process.returncode} after SIGTERM")
    bad = [line for line in server.text().splitlines() if re.search(r"\berror:|internal error|sanitizer|warning", line, re.I)]
    load.wrong += bad[:20]
    if bad and arguments.keep_logs:
        (arguments.keep_logs / f"{name}.log").write_text(server.text())
    return load, figures, memory, seconds


def gaps(wrong, arguments, folder, kv):
    """What was wrong as text; of differences with the distance of the two likeliest tokens there, in the cold server."""
    if not any(isinstance(entry, tuple) for entry in wrong):
        return wrong
    server = Server(arguments, folder, *cold_flags(kv), cold=True)
    lines = []
    for entry in wrong:
        if isinstance(entry, tuple):
            case, index, at, text = entry
            prompt = case.prompt + case.ids[index if case.sampled else 0][:at]
            reply = server.post("/v1/completions", prompt=prompt, max_tokens=1, logprobs=2, temperature=0, ignore_eos=True)
            top = sorted(reply["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
            entry = f"{text}; two likeliest: {top[0] - top[1]:.5f} apart"
        lines.append(entry)
    server.stop()
    return lines


def cold_flags(kv):
    return ("--speculative-algorithm", "NONE", "--disable-radix-cache", "--max-running-requests", "1", "--kv-cache-dtype", kv)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mimo", type=Path, default=ROOT / "build" / "mimo", help="the program")
    parser.add_argument("--cold-mimo", type=Path, help="the one for the cold answers; default: the same")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "nano", help="checkpoint directory")
    parser.add_argument("--threads", type=int, default=0, help="threads of the server (0: one per CPU)")
    parser.add_argument("--requests", type=int, default=2000, help="of each run")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--cases", type=int, default=200, help="different requests")
    parser.add_argument("--leave", type=float, default=0.25, help="part of the requests whose client goes away")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--flag", action="append", default=[], help="one more flag of the server under load, as --flag=--x")
    parser.add_argument("--no-memory-check", action="store_true", help="for sanitizers, which keep freed memory")
    parser.add_argument("--keep-logs", type=Path, help="folder for logs of servers that say something bad")
    arguments = parser.parse_args()
    arguments.cold_mimo = arguments.cold_mimo or arguments.mimo
    cases, lines, findings = {}, [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in arguments.runs:
                kv = RUNS[name][0]
                if kv not in cases:
                    cold = Server(arguments, folder, *cold_flags(kv), cold=True)
                    cases[kv] = make_cases(cold, arguments, random.Random(arguments.seed))
                    if (status := cold.stop()) != 0:
                        raise Failure(f"the cold server ended with status {status}")
                load, figures, memory, seconds = run_load(name, arguments, folder, cases[kv])
                wrong = gaps(load.wrong, arguments, folder, kv)
                findings += [f"{name}: {text}" for text in wrong]
                counts = load.counts
                shown = [counts[key] for key in ("answers", "choices", "tokens", "different", "left", "429")]
                shown += [figures[key] for key in ("aborted", "retractions", "evicted full", "evicted window", "cached tokens",
                                                   "restored")]
                lines.append([name, *(f"{n:,}" for n in shown),
                              " ".join(f"{mb:.0f}" for mb in memory), f"{seconds:.0f}"])
                print(f"{name}: {dict(counts)}", file=sys.stderr, flush=True)
        except Failure as failure:
            findings.append(str(failure))
    print(f"{arguments.requests} requests a run, {arguments.clients} clients, {arguments.cases} cases, "
          f"flags {' '.join(arguments.flag) or 'none'}")
    print(table(["run", "answers", "choices", "tokens", "different", "left", "429", "aborted", "retractions", "evicted full",
                 "evicted window", "cached", "restored", "MB after each quarter", "seconds"], lines))
    for text in findings:
        print(text)
    print("not as it should be" if findings else "all as it should be")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
