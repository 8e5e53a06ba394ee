#!/usr/bin/env python3
"""Writes the weights of the bundled tiny model: config.json, generation_config.json, two shards and their index.

Random and seeded, in the storage of the V2.6 generation: fused QKV in one chunk per KV head of the full layers, each
chunk on its own FP8 128 x 128 grid, an FP8 dense MLP in layer 0, MXFP4 experts, BF16 rest, and a float32 router bias.
The model says nothing sensible: it is there so that every code path has a checkpoint of 4 MB to run on. Needs numpy;
the same numpy version gives the same bytes.

    python tools/tiny/make_checkpoint.py models/tiny
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

SEED = 20
LAYERS = [0, 1, 1, 0]  # 0: full attention, 1: window
HIDDEN, INTERMEDIATE, EXPERT, VOCAB = 256, 256, 64, 1024
Q_HEADS, FULL_KV_HEADS, WINDOW_KV_HEADS, QK_DIM, V_DIM = 4, 2, 2, 192, 128
EXPERTS, TOP_K, BLOCK, GROUP = 8, 2, 128, 32
END_OF_TEXT, END_OF_TURN = 992, 994  # <|endoftext|> and <|im_end|> of models/tiny/tokenizer.json
SHARDS = ("model_pp0_ep0_shard0.safetensors", "model_pp0_ep1_shard0.safetensors")

CONFIG = {
    "architectures": ["MiMoV2ForCausalLM"],
    "model_type": "mimo_v2",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": len(LAYERS),
    "num_attention_heads": Q_HEADS,
    "num_key_value_heads": FULL_KV_HEADS,
    "swa_num_attention_heads": Q_HEADS,
    "swa_num_key_value_heads": WINDOW_KV_HEADS,
    "head_dim": QK_DIM,
    "v_head_dim": V_DIM,
    "swa_head_dim": QK_DIM,
    "swa_v_head_dim": V_DIM,
    "partial_rotary_factor": 0.334,
    "rope_theta": 10000000.0,
    "swa_rope_theta": 10000.0,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "attention_value_scale": 0.707,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_projection_layout": "fused_qkv",
    "hybrid_layer_pattern": LAYERS,
    "moe_layer_freq": [0] + [1] * (len(LAYERS) - 1),
    "moe_intermediate_size": EXPERT,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "n_shared_experts": None,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": None,
    "moe_router_dtype": "bfloat16",
    "layernorm_epsilon": 1e-06,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": END_OF_TURN,
    "pad_token_id": END_OF_TEXT,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "store_dtype": "mxfp4",
        "mxfp4_block_size": GROUP,
        "ignored_layers": [f"model.layers.{i}.self_attn.o_proj" for i in range(len(LAYERS))],
    },
}
GENERATION_CONFIG = {"eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT, "do_sample": True,
                     "temperature": 0.6, "top_p": 0.95}

rng = np.random.default_rng(SEED)


def normal(rows, columns):
    """[rows, columns] with unit output variance for unit input variance."""
    return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)


def bf16(x):
    """Round to nearest even; the upper half of each float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


