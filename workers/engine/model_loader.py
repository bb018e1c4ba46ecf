"""From settings to a runner that is ready: find the files, load, check, size the cache.

On CPU results are the same bits in any batch for models made of dense layers. Mixtures of experts compute each expert's
tokens together and are exempt: their last bits may depend on the company.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from common.limits import resolve_limits
from common.model_files import ModelFiles, context_length, find_model
from common.settings import DEFAULT_MODEL, Settings
from common.wire import ModelCard
from workers.engine import linear
from workers.engine.attention import IMPLEMENTATION, AttentionBackend, KVPool, ModelRefused
from workers.engine.attention_cpu import SPAN, CpuAttention
from workers.engine.attention_cuda import VarlenAttention, varlen_obstacle
from workers.engine.attention_paged import PAGE, GatherAttention
from workers.engine.default_model import ensure_default_model
from workers.engine.layer_probe import LayerProbe, probe_layers
from workers.engine.memory import cpu_cache_bytes, cuda_cache_bytes
from workers.engine.model_runner import TransformersRunner
from workers.engine.self_check import check_runner, eager_logits

Progress = Callable[[str, float], None]

DEFAULT_BATCH_SIZE = {"cpu": 64, "cuda": 256}
DEFAULT_PREFILL_TOKENS = 4096
"""Prompt tokens per step at most, on CUDA."""
PROMPT_LOGPROBS_ROWS = 256
"""Rows of logits that a sequence which wants its prompt's log probabilities adds to a step."""
UNPACKED_MIN_ROWS = 16
"""Where weights cannot be packed: MKL's products of at least this many rows mostly agree with each other."""

_log = logging.getLogger(__name__)


def load_runner(settings: Settings, progress: Progress) -> TransformersRunner:
    """Load the model named by `settings.model_id` and check that it computes what it should.

    Args:
        progress: called with a stage and the fraction of the whole load that is done.

    Raises:
        ModelRefused: the model or the limits cannot be served here.
        ModelNotFound: there are no files of that model.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    device = _device(settings)
    if device.type == "cpu":
        torch.set_num_threads(engine_threads(settings))
    if settings.model_id == DEFAULT_MODEL:
        # Reports nothing when the model is there already.
        ensure_default_model(settings, lambda stage, fraction: progress(stage, 0.6 * fraction))
    progress("finding the model", 0.6)
    files = find_model(settings, weights=True)
    try:
        return _load(settings, files, device, progress)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelRefused(f"{settings.model_id} does not fit into the memory of this {device.type} device") from error


def engine_threads(settings: Settings) -> int:
    """Threads of the CPU engine: as set, or the cores divided by the workers less one for the rest, at least one."""
    if settings.engine_threads is not None:
        return settings.engine_threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores // settings.workers - 1, 1)


def _load(settings: Settings, files: ModelFiles, device: torch.device, progress: Progress) -> TransformersRunner:
    config, gguf = _config(settings, files)
    dtype = _dtype(settings, config, device)
    progress("loading the weights", 0.65)
    model = _model(settings, files, config, gguf, dtype)
    nn.Module.to(model, device)
    progress("checking the model", 0.8)
    vocab_size = config.get_text_config().vocab_size
    reference = eager_logits(model, vocab_size)
    packed = device.type == "cpu" and linear.can_pack(dtype)
    if packed:
        linear.pack_linears(model)
    model.set_attn_implementation(IMPLEMENTATION)
    batch_size = settings.max_batch_size or DEFAULT_BATCH_SIZE[device.type]
    if device.type == "cuda":
        # The largest step there will be, so that its memory is known when the cache takes the rest.
        torch.cuda.reset_peak_memory_stats(device)
        tokens = (settings.max_batch_prefill_tokens or DEFAULT_PREFILL_TOKENS) + batch_size
        probe, width = probe_layers(model, tokens, rows=batch_size + PROMPT_LOGPROBS_ROWS)
    else:
        probe, width = probe_layers(model, tokens=UNPACKED_MIN_ROWS, rows=UNPACKED_MIN_ROWS)

    block_size = SPAN if device.type == "cpu" else PAGE
    total, blocks = _limits(
        settings, model.config, batch_size, block_size, _cache_tokens(settings, probe, dtype, device)
    )
    runner = TransformersRunner(
        model,
        _backend(probe, blocks, dtype, device),
        ModelCard(
            model_id=settings.model_id,
            sha=files.sha,
            dtype=str(dtype),
            device_type=device.type,
            max_total_tokens=total,
            max_batch_total_tokens=(blocks - 1) * block_size,
            max_batch_size=batch_size,
        ),
        vocab_size=width,
        num_blocks=blocks,
        min_rows=linear.MIN_ROWS if packed else UNPACKED_MIN_ROWS if device.type == "cpu" else 1,
    )
    progress("checking the engine against the model", 0.9)
    check_runner(runner, reference, dtype)
    progress("ready", 1.0)
    return runner


def _device(settings: Settings) -> torch.device:
    available = torch.cuda.is_available()
    if settings.device == "cuda" and not available:
        raise ModelRefused("TGQ_DEVICE is cuda, and there is no GPU that this build of torch can use")
    return torch.device("cuda" if available and settings.device != "cpu" else "cpu")


def _dtype(settings: Settings, config: PretrainedConfig, device: torch.device) -> torch.dtype:
    if settings.dtype is not None:
        dtype: torch.dtype = getattr(torch, settings.dtype)
        return dtype
    if device.type == "cpu":
        return torch.float32
    # The kernels for paged attention take half precision only.
    own = config.get_text_config().dtype
    return own if own in (torch.float16, torch.bfloat16) else torch.bfloat16


def _config(settings: Settings, files: ModelFiles) -> tuple[PretrainedConfig, str | None]:
    """The model's configuration, and the name of its GGUF file where it comes as one."""
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


