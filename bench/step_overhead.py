#!/usr/bin/env python3
"""What a step costs that its layers do not: models of 1, 2 and 3 equal layers, continued to none.

    bench/step_overhead.py [--mimo build/mimo] [--device cuda] [-b 1,8,32]

The layers are the dense full-attention layer of --config, at its true width with random weights; the vocabulary is 1,024,
so that the output head is nothing. What is left is the fixed part of a step: tokens and page tables to the device, starting
its work (one graph launch on a GPU), the first and the last operations, and waiting for the answer. What it costs to start
the operations of a layer is not in it. The line through 1 and 3 layers is taken; how far the model of 2 is from it says how
good that is.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from nano_eval import ROOT, table

LAYERS = (1, 2, 3)


def steps(options, layers, directory):
    """Seconds of a decode step of each batch size."""
    config = json.loads(options.config.read_text())
    config.update(num_hidden_layers=layers, hybrid_layer_pattern=[0] * layers, moe_layer_freq=[0] * layers, vocab_size=1024)
    path = Path(directory) / f"layers-{layers}.json"
    path.write_text(json.dumps(config))
    command = [options.mimo, "bench", "model", "--load-format", "random", "--config", path, "--device", options.device, "-p", 0,
               "-n", options.steps, "-d", 64, "-b", options.batches, "-r", 5, "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"step_overhead: {(done.stdout + done.stderr).strip()}")
    return [row["step_seconds"] for row in json.loads(done.stdout.splitlines()[-1])["results"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mimo", type=Path, default=ROOT / "build" / "mimo", help="the program")
    parser.add_argument("--config", type=Path, default=ROOT / "bench" / "configs" / "v26-flash-12.json")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("-b", "--batches", default="1,8,32", help="sequences of a step")
    parser.add_argument("--steps", type=int, default=100, help="of each repeat")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        one, two, three = (steps(options, layers, directory) for layers in LAYERS)
    lines = []
    for batch, first, middle, last in zip(options.batches.split(","), one, two, three):
        layer = (last - first) / 2
        lines.append([batch, *(f"{1e6 * value:.1f}" for value in (first, middle, last, layer, first - layer)),
                      f"{1e6 * (middle - (first + last) / 2):+.1f}"])
    print("us a step\n")
    print(table(["sequences", "1 layer", "2 layers", "3 layers", "a layer", "overhead", "2 layers off the line"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
