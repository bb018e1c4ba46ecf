"""Small models with random weights, of any type transformers knows: to check the engine with, never to serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

MAX_PARAMETERS = 20_000_000


def causal_model_types() -> list[str]:
    """All types that transformers has a causal language model for."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def random_model(model_type: str, options: Mapping[str, Any], seed: int = 5) -> PreTrainedModel:
    """A float32 model with eager attention, the same for the same arguments.

    Args:
        options: of its configuration.

    Raises:
        ValueError: it would have more than `MAX_PARAMETERS`, or fails to compute anything with these options.
    """
    config = AutoConfig.for_model(model_type, **options)
    build: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build(config, attn_implementation="eager").parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters with these options are too many for a check")
    torch.manual_seed(seed)
    model = build(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Random weights of the usual size make all attention nearly uniform, and every mistake nearly invisible.
            parameter.normal_(0.0, 0.25) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    nn.Module.eval(model)
    try:
        with torch.inference_mode():
            model(torch.tensor([[1, 2, 3]]), use_cache=False)
    except Exception as error:  # a model's own code: the options do not make a whole of it
        raise ValueError(f"with these options the model itself fails: {type(error).__name__}: {error}") from error
    return model


def write_random_model(folder: Path, model_type: str, options: Mapping[str, Any]) -> PreTrainedModel:
    """Write `random_model` to `folder` as `save_pretrained` does, and return it."""
    model = random_model(model_type, options)
    model.save_pretrained(folder)
    return model
