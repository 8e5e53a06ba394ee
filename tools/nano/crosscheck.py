#!/usr/bin/env python3
"""Compares greedy answers of `mimo` with those of an independent implementation: MiMo-V2-Flash of the transformers
package, in fp32, on the same checkpoint with its weights dequantised by this script.

    mimo eval nano-gsm --model models/nano --limit 50 --json > ours.json
    python3 tools/nano/crosscheck.py models/nano ours.json

Exit status 0: every answer has the same token ids. Needs torch, transformers (5.17), safetensors.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Stored:
    """Tensors of a checkpoint directory, dequantised to fp32."""

    def __init__(self, folder: Path):
        index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        files = {name: safe_open(folder / name, "pt") for name in set(index.values())}
        self.raw = {name: files[file].get_tensor(name) for name, file in index.items()}

    def plain(self, name: str) -> Tensor:
        return self.raw[name].float()

    def fp8(self, name: str) -> Tensor:
        codes, scale = self.raw[f"{name}.weight"].float(), self.raw[f"{name}.weight_scale_inv"]
        rows = torch.arange(codes.shape[0]) // 128
        columns = torch.arange(codes.shape[1]) // 128
        return codes * scale[rows][:, columns]

    def mxfp4(self, name: str) -> Tensor:
        packed, exponent = self.raw[f"{name}.weight"].long(), self.raw[f"{name}.weight_scale"].float()
        values = torch.stack((E2M1[packed & 15], E2M1[packed >> 4]), -1).flatten(-2)
        return values * torch.exp2(exponent - 127).repeat_interleave(32, 1)


def reference_config(config: dict) -> MiMoV2FlashConfig:
    rope = {kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": config["partial_rotary_factor"]}
            for kind, theta in (("full_attention", config["rope_theta"]),
                                ("sliding_attention", config["swa_rope_theta"]))}
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "v_head_dim", "sliding_window", "attention_value_scale",
            "moe_intermediate_size", "num_experts_per_tok", "n_routed_experts", "max_position_embeddings",
            "norm_topk_prob")
    return MiMoV2FlashConfig(
        **{key: config[key] for key in same}, rms_norm_eps=config["layernorm_epsilon"], rope_parameters=rope,
        layer_types=["sliding_attention" if kind else "full_attention" for kind in config["hybrid_layer_pattern"]],
        mlp_layer_types=["sparse" if moe else "dense" for moe in config["moe_layer_freq"]],
        routed_scaling_factor=1.0, bos_token_id=None)


def reference_state(stored: Stored, config: dict) -> dict[str, Tensor]:
    state = {name: stored.plain(name) for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}
    heads, qk, v = config["num_attention_heads"], config["head_dim"], config["v_head_dim"]
    for index, kind in enumerate(config["hybrid_layer_pattern"]):
        layer = f"model.layers.{index}."
        kv = config["swa_num_key_value_heads" if kind else "num_key_value_heads"]
        if config["num_key_value_heads"] != 1:
            raise SystemExit("only one KV head in full layers (one chunk of fused QKV) is supported here")
        parts = stored.fp8(layer + "self_attn.qkv_proj").split((heads * qk, kv * qk, kv * v))
        for name, part in zip("qkv", parts, strict=True):
            state[f"{layer}self_attn.{name}_proj.weight"] = part
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.weight"):
            state[layer + name] = stored.plain(layer + name)
        if kind:
            state[layer + "self_attn.sinks"] = stored.plain(layer + "self_attn.attention_sink_bias")
        if not config["moe_layer_freq"][index]:
            for part in ("gate", "up", "down"):
                state[f"{layer}mlp.{part}_proj.weight"] = stored.fp8(f"{layer}mlp.{part}_proj")
            continue
        experts = [{part: stored.mxfp4(f"{layer}mlp.experts.{e}.{part}_proj") for part in ("gate", "up", "down")}
                   for e in range(config["n_routed_experts"])]
        state[layer + "mlp.gate.weight"] = stored.plain(layer + "mlp.gate.weight")
        state[layer + "mlp.gate.e_score_correction_bias"] = stored.plain(layer + "mlp.gate.e_score_correction_bias")
        state[layer + "mlp.experts.gate_up_proj"] = torch.stack([torch.cat((e["gate"], e["up"])) for e in experts])
        state[layer + "mlp.experts.down_proj"] = torch.stack([e["down"] for e in experts])
    return state


@torch.no_grad()
def greedy(model: MiMoV2FlashForCausalLM, prompt: list[int], count: int, vocabulary: int) -> tuple[list[int], list[float]]:
    """`count` tokens, and the distance of the two largest logits at each."""
    out, gaps, cache = [], [], None
    ids = torch.tensor([prompt])
    for _ in range(count):
        result = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        logits = result.logits[0, -1, :vocabulary].float()
        top = torch.topk(logits, 2)
        out.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        ids = top.indices[None, :1]
    return out, gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path, help="output of `mimo eval nano-gsm --json`")
    parser.add_argument("--limit", type=int, default=50)
    options = parser.parse_args()
    from tokenizers import Tokenizer

    config = json.loads((options.model / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    model = MiMoV2FlashForCausalLM._from_config(reference_config(config), attn_implementation="eager",
                                                dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(reference_state(Stored(options.model), config), strict=False)
    missing = [name for name in missing if "rotary" not in name]
    if missing or unexpected:
        raise SystemExit(f"weights do not match: missing {missing[:5]}, unexpected {unexpected[:5]}")
    with (options.model / "eval" / "nano_gsm.jsonl").open() as file:
        questions = {item["id"]: item["question"] for item in map(json.loads, file)}
    items = json.loads(options.answers.read_text().splitlines()[-1])["items"][: options.limit]
    same = 0
    for item in items:
        text = f"<|im_start|>user\n{questions[item['prompt_id']]}<|im_end|><|im_start|>assistant\n"
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        ours = item["token_ids"]
        theirs, gaps = greedy(model, prompt, len(ours), tokenizer.get_vocab_size())
        if theirs == ours:
            same += 1
            continue
        at = next(i for i in range(len(ours)) if ours[i] != theirs[i])
        print(f"{item['prompt_id']}: token {at}: ours {ours[at]}, transformers {theirs[at]}, "
              f"its two largest logits are {gaps[at]:.4f} apart")
    print(f"{same} of {len(items)} answers have the same token ids")
    return 0 if same == len(items) else 1


if __name__ == "__main__":
    sys.exit(main())
