#!/usr/bin/env python3
"""What the fast path gains over the portable one: attention without splits over pages of one token, against the defaults.

    bench/portable_path.py [--mimo build/mimo] [--runs random,nano] [--limit 150]

`mimo serve` twice on the same weights, one after the other, each under `mimo bench serve` with one request at a time and
no prefix cache: first the defaults, then --attention-backend portable --page-size 1 (all else is equal, so that only
attention and pages differ).

  random   random weights of --config behind the tokenizer of --model; prompts of --input-len random ids, answers of
           --output-len tokens, or --portable-output-len on the portable path
  nano     --model with its real weights, with and without its DFlash drafts: word problems that end a chat of --nano-turns
           solved ones, answered to their natural end. What is accepted is real, unlike that of random prompts

On a CPU (--device cpu) there is no portable kernel: only the pages differ, which tries the script out. A server that is not
done when --limit has passed is ended, and the table says so.
"""
import argparse
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nano_eval import ROOT, number, table

FAST, PORTABLE = "fast", "portable, page 1"
NANO_ANSWER = 1024  # tokens, at most
LEAST_CONTEXT = 8192
HEAD = ["run", "path", "prompt", "answer", "accept length", "decode tokens/s", "TTFT p50 ms", "latency p50 ms", "decode x",
        "TTFT", "latency"]


class Failure(Exception):
    pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else None
    except OSError:
        return None


def check_kernels(info, path, device):
    """The attention kernels that the server says it runs; fails where they are not those of the path."""
    lines = [line for line in info["arguments"]["kernels"] if line.startswith("attention")]
    if device == "cpu":
        return lines
    portable = [": portable (" in line for line in lines]
    if path == PORTABLE and not all(portable) or path == FAST and all(portable):
        raise Failure(f"the kernels are not those of the {path} path: {lines}")
    return lines


