"""A model of Llama's kind as a hub has them, with weights that nobody trained, in two files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Tensor = np.ndarray[Any, np.dtype[np.float32]]

_LAYERS, _WIDTH, _HEAD, _HIDDEN, _VOCABULARY = 2, 64, 16, 96, 49152
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": _WIDTH,
    "intermediate_size": _HIDDEN,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _WIDTH // _HEAD,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": _VOCABULARY,
    "tie_word_embeddings": True,
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_tiny_checkpoint(folder: Path, tokenizer: Path) -> None:
    """
    Args:
        folder: is made.
        tokenizer: folder of a model with a vocabulary of this size, whose tokenizer it gets.
    """
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)
    random = np.random.default_rng(1)

    def weights(rows: int, columns: int) -> Tensor:
        return random.normal(0, 0.02, (rows, columns)).astype(np.float32)

    layers: dict[str, Tensor] = {"model.norm.weight": np.ones(_WIDTH, np.float32)}
    for number in range(_LAYERS):
        layer = f"model.layers.{number}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            layers[f"{layer}.{norm}.weight"] = np.ones(_WIDTH, np.float32)
        for part, rows in (("q", _WIDTH), ("k", 2 * _HEAD), ("v", 2 * _HEAD), ("o", _WIDTH)):
            layers[f"{layer}.self_attn.{part}_proj.weight"] = weights(rows, _WIDTH)
        layers[f"{layer}.mlp.gate_proj.weight"] = weights(_HIDDEN, _WIDTH)
        layers[f"{layer}.mlp.up_proj.weight"] = weights(_HIDDEN, _WIDTH)
        layers[f"{layer}.mlp.down_proj.weight"] = weights(_WIDTH, _HIDDEN)
    files: dict[str, dict[str, Tensor]] = {
        "model-00001-of-00002.safetensors": {"model.embed_tokens.weight": weights(_VOCABULARY, _WIDTH)},
        "model-00002-of-00002.safetensors": layers,
    }
    for name, tensors in files.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    size = sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values())
    index = {
        "metadata": {"total_size": size},
        "weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
