"""A model's configuration and weights, from its files into transformers' classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from common.model_files import ModelFiles
from common.settings import Settings
from workers.engine.attention import ModelRefused
from workers.engine.quantized_weights import loading_options

TELL_SECONDS = 0.2
_LOADING = "Loading weights"
"""The label of the bar that transformers shows while it loads."""


def load_config(settings: Settings, files: ModelFiles) -> tuple[PretrainedConfig, str | None]:
    """The model's configuration, and the name of its GGUF file where it comes as one.

    Raises:
        ModelRefused: it is no causal language model that transformers knows.
    """
    gguf = None if (files.path / "config.json").exists() else _gguf_name(files.path)
    options = {"gguf_file": gguf} if gguf else {}
    try:
        config = AutoConfig.from_pretrained(
            files.path, trust_remote_code=settings.trust_remote_code, local_files_only=True, **options
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelRefused(f"the configuration in {files.path} cannot be used: {error}") from error
    if config.is_encoder_decoder:
        raise ModelRefused(
            f"{settings.model_id} is an encoder-decoder model ({config.model_type}); only decoders are served"
        )
    remote = settings.trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if not remote and type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelRefused(
            f"{settings.model_id} is of type {config.model_type}, which transformers has no causal language model for"
        )
    return config, gguf


def _gguf_name(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*.gguf"))
    if len(names) != 1:
        raise ModelRefused(f"{folder} has no config.json and {len(names)} GGUF files; one of either is needed")
    return names[0]


def load_weights(
    settings: Settings,
    files: ModelFiles,
    config: PretrainedConfig,
    gguf: str | None,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> PreTrainedModel:
    """The model with eager attention, on its device.

    Args:
        progress: told the number of tensors that are loaded, and of all.

    Raises:
        ModelRefused: it cannot be loaded, or `QUANTIZE` does not suit it.
    """
    options = loading_options(settings, config, device, dtype)
    if options or getattr(config, "quantization_config", None) is not None:
        # Such weights are placed as they are loaded, and cannot be moved.
        options["device_map"] = {"": device}
    try:
        with _told_tensors(progress):
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                files.path,
                config=None if gguf else config,
                dtype=dtype,
                attn_implementation="eager",
                trust_remote_code=settings.trust_remote_code,
                local_files_only=True,
                **({"gguf_file": gguf} if gguf else {}),
                **options,
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ModelRefused(f"{settings.model_id} could not be loaded: {error}") from error
    nn.Module.eval(model)
    return model if options else nn.Module.to(model, device)


@contextmanager
def _told_tensors(tell: Callable[[int, int], None]) -> Iterator[None]:
    """Calls `tell` with the number of tensors that are loaded, and of all, while transformers loads a model.

    Versions of transformers without a hook for their progress bars tell nothing.
    """
    set_hook = getattr(transformers_logging, "set_tqdm_hook", None)
    if set_hook is None:
        yield
        return

    def watched(bar: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return _counted(args[0], tell) if args and options.get("desc") == _LOADING else bar(*args, **options)

    before = set_hook(watched)
    try:
        yield
    finally:
        set_hook(before)


def _counted(tensors: Any, tell: Callable[[int, int], None]) -> Iterator[Any]:
    total, told_at = len(tensors), 0.0
    for done, tensor in enumerate(tensors, start=1):
        yield tensor
        if (now := time.monotonic()) - told_at >= TELL_SECONDS or done == total:
            told_at = now
            tell(done, total)
