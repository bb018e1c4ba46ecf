"""What the GPU check measures with: a model with random weights, its own eager forward, and the device's limits."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from ops.bench.engine_limits import Limits

LARGE: dict[str, Any] = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
"""The shape of Llama 3.2 1B."""
SMALL: dict[str, Any] = LARGE | {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
_ROUNDS = 10


def versions() -> dict[str, str]:
    """Of what is measured."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"torch": str(torch.__version__), "transformers": transformers.__version__, "device": device}


def write_model(folder: Path, options: dict[str, Any], device: str) -> None:
    """A Llama with random weights, and a tokenizer of bytes."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", eos_token_id=256, bos_token_id=256, **options)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    build: Callable[..., Any] = AutoModelForCausalLM.from_config
    with torch.device(device):
        build(config, dtype=dtype).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    release()


@torch.inference_mode()
def eager_logits(folder: Path, rows: list[list[int]], device: str) -> npt.NDArray[np.float32]:
    """What the model's own forward computes for prompts of one length, `[rows, tokens, vocabulary]`."""
    load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype="auto", attn_implementation="eager").to(device)
    logits = [model(torch.tensor([ids], device=device), use_cache=False).logits[0].float().cpu() for ids in rows]
    del model
    release()
    return torch.stack(logits).numpy()


@torch.inference_mode()
def limits(device: str) -> Limits:
    """The best rates of the device: reading memory, copying it, and the product of half-precision matrices."""
    cuda = device == "cuda"
    size, side = (4 << 30, 8192) if cuda else (64 << 20, 512)
    dtype = torch.bfloat16 if cuda else torch.float32
    columns = 8192
    source = torch.ones(size // columns // dtype.itemsize, columns, dtype=dtype, device=device)
    target = torch.empty_like(source[: len(source) // 2])
    vector = torch.ones(columns, dtype=dtype, device=device)
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    return Limits(
        # A product with a vector reads as decoding does; a sum may be nearer the memory's rate.
        read_bytes_per_second=max(size / _best(lambda: source @ vector), size / _best(source.sum)),
        copy_bytes_per_second=2 * target.nbytes / _best(lambda: target.copy_(source[: len(target)])),
        float_per_second=2 * side**3 / _best(lambda: a @ b),
        int8_per_second=0.0,
    )


def _best(work: Callable[[], object]) -> float:
    """Seconds, of several tries."""
    work()
    times = []
    for _ in range(_ROUNDS):
        _wait()
        started = time.perf_counter()
        work()
        _wait()
        times.append(time.perf_counter() - started)
    return min(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release() -> None:
    """Give back what nothing holds any more: the engine takes its share of what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
