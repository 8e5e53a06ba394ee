"""Writes a trained target, its MTP heads and its drafter as a checkpoint directory of the family's V2.6 layout."""
from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import formats
from dflash import Dflash
from mtp import Mtp
from shape import (BLOCK, DRAFT_HEAD, DRAFT_VALUE_SCALE, DRAFT_WINDOW, HEAD_QK, HEAD_V, MASK_TOKEN, TURN_END,
                   END_OF_TEXT, VALUE_SCALE, VOCAB, WINDOW, Shape)
from target import Attention, DenseMlp, Target

SHARD_BYTES = 12 << 20  # small files: they travel well


def model_config(shape: Shape) -> dict:
    layers = len(shape.pattern)
    return {
        "architectures": ["MiMoV2ForCausalLM"], "model_type": "mimo_v2", "dtype": "bfloat16",
        "vocab_size": VOCAB, "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": layers, "num_attention_heads": shape.q_heads,
        "num_key_value_heads": shape.full_kv_heads, "swa_num_attention_heads": shape.q_heads,
        "swa_num_key_value_heads": shape.window_kv_heads, "head_dim": HEAD_QK, "v_head_dim": HEAD_V,
        "swa_head_dim": HEAD_QK, "swa_v_head_dim": HEAD_V, "partial_rotary_factor": 0.334,
        "rope_theta": shape.full_theta, "swa_rope_theta": shape.window_theta, "sliding_window": WINDOW,
        "sliding_window_size": WINDOW, "attention_value_scale": VALUE_SCALE, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "attention_bias": False, "attention_dropout": 0.0,
        "attention_projection_layout": "fused_qkv", "hybrid_layer_pattern": list(shape.pattern),
        "moe_layer_freq": [0] + [1] * (layers - 1), "moe_intermediate_size": shape.expert_intermediate,
        "n_routed_experts": shape.experts, "num_experts_per_tok": shape.top_k, "n_shared_experts": None,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": None, "moe_router_dtype": "bfloat16",
        "layernorm_epsilon": shape.eps, "hidden_act": "silu", "tie_word_embeddings": False,
        "max_position_embeddings": shape.max_positions, "num_nextn_predict_layers": shape.mtp_heads,
        "bos_token_id": None, "eos_token_id": TURN_END, "pad_token_id": END_OF_TEXT,
        "quantization_config": {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "store_dtype": "mxfp4", "mxfp4_block_size": formats.GROUP,
            "ignored_layers": [f"model.layers.{i}.self_attn.o_proj" for i in range(layers)]
            + [f"model.mtp.layers.{i}.self_attn.o_proj" for i in range(shape.mtp_heads)],
        },
    }


def draft_config(shape: Shape) -> dict:
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
        "hidden_size": shape.hidden, "intermediate_size": shape.draft_intermediate,
        "num_hidden_layers": shape.draft_layers, "num_attention_heads": shape.draft_q_heads,
        "num_key_value_heads": shape.draft_kv_heads, "head_dim": DRAFT_HEAD, "v_head_dim": DRAFT_HEAD,
        "partial_rotary_factor": 0.5, "rope_theta": shape.draft_theta, "rope_scaling": None,
        "rms_norm_eps": shape.draft_eps, "block_size": BLOCK, "num_target_layers": len(shape.pattern),
        "target_hidden_size": shape.hidden, "vocab_size": VOCAB, "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
        "sliding_window": DRAFT_WINDOW, "layer_types": ["sliding_attention"] * shape.draft_layers,
        "use_sliding_window": True, "is_causal": False, "add_swa_attention_sink_bias": True,
        "dflash_config": {
            "target_layer_ids": list(shape.taps), "mask_token_id": MASK_TOKEN, "block_size": BLOCK,
            "attention_value_scale": DRAFT_VALUE_SCALE, "attention_sink_bias": True,
        },
    }


