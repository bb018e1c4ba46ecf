"""From settings to a runner that is ready: find the files, load, check, size the cache.

On CPU results are the same bits in any batch for models made of dense layers. Mixtures of experts compute each expert's
tokens together and are exempt: their last bits may depend on the company.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from common.limits import resolve_limits
from common.model_files import ModelFiles, context_length, find_model
from common.settings import DEFAULT_MODEL, Settings
from common.wire import ModelCard
from workers.engine import linear
from workers.engine.adapters import AdapterStore
from workers.engine.attention import IMPLEMENTATION, KVPool, ModelRefused
from workers.engine.attention_cpu import SPAN, CpuAttention
from workers.engine.attention_cuda import KNOWS_PAGES, VarlenAttention, varlen_obstacle
from workers.engine.attention_paged import PAGE, GatherAttention, PagedAttention
from workers.engine.cuda_graphs import CudaCapture, DecodeGraphs, graph_sizes
from workers.engine.default_model import ensure_default_model
from workers.engine.device_runner import DeviceRunner
from workers.engine.device_sampler import rehearse
from workers.engine.fuse import fuse_layers
from workers.engine.kernel_check import kernel_fault
from workers.engine.layer_probe import LayerProbe, graph_bytes, probe_layers
from workers.engine.load_progress import Progress, shown_bytes
from workers.engine.lora import LoraStep, adaptable_layers, wrap_layers
from workers.engine.lora_files import read_adapter
from workers.engine.memory import cpu_cache_bytes, cuda_cache_bytes, second_copy_bytes
from workers.engine.model_runner import TransformersRunner
from workers.engine.quantize import quantize_linears
from workers.engine.quantized_weights import INT8
from workers.engine.self_check import (
    INT8_ROUNDING,
    check_quantization,
    check_runner,
    eager_logits,
    rounding,
    whole_logits,
)
from workers.engine.weights import load_config, load_weights

DEFAULT_BATCH_SIZE = {"cpu": 64, "cuda": 256}
DEFAULT_PREFILL_TOKENS = 4096
"""Prompt tokens per step at most, on CUDA."""
PROMPT_LOGPROBS_ROWS = 256
"""Rows of logits that a sequence which wants its prompt's log probabilities adds to a step."""
UNPACKED_MIN_ROWS = 16
"""Where weights cannot be packed: MKL's products of at least this many rows mostly agree with each other."""
LOADING, WARMING_UP = 0.6, 0.8
"""Where in the whole load these stages begin; before them files are fetched."""

_log = logging.getLogger(__name__)


