"""`mimo generate` holds the weights once: no second copy while loading, no growth with what is not used."""
import json
import subprocess
import sys

from conftest import BINARY, ROOT

CONFIG = ROOT / "tests" / "data" / "random_nano.config.json"
PROMPT_TOKENS, NEW_TOKENS = 3000, 8
CHUNK, PAGE = 512, 64
# Code, libraries, thread stacks, and the activations of one chunk.
BASE_BYTES = 40 << 20
MEASURE = """import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)"""


def weight_bytes(config):
    """Of a config in the V2.6 storage, from its dimensions."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    qk, v = config["head_dim"], config["v_head_dim"]
    total = 2 * 2 * config["vocab_size"] * hidden  # embedding and lm_head, bf16
    for window, moe in zip(config["hybrid_layer_pattern"], config["moe_layer_freq"]):
        kv_heads = config["swa_num_key_value_heads" if window else "num_key_value_heads"]
        total += (heads * qk + kv_heads * (qk + v)) * hidden  # qkv, fp8
        total += 2 * heads * v * hidden                       # o_proj, bf16
        if moe:
            experts = config["n_routed_experts"] * 3 * hidden * config["moe_intermediate_size"]
            total += experts // 2 + experts // config["quantization_config"]["mxfp4_block_size"]
        else:
            total += 3 * hidden * config["intermediate_size"]  # fp8
    return total


def kv_bytes(config):
    tokens = PROMPT_TOKENS + NEW_TOKENS
    window_tokens = config["sliding_window"] + CHUNK + 2 * PAGE
    total = 0
    for window in config["hybrid_layer_pattern"]:
        kv_heads = config["swa_num_key_value_heads" if window else "num_key_value_heads"]
        width = kv_heads * (config["head_dim"] + config["v_head_dim"])
        total += 2 * width * (min(tokens, window_tokens) if window else tokens)
    return total


def test_c68_peak_memory(mimo, write_json):
    config = json.loads(CONFIG.read_text())
    ids = write_json([i % config["vocab_size"] for i in range(PROMPT_TOKENS)])
    # Between the two a small process: a child's peak counts what its parent had when it was forked.
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, BINARY, "generate", "--load-format", "random", "--config", CONFIG, "--token-ids", ids,
         "--max-tokens", str(NEW_TOKENS), "--kv-cache-dtype", "bfloat16", "--threads", "2", "--chunked-prefill-size",
         str(CHUNK), "--page-size", str(PAGE)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    peak = int(run.stdout.splitlines()[-1]) << 10
    bound = int(1.1 * (weight_bytes(config) + kv_bytes(config))) + BASE_BYTES
    assert peak <= bound, f"peak {peak / 1e6:.0f} MB, at most {bound / 1e6:.0f} MB expected"