class Writer:
    """Collects tensors and writes them as shards with an index."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def bf16(self, name: str, value: Tensor) -> None:
        self.tensors[name] = value.detach().to(torch.bfloat16).cpu().contiguous()

    def fp8(self, name: str, value: Tensor) -> None:
        codes, scale = formats.fp8_codes(value.detach())
        self.tensors[name + ".weight"] = codes.cpu()
        self.tensors[name + ".weight_scale_inv"] = scale.cpu().contiguous()

    def mxfp4(self, name: str, value: Tensor) -> None:
        codes, scale = formats.mxfp4_codes(value.detach())
        self.tensors[name + ".weight"] = codes.cpu()
        self.tensors[name + ".weight_scale"] = scale.cpu().contiguous()

    def attention(self, prefix: str, attention: Attention) -> None:
        # One KV head in full layers: one chunk, rows [Q | K | V].
        self.fp8(prefix + "qkv_proj", attention.qkv)
        self.bf16(prefix + "o_proj.weight", attention.o_proj)
        if attention.kind:
            self.bf16(prefix + "attention_sink_bias", attention.sinks)

    def dense(self, prefix: str, mlp: DenseMlp) -> None:
        for part in ("gate", "up", "down"):
            self.fp8(f"{prefix}{part}_proj", getattr(mlp, part))

    def write(self, folder: Path) -> None:
        files: list[dict[str, Tensor]] = [{}]
        size = 0
        for name, tensor in self.tensors.items():
            if size + tensor.nbytes > SHARD_BYTES:
                files.append({})
                size = 0
            files[-1][name] = tensor
            size += tensor.nbytes
        weight_map = {}
        for index, tensors in enumerate(files):
            file = f"model-{index + 1:05d}-of-{len(files):05d}.safetensors"
            save_file(tensors, folder / file, metadata={"format": "pt"})
            weight_map |= {name: file for name in tensors}
        total = sum(tensor.nbytes for tensor in self.tensors.values())
        index = {"metadata": {"total_size": total, "tp_size": 1}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def export_target(target: Target, mtp: Mtp, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    shape = target.shape
    writer = Writer()
    writer.bf16("model.embed_tokens.weight", target.embed)
    writer.bf16("model.norm.weight", target.norm)
    writer.bf16("lm_head.weight", target.head)
    for index, layer in enumerate(target.layers):
        prefix = f"model.layers.{index}."
        writer.bf16(prefix + "input_layernorm.weight", layer.input_norm)
        writer.bf16(prefix + "post_attention_layernorm.weight", layer.post_norm)
        writer.attention(prefix + "self_attn.", layer.attention)
        if isinstance(layer.mlp, DenseMlp):
            writer.dense(prefix + "mlp.", layer.mlp)
            continue
        writer.bf16(prefix + "mlp.gate.weight", layer.mlp.router)
        writer.tensors[prefix + "mlp.gate.e_score_correction_bias"] = layer.mlp.bias.detach().float().cpu()
        for expert in range(shape.experts):
            for part in ("down", "gate", "up"):
                writer.mxfp4(f"{prefix}mlp.experts.{expert}.{part}_proj", getattr(layer.mlp, part)[expert])
    for index, head in enumerate(mtp.heads):
        prefix = f"model.mtp.layers.{index}."
        for name, value in (("enorm", head.embed_norm), ("hnorm", head.hidden_norm),
                            ("input_layernorm", head.input_norm), ("pre_mlp_layernorm", head.pre_mlp_norm),
                            ("final_layernorm", head.final_norm), ("eh_proj", head.eh_proj)):
            writer.bf16(f"{prefix}{name}.weight", value)
        writer.attention(prefix + "self_attn.", head.attention)
        writer.dense(prefix + "mlp.", head.mlp)
    writer.write(folder)
    (folder / "config.json").write_text(json.dumps(model_config(shape), indent=1) + "\n")


def export_drafter(drafter: Dflash, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"fc.weight": drafter.fc, "hidden_norm.weight": drafter.hidden_norm, "norm.weight": drafter.norm}
    for index, layer in enumerate(drafter.layers):
        prefix = f"layers.{index}."
        tensors |= {
            prefix + "input_layernorm.weight": layer.input_norm,
            prefix + "post_attention_layernorm.weight": layer.post_norm,
            prefix + "self_attn.q_proj.weight": layer.q, prefix + "self_attn.k_proj.weight": layer.k,
            prefix + "self_attn.v_proj.weight": layer.v, prefix + "self_attn.o_proj.weight": layer.o,
            prefix + "self_attn.q_norm.weight": layer.q_norm, prefix + "self_attn.k_norm.weight": layer.k_norm,
            prefix + "self_attn.attention_sink_bias": layer.sinks,
            prefix + "mlp.gate_proj.weight": layer.gate, prefix + "mlp.up_proj.weight": layer.up,
            prefix + "mlp.down_proj.weight": layer.down,
        }
    stored = {name: value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in tensors.items()}
    save_file(stored, folder / "dflash_draft_model.safetensors", metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in stored.values())},
             "weight_map": dict.fromkeys(sorted(stored), "dflash_draft_model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(draft_config(drafter.shape), indent=1) + "\n")
    embedding = drafter.mask.detach().to(torch.bfloat16).cpu().clone()
    torch.save({"mask_token_id": MASK_TOKEN, "embedding": embedding}, folder / "mask_embedding.pt")