def load_runner(settings: Settings, progress: Progress) -> TransformersRunner:
    """Load the model named by `settings.model_id` and check that it computes what it should.

    Args:
        progress: told the stage and the fraction of the whole load that is done.

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
        ensure_default_model(settings, lambda stage, fraction: progress(stage, LOADING * fraction))
    files = find_model(settings, weights=True, progress=functools.partial(_downloading, progress))
    try:
        return _load(settings, files, device, progress)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelRefused(f"{settings.model_id} does not fit into the memory of this {device.type} device") from error


def _downloading(progress: Progress, done: int, total: int) -> None:
    progress(f"downloading the model: {shown_bytes(done, total)}", LOADING * done / total)


def _loading(progress: Progress, done: int, total: int) -> None:
    fraction = LOADING + (WARMING_UP - LOADING) * done / total
    progress(f"loading the weights: {done} of {total} tensors", fraction)


def engine_threads(settings: Settings) -> int:
    """Threads of the CPU engine: as set, or the cores divided by the workers less one for the rest, at least one."""
    if settings.engine_threads is not None:
        return settings.engine_threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores // settings.workers - 1, 1)


def _load(settings: Settings, files: ModelFiles, device: torch.device, progress: Progress) -> TransformersRunner:
    if device.type == "cuda" and settings.cuda_memory_fraction < 1:
        # So that a step which takes more than was measured fails here, and does not take what belongs to others.
        torch.cuda.set_per_process_memory_fraction(settings.cuda_memory_fraction)
    config, gguf = load_config(settings, files)
    dtype = _dtype(settings, config, device)
    progress("loading the weights", LOADING)
    model = load_weights(settings, files, config, gguf, dtype, device, functools.partial(_loading, progress))
    progress("warming up: checking the model", WARMING_UP)
    try:
        return _checked(settings, files, model, dtype, device, progress)
    except (ModelRefused, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # Anything may come out of a model's code, and whatever it is, such a model cannot be served.
        raise ModelRefused(f"{settings.model_id} fails in the engine: {type(error).__name__}: {error}") from error


def _checked(
    settings: Settings,
    files: ModelFiles,
    model: PreTrainedModel,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> TransformersRunner:
    """The runner over a loaded model, once it has computed what the model does."""
    vocab_size = model.config.get_text_config().vocab_size
    reference = eager_logits(model, vocab_size)
    rounded = rounding(model, dtype, vocab_size, reference)
    model.set_attn_implementation(IMPLEMENTATION)
    batch_size = settings.max_batch_size or DEFAULT_BATCH_SIZE[device.type]
    if device.type == "cuda":
        # The largest step there will be, so that its memory is known when the cache takes the rest.
        torch.cuda.reset_peak_memory_stats(device)
        tokens = (settings.max_batch_prefill_tokens or DEFAULT_PREFILL_TOKENS) + batch_size
        rows = batch_size + PROMPT_LOGPROBS_ROWS
    else:
        tokens = rows = UNPACKED_MIN_ROWS
    with adaptable_layers(model, tokens) as layers:
        probe, width = probe_layers(model, tokens, rows)
    joined = fuse_layers(model, probe) if device.type == "cpu" and dtype == torch.float32 else {}
    packed = device.type == "cpu" and linear.can_pack(dtype)
    activations = None
    if settings.quantize == INT8:
        activations = quantize_linears(model, spare_bytes=second_copy_bytes(settings.workers))
        exact, reference = reference, whole_logits(model, vocab_size)
        check_quantization(reference, exact)
        rounded = INT8_ROUNDING
    elif packed:
        linear.pack_linears(model, spare_bytes=second_copy_bytes(settings.workers))
    lora, adapters = None, None
    if settings.lora_adapters or settings.lora_folder is not None:
        lora = LoraStep(device)
        wrap_layers(model, layers, joined, lora)
        read = functools.partial(read_adapter, layers=layers, dtype=dtype, device=device, packed=packed)
        adapters = AdapterStore(settings, read)

    block_size, sizes = SPAN, list[int]()
    if device.type == "cuda":
        block_size, sizes = PAGE, _graph_sizes(settings, batch_size)
        rehearse(batch_size, width, device)
    room = _cache_tokens(settings, probe, dtype, device, lambda: graph_bytes(model, max(sizes, default=0), width))
    total, blocks = _limits(settings, model.config, batch_size, block_size, room)
    card = ModelCard(
        model_id=settings.model_id,
        sha=files.sha,
        dtype=str(dtype),
        device_type=device.type,
        max_total_tokens=total,
        max_batch_total_tokens=(blocks - 1) * block_size,
        max_batch_size=batch_size,
        reserves_answers=device.type == "cpu" or not KNOWS_PAGES,
        adapters=adapters.names if adapters is not None else [],
    )
    runner: TransformersRunner
    if device.type == "cuda":
        runner = DeviceRunner(
            model,
            _paged_backend(probe, blocks, dtype, device, total),
            card,
            vocab_size=width,
            num_blocks=blocks,
            max_tokens=tokens,
            graphs=DecodeGraphs(sizes, CudaCapture(device)) if sizes else None,
            lora=lora,
            adapters=adapters,
        )
    else:
        runner = TransformersRunner(
            model,
            CpuAttention(probe.shapes, blocks, dtype, strict=settings.strict),
            card,
            vocab_size=width,
            num_blocks=blocks,
            min_rows=UNPACKED_MIN_ROWS if settings.strict and not packed else 1,
            lora=lora,
            adapters=adapters,
            activations=activations,
        )
    progress("warming up: checking the engine against the model", 0.9)
    check_runner(runner, reference, rounded)
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


def _cache_tokens(
    settings: Settings, probe: LayerProbe, dtype: torch.dtype, device: torch.device, graphs: Callable[[], int]
) -> int | None:
    """Tokens the memory has room for; None when the settings say how many there shall be.

    Args:
        graphs: measures what captured graphs will take of a GPU's memory.
    """
    if settings.max_batch_total_tokens is not None:
        return None
    if device.type == "cpu":
        size = cpu_cache_bytes(settings.workers)
    else:
        size = cuda_cache_bytes(device, settings.cuda_memory_fraction) - graphs()
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


def _graph_sizes(settings: Settings, batch_size: int) -> list[int]:
    """As set. The kernels of bitsandbytes wait for the device, so that none can be captured there."""
    bitsandbytes = settings.quantize is not None and settings.quantize.startswith("bitsandbytes")
    return [] if bitsandbytes else graph_sizes(settings.cuda_graphs, batch_size)


def _paged_backend(
    probe: LayerProbe, blocks: int, dtype: torch.dtype, device: torch.device, longest: int
) -> PagedAttention:
    obstacle = varlen_obstacle(probe.shapes, probe.options, dtype) or kernel_fault(probe, dtype, device)
    if obstacle is None:
        return VarlenAttention(probe.shapes, blocks, dtype, device, longest=longest)
    _log.warning(
        "paged flash attention is not used, plain attention over gathered keys is, which is slow: %s", obstacle
    )
    return GatherAttention(probe.shapes, blocks, dtype, device, longest=longest)
