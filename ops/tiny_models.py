"""Configurations that make a model of any type small enough to be checked in a second."""

from __future__ import annotations

from typing import Any

WINDOW = 9
"""Tokens a sliding layer sees: less than any check is long."""
SLIDING: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}

_COMMON: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # The same under the names of older types.
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "n_inner": 96,
    "rotary_dim": 8,
    "d_model": 64,
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    # Mixtures of experts.
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    # Latent attention.
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}

_LATENT: dict[str, Any] = {"head_dim": None, "num_key_value_heads": 4}
_PER_LAYER: dict[str, Any] = {"vocab_size_per_layer_input": 199, "hidden_size_per_layer_input": 8}
_SOFT_CAPS: dict[str, Any] = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
_MOE_SLIDING: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, **SLIDING}

_OWN: dict[str, dict[str, Any]] = {
    "axk1": _LATENT,
    "axk2": _LATENT,
    "cohere": {"logit_scale": 0.3},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "dots1": {"n_shared_experts": 1},
    "falcon": {"head_dim": None, "new_decoder_architecture": True, "alibi": False, "num_kv_heads": 2},
    "gemma2": {**_SOFT_CAPS, "query_pre_attn_scalar": 16, **SLIDING},
    "gemma3_text": {"query_pre_attn_scalar": 16, **SLIDING},
    "gemma3n_text": {**_PER_LAYER, **SLIDING, "num_kv_shared_layers": 0, "laurel_rank": 4},
    "gemma4_text": {**_PER_LAYER, **SLIDING},
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT,
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": WINDOW, "num_heads": 4},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_oss": _MOE_SLIDING,
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 3.0},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "minicpm3": _LATENT,
    "mistral": {"sliding_window": WINDOW},
    "mixtral": {"sliding_window": None},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": None},
    "qwen2": {"use_sliding_window": True, **SLIDING},
    "sarvam_mla": _LATENT,
    "starcoder2": {"sliding_window": None},
    "youtu": _LATENT,
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_options(model_type: str) -> dict[str, Any]:
    """Options of a small configuration. Types without an entry of their own take the common names they know."""
    own = _OWN.get(model_type, {})
    # None takes an option away that the type derives from others, unless None is what it wants.
    dropped = {name for name, value in own.items() if value is None and name != "sliding_window"}
    return {name: value for name, value in {**_COMMON, **own}.items() if name not in dropped}
