#!/usr/bin/env python3
"""Writes a random checkpoint of any size in V2.6 storage, to time loading: config.json, one shard per 4 GB and the index.

    python tools/bench/make_random_checkpoint.py CONFIG.json OUT_DIR

Bytes are random codes (FP8 without NaN, small BF16 and scales), so the model says nothing. Needs numpy.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

SHARD_BYTES = 4 << 30


def tensors(config):
    """Yields (name, dtype, shape) of the text trunk in the order of a checkpoint."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    qk, v = config["head_dim"], config["v_head_dim"]
    chunks = config["num_key_value_heads"]

    def fp8(name, rows, columns, scale_rows=None):
        yield name + ".weight", "F8_E4M3", [rows, columns]
        yield name + ".weight_scale_inv", "F32", [scale_rows or -(-rows // 128), -(-columns // 128)]

    def mxfp4(name, rows, columns):
        yield name + ".weight", "U8", [rows, columns // 2]
        yield name + ".weight_scale", "U8", [rows, columns // 32]

    yield "model.embed_tokens.weight", "BF16", [vocab, hidden]
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        window = config["hybrid_layer_pattern"][i] == 1
        q_heads = config["num_attention_heads"]
        kv_heads = config["swa_num_key_value_heads"] if window else config["num_key_value_heads"]
        rows = q_heads * qk + kv_heads * (qk + v)
        yield prefix + "input_layernorm.weight", "BF16", [hidden]
        yield prefix + "post_attention_layernorm.weight", "BF16", [hidden]
        yield from fp8(prefix + "self_attn.qkv_proj", rows, hidden, chunks * -(-(rows // chunks) // 128))
        yield prefix + "self_attn.o_proj.weight", "BF16", [hidden, q_heads * v]
        if window:
            yield prefix + "self_attn.attention_sink_bias", "BF16", [q_heads]
        if config["moe_layer_freq"][i] == 0:
            width = config["intermediate_size"]
            for name, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
                yield from fp8(f"{prefix}mlp.{name}_proj", *shape)
            continue
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        yield prefix + "mlp.gate.weight", "BF16", [experts, hidden]
        yield prefix + "mlp.gate.e_score_correction_bias", "F32", [experts]
        for e in range(experts):
            for name, shape in (("down", (hidden, width)), ("gate", (width, hidden)), ("up", (width, hidden))):
                yield from mxfp4(f"{prefix}mlp.experts.{e}.{name}_proj", *shape)
    yield "model.norm.weight", "BF16", [hidden]
    yield "lm_head.weight", "BF16", [vocab, hidden]


def content(random, name, dtype, shape):
    count = int(np.prod(shape))
    if dtype == "F32":
        return random.uniform(0.0005, 0.001, count).astype("<f4").tobytes()
    if name.endswith(".weight_scale"):
        return random.integers(116, 122, count, dtype=np.uint8).tobytes()
    if dtype == "BF16":
        # Sign, then exponents of about 2^-6, any mantissa.
        return (random.integers(0, 1 << 16, count, dtype=np.uint16) & 0x80FF | 0x3C00).astype("<u2").tobytes()
    codes = random.integers(0, 256, count, dtype=np.uint8)
    if dtype == "F8_E4M3":
        codes[(codes & 0x7F) == 0x7F] = 0
    return codes.tobytes()


def main():
    config_path, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads(config_path.read_text())
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config_path, out / "config.json")
    sizes = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
    shards, total = [[]], 0
    for name, dtype, shape in tensors(config):
        size = int(np.prod(shape)) * sizes[dtype]
        if total + size > SHARD_BYTES:
            shards.append([])
            total = 0
        shards[-1].append((name, dtype, shape, size))
        total += size
    random = np.random.default_rng(1)
    weight_map = {}
    for number, shard in enumerate(shards):
        file_name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        header, offset = {}, 0
        for name, dtype, shape, size in shard:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
            weight_map[name] = file_name
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(out / file_name, "wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for name, dtype, shape, _ in shard:
                file.write(content(random, name, dtype, shape))
    index = {"metadata": {"tp_size": config["num_key_value_heads"]}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main()
