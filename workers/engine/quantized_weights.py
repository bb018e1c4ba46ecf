"""What `QUANTIZE` means: 8-bit layers of our own on CPU, transformers' loaders for the other kinds on CUDA."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig

from common.settings import Settings
from workers.engine.attention import ModelRefused
from workers.engine.quantize import int8_obstacle

INT8 = "int8"

_PACKAGES = {
    "bitsandbytes": ("bitsandbytes",),
    "bitsandbytes-nf4": ("bitsandbytes",),
    "bitsandbytes-fp4": ("bitsandbytes",),
    "gptq": ("gptqmodel",),
    "awq": ("gptqmodel",),
    "compressed-tensors": ("compressed_tensors",),
    "torchao": ("torchao",),
    "eetq": ("kernels",),
    "fp8": ("kernels",),
}
"""What transformers needs to load each kind."""
_STORED = ("gptq", "awq", "compressed-tensors")
"""Kinds that weights are published in, and that nothing is turned into while it loads."""


def loading_options(
    settings: Settings, config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Arguments of `from_pretrained` for the weights' kind.

    Args:
        config: the model's own, which says how its weights are stored.

    Raises:
        ModelRefused: the kind does not suit the model or the device, or a package for it is missing.
    """
    stored = _stored_kind(config)
    kind = settings.quantize or stored
    if kind is None:
        return {}
    if stored is not None and settings.quantize not in (None, stored) and not kind.startswith(f"{stored}-"):
        raise ModelRefused(f"QUANTIZE is {kind}, and the weights of {settings.model_id} are stored as {stored}")
    if kind == INT8:
        _check_int8(device, dtype)
        return {}
    if kind in _STORED and stored is None:
        raise ModelRefused(
            f"QUANTIZE is {kind}, and the weights of {settings.model_id} are not stored so: take a model that is, or "
            "bitsandbytes, fp8 or torchao, which quantize while they load"
        )
    if device.type != "cuda":
        raise ModelRefused(f"weights quantized with {kind} need a GPU; on CPU QUANTIZE can be {INT8}")
    missing = [name for name in _PACKAGES.get(kind, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelRefused(f"weights quantized with {kind} need the package {missing[0].replace('_', '-')}: install it")
    return {} if stored is not None else {"quantization_config": _config(kind, dtype)}


def _check_int8(device: torch.device, dtype: torch.dtype) -> None:
    if device.type != "cpu":
        raise ModelRefused(f"QUANTIZE={INT8} is for CPU; on CUDA take bitsandbytes, fp8 or torchao")
    if dtype != torch.float32:
        raise ModelRefused(f"QUANTIZE={INT8} computes between its layers in float32, and DTYPE is {dtype}")
    obstacle = int8_obstacle()
    if obstacle is not None:
        raise ModelRefused(f"QUANTIZE={INT8} cannot be served here: {obstacle}")


def _stored_kind(config: PretrainedConfig) -> str | None:
    """How the model's weights are stored, in TGI's words; None: plainly."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    method = stored.get("quant_method") if isinstance(stored, dict) else stored.quant_method
    name = str(getattr(method, "value", method))
    return "bitsandbytes" if name.startswith("bitsandbytes") else name


def _config(kind: str, dtype: torch.dtype) -> Any:
    """transformers' configuration for quantizing plain weights while they load."""
    bits_and_bytes: Any = transformers.BitsAndBytesConfig
    match kind:
        case "bitsandbytes":
            return bits_and_bytes(load_in_8bit=True)
        case "bitsandbytes-nf4" | "bitsandbytes-fp4":
            name = kind.removeprefix("bitsandbytes-")
            return bits_and_bytes(load_in_4bit=True, bnb_4bit_quant_type=name, bnb_4bit_compute_dtype=dtype)
        case "fp8":
            return transformers.FineGrainedFP8Config()
        case "eetq":
            return transformers.EetqConfig("int8")
        case "torchao":
            from torchao.quantization import Int8WeightOnlyConfig

            return transformers.TorchAoConfig(Int8WeightOnlyConfig())
    raise ModelRefused(f"QUANTIZE is {kind}, which transformers cannot turn plain weights into")