def _model(
    settings: Settings, files: ModelFiles, config: PretrainedConfig, gguf: str | None, dtype: torch.dtype
) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            files.path,
            config=None if gguf else config,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=settings.trust_remote_code,
            local_files_only=True,
            **({"gguf_file": gguf} if gguf else {}),
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ModelRefused(f"{settings.model_id} could not be loaded: {error}") from error
    nn.Module.eval(model)
    return model


def _cache_tokens(settings: Settings, probe: LayerProbe, dtype: torch.dtype, device: torch.device) -> int | None:
    """Tokens the memory has room for; None when the settings say how many there shall be."""
    if settings.max_batch_total_tokens is not None:
        return None
    if device.type == "cpu":
        size = cpu_cache_bytes(settings.workers)
    else:
        size = cuda_cache_bytes(device, settings.cuda_memory_fraction)
    return max(size, 0) // KVPool.bytes_per_slot(probe.shapes, dtype)


def _limits(
    settings: Settings, config: PretrainedConfig, batch_size: int, block_size: int, room: int | None
) -> tuple[int, int]:
    """The longest sequence in tokens, and the cache's blocks, dummy block 0 included."""
    try:
        total = resolve_limits(settings, context_length(config.to_dict())).max_total_tokens
    except ValueError as error:
        raise ModelRefused(str(error)) from error
    if settings.max_batch_total_tokens is not None:
        blocks = -(-settings.max_batch_total_tokens // block_size)
    else:
        # More than this can never be in use.
        blocks = min((room or 0) // block_size, batch_size * -(-total // block_size))
        if blocks * block_size < total:
            raise ModelRefused(
                f"the memory has room for {blocks * block_size} tokens of cache, and MAX_TOTAL_TOKENS is {total}: "
                "lower it, or set MAX_BATCH_TOTAL_TOKENS"
            )
    return total, blocks + 1


def _backend(probe: LayerProbe, blocks: int, dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    if device.type == "cpu":
        return CpuAttention(probe.shapes, blocks, dtype)
    obstacle = varlen_obstacle(probe.shapes, probe.options, dtype)
    if obstacle is None:
        return VarlenAttention(probe.shapes, blocks, dtype, device)
    _log.warning(
        "paged flash attention is not used, plain attention over gathered keys is, which is slow: %s", obstacle
    )
    return GatherAttention(probe.shapes, blocks, dtype, device)