def measure(options, path, flags, load):
    """The first round of `mimo bench serve` against a fresh server, and its attention kernels."""
    left = options.end - time.monotonic()
    if left <= 0:
        raise Failure("not begun: the time was over")
    port = free_port()
    context = max(options.input_len + options.output_len + 64, LEAST_CONTEXT)
    command = [options.mimo, "serve", options.model, "--port", port, "--device", options.device, "--disable-radix-cache",
               "--chunked-prefill-size", options.chunk, "--max-running-requests", 1,
               "--context-length", context, "--max-total-tokens", 2 * context, *flags]
    if path == PORTABLE:
        command += ["--page-size", 1]
        if options.device != "cpu":
            command += ["--attention-backend", "portable"]
            if "DFLASH" in flags:
                command += ["--speculative-draft-attention-backend", "portable"]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            while get(port, "/health") is None:
                if server.poll() is not None or time.monotonic() > options.end:
                    log.seek(0)
                    raise Failure(f"the server did not begin: {log.read().strip().splitlines()[-1:]}")
                time.sleep(0.1)
            kernels = check_kernels(json.loads(get(port, "/server_info")), path, options.device)
            bench = [options.mimo, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--tokenizer", options.model,
                     "--max-concurrency", 1, "--json", *load]
            try:
                run = subprocess.run([str(word) for word in bench], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                     timeout=max(0.1, options.end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure(f"not done within {options.limit} s in all") from None
            if run.returncode != 0:
                raise Failure(f"bench serve: {(run.stdout + run.stderr).strip().splitlines()[-1:]}")
            return json.loads(run.stdout.splitlines()[-1])["rounds"][0], kernels
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def figures(result):
    """Of one request: tokens, ms to the first, ms in all, tokens a second between."""
    requests = result["requests"]
    answer = result["output_tokens"] / requests
    ttft, latency = result["ttft_ms"], result["latency_ms"]
    between = latency["mean"] - ttft["mean"]
    return {"prompt": result["prompt_tokens"] / requests, "answer": answer, "accept": result["accept_length"],
            "decode": 1000 * (answer - 1) / between if between > 0 else None, "ttft": ttft["median"],
            "latency": latency["median"]}


def compare(options, name, flags, loads):
    """Rows of both paths; each ratio is the fast path's over the portable one's."""
    found = {}
    rows = []
    for path in (FAST, PORTABLE):
        try:
            result, kernels = measure(options, path, flags, loads[path])
            print(f"{name}, {path}: {'; '.join(kernels)}", file=sys.stderr, flush=True)
            found[path] = figures(result)
        except Failure as failure:
            options.failed = True
            rows.append([name, path, str(failure), *[""] * (len(HEAD) - 3)])
            continue
        one = found[path]
        rows.append([name, path, number(one["prompt"], 0), number(one["answer"], 0), number(one["accept"], 2),
                     number(one["decode"], 1), number(one["ttft"], 1), number(one["latency"], 1), "", "", ""])
    if len(found) == 2:
        fast, slow = found[FAST], found[PORTABLE]
        # Answers of different lengths: what the shorter ones would have taken.
        whole = slow["ttft"] + 1000 * (fast["answer"] - 1) / slow["decode"] if slow["decode"] else slow["latency"]
        same = abs(fast["answer"] - slow["answer"]) < 0.5
        latency = fast["latency"] / (slow["latency"] if same else whole)
        rows[0][-3:] = [f"{fast['decode'] / slow['decode']:.2f}" if fast["decode"] and slow["decode"] else "-",
                        f"{100 * (fast['ttft'] / slow['ttft'] - 1):+.1f}%",
                        f"{100 * (latency - 1):+.1f}%{'' if same else ' (to equal lengths)'}"]
    return rows


def problems(options, turns, directory):
    """A data set of word problems, each after a chat of `turns` solved ones."""
    source = options.model / "eval" / "nano_gsm.jsonl"
    items = [json.loads(line) for line in source.read_text().splitlines()]
    path = Path(directory) / f"problems-{turns}.jsonl"
    with path.open("w") as out:
        for index in range(options.nano_requests):
            mine = [items[(index * (turns + 1) + i) % len(items)] for i in range(turns + 1)]
            messages = []
            for item in mine[:-1]:
                messages += [{"role": "user", "content": item["question"]},
                             {"role": "assistant", "content": f"The answer is \\boxed{{{item['answer']}}}."}]
            messages.append({"role": "user", "content": mine[-1]["question"]})
            out.write(json.dumps({"messages": messages, "output_tokens": NANO_ANSWER}) + "\n")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mimo", type=Path, default=ROOT / "build" / "mimo", help="the program")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "nano", help="checkpoint, and tokenizer of random weights")
    parser.add_argument("--config", type=Path, default=ROOT / "bench" / "configs" / "v26-flash-12.json", help="of random weights")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--runs", default="random,nano", help="random, nano")
    parser.add_argument("--input-len", type=int, default=8192)
    parser.add_argument("--output-len", type=int, default=1024)
    parser.add_argument("--portable-output-len", type=int, default=0, help="of random weights; 0: --output-len")
    parser.add_argument("--requests", type=int, default=2, help="measured, after one that warms up; of random weights")
    parser.add_argument("--nano-requests", type=int, default=20)
    parser.add_argument("--nano-turns", default="0,40", help="solved problems before the one that is asked")
    parser.add_argument("--chunk", type=int, default=8192, help="--chunked-prefill-size of both paths")
    parser.add_argument("--limit", type=float, default=600, help="seconds in all")
    options = parser.parse_args()
    options.end = time.monotonic() + options.limit
    options.failed = False
    runs = options.runs.split(",")
    if unknown := set(runs) - {"random", "nano"}:
        parser.error(f"--runs {options.runs}: {', '.join(sorted(unknown))}: expected random, nano")
    rows = []
    if "random" in runs:
        lengths = {FAST: options.output_len, PORTABLE: options.portable_output_len or options.output_len}
        loads = {path: ["--dataset", "random-ids", "--input-len", options.input_len, "--output-len", length, "--num-prompts",
                        options.requests, "--ignore-eos"] for path, length in lengths.items()}
        rows += compare(options, f"random {options.config.stem}",
                        ["--load-format", "random", "--config", options.config, "--speculative-algorithm", "NONE"], loads)
    if "nano" in runs:
        with tempfile.TemporaryDirectory() as directory:
            for turns in map(int, options.nano_turns.split(",")):
                load = ["--dataset", "file", "--dataset-path", problems(options, turns, directory), "--endpoint", "chat"]
                for drafter in ("NONE", "DFLASH"):
                    rows += compare(options, f"{options.model.name}, {turns} turns, {drafter}",
                                    ["--speculative-algorithm", drafter], {FAST: load, PORTABLE: load})
    print(f"One request at a time, no prefix cache, prompts in steps of {options.chunk}; --device {options.device}. Random weights: "
          f"{options.requests} requests; {options.model.name}: {options.nano_requests}. The last three columns: fast over portable.\n")
    print(table(HEAD, rows))
    return 1 if options.failed else 0


if __name__ == "__main__":
    sys.exit(main())