# Values of the codes 0..126 of E4M3: subnormals are multiples of 2^-9.
E4M3 = np.array([(c & 7) * 2.0**-9 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest_code(x, magnitudes, sign_bit):
    """Codes of the values nearest to x; a tie takes the even code."""
    size = np.abs(x)
    above = np.clip(np.searchsorted(magnitudes, size), 1, len(magnitudes) - 1)
    below = above - 1
    middle = (magnitudes[above] + magnitudes[below]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    return (np.where(up, above, below) | np.where(np.signbit(x), sign_bit, 0)).astype(np.uint8)


def fp8_blocks(x):
    """Codes [rows, columns] and float32 scales [ceil(rows/128), ceil(columns/128)] of one grid."""
    rows, columns = x.shape
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty((-(-rows // BLOCK), -(-columns // BLOCK)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = np.s_[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK]
            scales[i, j] = np.abs(x[part]).max() / 448
            codes[part] = nearest_code(x[part].astype(np.float64) / scales[i, j], E4M3, 0x80)
    return codes, scales


def mxfp4(x):
    """Packed codes [rows, columns/2], low nibble first, and power-of-two scales [rows, columns/32] as e8m0 bytes."""
    rows, columns = x.shape
    groups = x.astype(np.float64).reshape(rows, columns // GROUP, GROUP)
    exponent = np.floor(np.log2(np.abs(groups).max(axis=2))) - 2  # the largest code, 6, is 1.5 x 2^2
    codes = nearest_code(groups / 2.0 ** exponent[:, :, None], E2M1, 8).reshape(rows, columns)
    return codes[:, 0::2] | codes[:, 1::2] << 4, (exponent + 127).astype(np.uint8)


tensors = [{}, {}]  # of each shard: name -> (dtype, array)


def add_bf16(name, x):
    tensors[0][name] = ("BF16", bf16(x))


def add_fp8(name, chunks):
    parts = [fp8_blocks(chunk) for chunk in chunks]
    tensors[0][name + ".weight"] = ("F8_E4M3", np.concatenate([codes for codes, _ in parts]))
    tensors[0][name + ".weight_scale_inv"] = ("F32", np.concatenate([scales for _, scales in parts]))


def add_mxfp4(shard, name, x):
    codes, scales = mxfp4(x)
    tensors[shard][name + ".weight"] = ("U8", codes)
    tensors[shard][name + ".weight_scale"] = ("U8", scales)


def add_layer(index, is_window):
    name = f"model.layers.{index}."
    kv_heads = WINDOW_KV_HEADS if is_window else FULL_KV_HEADS
    chunk_rows = (Q_HEADS * QK_DIM + kv_heads * (QK_DIM + V_DIM)) // FULL_KV_HEADS
    add_bf16(name + "input_layernorm.weight", 1 + 0.1 * rng.standard_normal(HIDDEN))
    add_bf16(name + "post_attention_layernorm.weight", 1 + 0.1 * rng.standard_normal(HIDDEN))
    add_fp8(name + "self_attn.qkv_proj", [normal(chunk_rows, HIDDEN) for _ in range(FULL_KV_HEADS)])
    add_bf16(name + "self_attn.o_proj.weight", normal(HIDDEN, Q_HEADS * V_DIM))
    if is_window:
        add_bf16(name + "self_attn.attention_sink_bias", rng.standard_normal(Q_HEADS))
    if index == 0:
        for part, rows, columns in (("gate", INTERMEDIATE, HIDDEN), ("up", INTERMEDIATE, HIDDEN),
                                    ("down", HIDDEN, INTERMEDIATE)):
            add_fp8(f"{name}mlp.{part}_proj", [normal(rows, columns)])
        return
    add_bf16(name + "mlp.gate.weight", normal(EXPERTS, HIDDEN))
    tensors[0][name + "mlp.gate.e_score_correction_bias"] = (
        "F32", (0.01 * rng.standard_normal(EXPERTS)).astype(np.float32))
    for expert in range(EXPERTS):
        shard = expert * len(SHARDS) // EXPERTS
        for part, rows, columns in (("gate", EXPERT, HIDDEN), ("up", EXPERT, HIDDEN), ("down", HIDDEN, EXPERT)):
            add_mxfp4(shard, f"{name}mlp.experts.{expert}.{part}_proj", normal(rows, columns))


def write_safetensors(path, named):
    # Wide elements first, so that every tensor starts aligned to its element.
    ordered = sorted(named, key=lambda name: (-named[name][1].itemsize, name))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in ordered:
        dtype, array = named[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            file.write(np.ascontiguousarray(named[name][1]).tobytes())
    return offset


def main():
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    add_bf16("model.embed_tokens.weight", rng.standard_normal((VOCAB, HIDDEN)))
    for index, is_window in enumerate(LAYERS):
        add_layer(index, is_window)
    add_bf16("model.norm.weight", 1 + 0.1 * rng.standard_normal(HIDDEN))
    # Logits with a deviation of 3: a choice is clear, but sampling still varies.
    add_bf16("lm_head.weight", 3 * normal(VOCAB, HIDDEN))

    total = sum(write_safetensors(directory / shard, named) for shard, named in zip(SHARDS, tensors))
    index = {"metadata": {"total_size": total, "tp_size": FULL_KV_HEADS},
             "weight_map": {name: shard for shard, named in zip(SHARDS, tensors) for name in sorted(named)}}
    for name, value in (("model.safetensors.index.json", index), ("config.json", CONFIG),
                        ("generation_config.json", GENERATION_CONFIG)):
        (directory / name).write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
