"""Runs a transformers model over the key/value pool: a step plan in, logits out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from common.errors import GenerationFailed, UnknownAdapter
from common.wire import ModelCard
from workers.engine.adapters import AdapterStore
from workers.engine.attention import AttentionBackend, AttentionBatch, ModelRefused, StagedRow, StagedStep
from workers.engine.linear import MklLinear, OneDnnLinear
from workers.engine.lora import LoraStep
from workers.engine.plan import Copy, EngineBroken, FloatArray, RequestFault, StepPlan
from workers.engine.quantize import Activations, QuantizedLinear
from workers.engine.sequence import AdapterVersion, Sequence

# The class of CUDA's asynchronous errors, after which the context is unusable; older builds raise a plain RuntimeError.
_DEVICE_ERRORS: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
_DEVICE_MESSAGE = "CUDA error"
_MEMORY_ERRORS = (torch.OutOfMemoryError, MemoryError)
_MEMORY_MESSAGE = "can't allocate memory"


DENSE = (nn.Linear, MklLinear, OneDnnLinear, QuantizedLinear)
"""Layers that multiply every token with their whole weight."""


class TransformersRunner:
    """`ModelRunner` over a model whose attention implementation is `attention.IMPLEMENTATION`."""

    def __init__(
        self,
        model: PreTrainedModel,
        backend: AttentionBackend,
        card: ModelCard,
        *,
        vocab_size: int,
        num_blocks: int,
        min_rows: int,
        lora: LoraStep | None = None,
        adapters: AdapterStore | None = None,
        activations: Activations | None = None,
    ) -> None:
        """
        Args:
            vocab_size: width of the model's logits.
            num_blocks: blocks of the backend's pool, dummy block 0 included.
            min_rows: fewest rows the model's matrix products may have; smaller steps are padded.
            lora: told of each step which tokens have which adapter.
            adapters: those that jobs may name; None: none.
            activations: what the quantized layers share, forgotten after each step.
        """
        self.card = card
        self.vocab_size = vocab_size
        self.block_size = backend.block_size
        self.num_blocks = num_blocks
        self.contiguous_blocks = backend.contiguous_blocks
        self._backend = backend
        self._transformer = model
        self._model = ModelCall(model)
        self._min_rows = min_rows
        self.follows = adapters is not None and adapters.follows
        self._lora = lora
        self._adapters = adapters
        self._activations = activations

    def due(self, sequence: Sequence) -> float:
        return 0.0

    @property
    def size(self) -> ModelSize:
        """Of a model of dense layers."""
        layers = [module for module in self._transformer.modules() if isinstance(module, DENSE)]
        sizes = [layer.in_features * layer.out_features for layer in layers]
        config = self._transformer.config.get_text_config()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        pool = self._backend.pool
        return ModelSize(
            dense_parameters=sum(sizes),
            dense_bytes=sum(
                size * (1 if isinstance(layer, QuantizedLinear) else layer.weight.dtype.itemsize)
                for size, layer in zip(sizes, layers, strict=True)
            ),
            output_parameters=config.hidden_size * config.vocab_size,
            cache_bytes_per_token=sum(
                tensor[0].numel() * tensor.itemsize for tensor in (*pool.keys.values(), *pool.values.values())
            ),
            attention_width=config.num_hidden_layers * config.num_attention_heads * width,
        )

    def adapter(self, name: str) -> AdapterVersion:
        adapter = self._adapters.get(name) if self._adapters is not None else None
        if adapter is None:
            raise UnknownAdapter(name, self.card.adapters)
        return adapter

    def refresh(self) -> bool:
        if self._adapters is None or not self._adapters.refresh():
            return False
        self.card = msgspec.structs.replace(self.card, adapters=self._adapters.names)
        return True

    @torch.inference_mode()
    def copy(self, copies: Many[Copy]) -> None:
        self._backend.pool.copy_blocks(
            [copy.source for copy in copies], [copy.target for copy in copies], self.block_size
        )

    def forward(self, plan: StepPlan) -> FloatArray:
        """See `ModelRunner.forward`. On CPU the array is the model's own output, not a copy."""
        with self.blame(plan):
            return self._forward(plan)

    @contextmanager
    def blame(self, plan: StepPlan) -> Iterator[None]:
        """Errors of a step as `ModelRunner.forward` raises them."""
        try:
            yield
        except Exception as error:
            # Anything may come out of a model's code. A step of one sequence names the culprit.
            if isinstance(error, _MEMORY_ERRORS) or _MEMORY_MESSAGE in str(error):
                raise self._too_large(plan) from error
            if isinstance(error, _DEVICE_ERRORS) or _DEVICE_MESSAGE in str(error):
                raise EngineBroken(f"{type(error).__name__}: {error}") from error
            if len(plan.rows) == 1:
                raise RequestFault(
                    plan.rows[0].sequence, GenerationFailed(f"{type(error).__name__}: {error}")
                ) from error
            raise

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept per sequence outside its blocks."""

    @staticmethod
    def _too_large(plan: StepPlan) -> RequestFault:
        """Out of memory: the row that takes the most goes, of equals the last, and the others are tried again."""
        row = max(reversed(plan.rows), key=lambda row: (row.count, row.logits))
        return RequestFault(row.sequence, GenerationFailed("the device is out of memory"), retryable=True)

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> FloatArray:
        step, wanted = self._stage(plan)
        batch = self._backend.prepare(step)
        # The output layer is a matrix product too; the repeated row is cut off again.
        padding = max(self._min_rows - len(wanted), 0) if wanted else 0
        if self._lora is not None:
            self._lora.begin(step.rows)
        logits = self._model(step.ids, step.positions, batch, wanted + wanted[:1] * padding)
        if self._activations is not None:
            self._activations.forget()
        answer: FloatArray = logits[: len(wanted)].float().cpu().numpy()
        return answer

    def _stage(self, plan: StepPlan) -> tuple[StagedStep, list[int]]:
        """The step's arrays, and the places in them of the tokens whose logits are wanted, in plan order."""
        size = max(plan.tokens, self._min_rows)
        # Padding is a token 0 at position 0 that writes to the dummy block.
        ids, positions, slots = (np.zeros(size, dtype=np.int64) for _ in range(3))
        rows: list[StagedRow] = []
        places: dict[int, int] = {}
        first = 0
        staged = [(StagedRow(row.sequence, row.start, row.count, 0), index) for index, row in enumerate(plan.rows)]
        for row, index in sorted(staged, key=lambda item: self._backend.order(item[0])):
            part = slice(first, first + row.count)
            # A token that the device has yet to choose is filled in there.
            known = [*row.sequence.ids[row.start : row.length], *plan.rows[index].draft]
            ids[first : first + len(known)] = known
            positions[part] = np.arange(row.start, row.length)
            begin = row.start // self.block_size
            blocks = np.asarray(row.sequence.blocks[begin : -(-row.length // self.block_size)], dtype=np.int64)
            place = positions[part]
            slots[part] = blocks[place // self.block_size - begin] * self.block_size + place % self.block_size
            rows.append(StagedRow(row.sequence, row.start, row.count, first))
            first += row.count
            places[index] = first
        wanted = [i for index, row in enumerate(plan.rows) for i in range(places[index] - row.logits, places[index])]
        return StagedStep(ids, positions, slots, rows), wanted


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a step reads and computes: for comparing its time with the machine's limits."""

    dense_parameters: int
    """Weights that every token is multiplied with, those of the output layer included."""
    dense_bytes: int
    output_parameters: int
    cache_bytes_per_token: int
    attention_width: int
    """Heads times width of a head, summed over the layers."""

    def attention_operations(self, tokens: int) -> int:
        """Of a prompt: half of all pairs of tokens, a product with the keys and one with the values."""
        return 2 * self.attention_width * tokens * tokens


class ModelCall:
    """A model's forward over one packed step, whatever optional arguments it takes."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        parameters = inspect.signature(model.forward).parameters
        self._selects_rows = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        if not self._takes_positions:
            raise ModelRefused(f"{type(model).__name__} takes no position_ids")

    def __call__(
        self,
        ids: np.ndarray[tuple[int], np.dtype[np.int64]],
        positions: np.ndarray[tuple[int], np.dtype[np.int64]],
        batch: AttentionBatch,
        wanted: list[int],
    ) -> Tensor:
        """Logits of the tokens at the places `wanted`, `[len(wanted), vocab_size]`."""
        return self.logits(
            torch.from_numpy(ids).to(self._device),
            torch.from_numpy(positions).to(self._device),
            batch,
            torch.tensor(wanted, dtype=torch.long, device=self._device),
        )

    def logits(self, ids: Tensor, positions: Tensor, batch: AttentionBatch, rows: Tensor | None) -> Tensor:
        """The same from int64 `[tokens]` and `[rows]` on the device; of all tokens where `rows` is None."""
        # Zero means all of them.
        options = {"logits_to_keep": 0 if rows is None else rows} if self._selects_rows else {}
        output = self._model(input_ids=ids[None], position_ids=positions[None], use_cache=False, batch=batch, **options)
        logits: Tensor = output.logits[0]
        return logits if self._selects_rows or rows is None else logits[rows]
