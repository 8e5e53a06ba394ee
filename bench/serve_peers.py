#!/usr/bin/env python3
"""Serving speed of several servers in one run: `mimo bench serve` against each, in turns, round after round.

    bench/serve_peers.py --arm 'mimo=build/mimo serve DIR --port {port} ...' \\
                         --arm 'peer=llama-server -m FILE --port {port} ...' [--concurrency 1,8,32] [--rounds 3]

Each arm is started anew for each round and concurrency, so that where the system put its memory is drawn anew too; the
order turns round each time. The first arm is compared with each of the others: medians over rounds of requests a second,
and of the p99 gap between events. Prompts are random token ids, answers have their full length whatever the model says.
"""
import argparse
import http.client
import json
import shlex
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ready(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def measure(command, concurrency, options):
    """The result of `mimo bench serve` against a fresh server: its first round."""
    port = free_port()
    server = subprocess.Popen(shlex.split(command.format(port=port)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not ready(port):
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"serve_peers: not ready within 60 s: {command}")
            time.sleep(0.1)
        bench = [options.mimo, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--dataset", "random-ids",
                 "--endpoint", "completions", "--input-len", options.input_len, "--output-len", options.output_len,
                 "--num-prompts", options.requests, "--max-concurrency", concurrency, "--ignore-eos", "--json",
                 "--warmup-requests", min(int(concurrency), 8), "--tokenizer", options.tokenizer]
        run = subprocess.run([str(word) for word in bench], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"serve_peers: {run.stdout}\n{run.stderr}\nserver: {command}")
        return json.loads(run.stdout.splitlines()[-1])["rounds"][0]
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", action="append", required=True, metavar="NAME=COMMAND", help="with {port} in it")
    parser.add_argument("--mimo", default=ROOT / "build" / "mimo")
    parser.add_argument("--tokenizer", default=ROOT / "models" / "nano")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=64)
    options = parser.parse_args()
    arms = dict(arm.split("=", 1) for arm in options.arm)
    for name, command in arms.items():
        print(f"{name}: {command}")
    print(f"{options.requests} requests of {options.input_len} random tokens, {options.output_len} tokens of answer; "
          f"medians of {options.rounds} rounds [lowest-highest], each with a fresh server\n")
    first = next(iter(arms))
    print("| conc. | server | requests/s | output tok/s | TTFT p50 / p95 ms | gap p50 / p95 / p99 ms | latency p50 ms "
          f"| {first} over it: requests/s | {first} over it: p99 gap |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    for concurrency in options.concurrency.split(","):
        rounds = {name: [] for name in arms}
        for number in range(options.rounds):
            names = list(arms) if number % 2 == 0 else list(reversed(arms))
            for name in names:
                rounds[name].append(measure(arms[name], concurrency, options))

        def median(name, *keys):
            values = []
            for value in rounds[name]:
                for key in keys:
                    value = value[key]
                values.append(value)
            return statistics.median(values), min(values), max(values)

        for name in arms:
            rate, low, high = median(name, "request_throughput")
            gap = median(name, "event_itl_ms", "p99")[0]
            own = median(first, "request_throughput")[0], median(first, "event_itl_ms", "p99")[0]
            print(f"| {concurrency} | {name} | {rate:.2f} [{low:.2f}-{high:.2f}] | {median(name, 'output_throughput')[0]:.0f} "
                  f"| {median(name, 'ttft_ms', 'median')[0]:.0f} / {median(name, 'ttft_ms', 'p95')[0]:.0f} "
                  f"| {median(name, 'event_itl_ms', 'median')[0]:.1f} / {median(name, 'event_itl_ms', 'p95')[0]:.1f} / {gap:.1f} "
                  f"| {median(name, 'latency_ms', 'median')[0]:.0f} "
                  f"| {'' if name == first else f'{own[0] / rate:.2f}'} | {'' if name == first else f'{own[1] / gap:.2f}'} |",
                  flush=True)


if __name__ == "__main__":
    sys.exit(main())
