"""Reads an adapter from PEFT's files: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from workers.engine.lora import Adapter, LinearShape, LowRank

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_KEY = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<factor>[AB])\.weight")
_FORBIDDEN = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "modules_to_save",
    "target_parameters",
    "layer_replication",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "use_bdlora",
)
"""Options that change more than the product of two matrices can say."""
_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq")
"""Initializations that leave an adapter which fits only a base model changed by them."""


class AdapterRefused(Exception):
    """This adapter cannot be used with this model; the message says why."""


def read_adapter(
    name: str,
    folder: Path,
    layers: Mapping[str, LinearShape],
    *,
    dtype: torch.dtype,
    device: torch.device,
    packed: bool,
) -> Adapter:
    """Read and check an adapter.

    Args:
        name: what requests call it.
        folder: where its two files are.
        layers: linear layers of the model that can be changed, by name.
        packed: whether `LowRank` packs its weights.

    Raises:
        AdapterRefused: files are missing, or the adapter does what is not supported.
    """
    try:
        raw_config, raw_weights = (folder / CONFIG).read_bytes(), (folder / WEIGHTS).read_bytes()
        config = json.loads(raw_config)
        tensors = load(raw_weights)
    except FileNotFoundError as error:
        raise AdapterRefused(f"adapter `{name}` has no {Path(str(error.filename)).name} in {folder}") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterRefused(f"adapter `{name}` in {folder} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise AdapterRefused(f"adapter `{name}`: {CONFIG} holds no object")
    _check_config(name, config)
    with torch.inference_mode():
        deltas = {
            layer: LowRank(
                down.to(device, dtype), up.to(device, dtype), _scale(config, layer, len(down)), packed=packed
            )
            for layer, (down, up) in _factors(name, tensors, layers).items()
        }
    return Adapter(name, blake2b(raw_config + raw_weights, digest_size=16).digest(), deltas)


def _check_config(name: str, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterRefused(f"adapter `{name}` is of type {config.get('peft_type')}; only LORA is supported")
    if config.get("bias", "none") != "none":
        raise AdapterRefused(f"adapter `{name}` has biases (`bias`: {config['bias']!r}), which is not supported")
    for option in _FORBIDDEN:
        if config.get(option):
            raise AdapterRefused(f"adapter `{name}` uses `{option}`, which is not supported")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_THE_BASE):
        raise AdapterRefused(
            f"adapter `{name}` was made with `init_lora_weights`: {start!r}, which changes the base model; convert it first"
        )


def _factors(
    name: str, tensors: Mapping[str, Tensor], layers: Mapping[str, LinearShape]
) -> dict[str, tuple[Tensor, Tensor]]:
    """The two factors of each layer, `[rank, in]` and `[out, rank]`."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in sorted(tensors.items()):
        match = _KEY.fullmatch(key)
        if match is None:
            raise AdapterRefused(f"adapter `{name}` holds {key}, which is not supported")
        layer = match["layer"]
        if layer not in layers:
            raise AdapterRefused(f"adapter `{name}` changes {layer}, which this model does not have or cannot change")
        found.setdefault(layer, {})[match["factor"]] = tensor
    if not found:
        raise AdapterRefused(f"adapter `{name}` holds no weights")
    factors = {}
    for layer, pair in found.items():
        shape = layers[layer]
        if pair.keys() != {"A", "B"}:
            raise AdapterRefused(f"adapter `{name}` has only one factor for {layer}")
        down, up = pair["A"], pair["B"]
        if not (down.dim() == up.dim() == 2 and len(down) == up.shape[1] > 0):
            raise AdapterRefused(f"adapter `{name}` has factors for {layer} that do not fit each other")
        if (down.shape[1], len(up)) != (shape.inputs, shape.outputs):
            raise AdapterRefused(
                f"adapter `{name}` is for a {layer} of {down.shape[1]} inputs and {len(up)} outputs; this model's has "
                f"{shape.inputs} and {shape.outputs}"
            )
        factors[layer] = down, up
    return factors


def _scale(config: dict[str, Any], layer: str, rank: int) -> float:
    """PEFT's scaling: alpha over the rank, or over its root with `use_rslora`; patterns match the end of a layer's name."""
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", layer):
            alpha = value
            break
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
