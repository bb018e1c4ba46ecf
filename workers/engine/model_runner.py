"""Runs a transformers model over the key/value pool: a step plan in, logits out."""

from __future__ import annotations

import inspect

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import GenerationFailed
from common.wire import ModelCard
from workers.engine.attention import AttentionBackend, AttentionBatch, ModelRefused, StagedRow, StagedStep
from workers.engine.plan import EngineBroken, FloatArray, RequestFault, StepPlan
from workers.engine.sequence import Sequence

# The class of CUDA's asynchronous errors, after which the context is unusable; older builds raise a plain RuntimeError.
_DEVICE_ERRORS: tuple[type[Exception], ...] = (torch.OutOfMemoryError, MemoryError)
if hasattr(torch, "AcceleratorError"):
    _DEVICE_ERRORS += (torch.AcceleratorError,)
_DEVICE_MESSAGES = ("CUDA error", "can't allocate memory")


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
    ) -> None:
        """
        Args:
            vocab_size: width of the model's logits.
            num_blocks: blocks of the backend's pool, dummy block 0 included.
            min_rows: fewest rows the model's matrix products may have; smaller steps are padded.
        """
        self.card = card
        self.vocab_size = vocab_size
        self.block_size = backend.block_size
        self.num_blocks = num_blocks
        self.contiguous_blocks = backend.contiguous_blocks
        self._backend = backend
        self._model = ModelCall(model)
        self._min_rows = min_rows

    def due(self, sequence: Sequence) -> float:
        return 0.0

    def forward(self, plan: StepPlan) -> FloatArray:
        """See `ModelRunner.forward`. On CPU the array is the model's own output, not a copy."""
        try:
            return self._forward(plan)
        except _DEVICE_ERRORS as error:
            raise EngineBroken(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            # Anything may come out of a model's code. A step of one sequence names the culprit.
            if any(text in str(error) for text in _DEVICE_MESSAGES):
                raise EngineBroken(str(error)) from error
            if len(plan.rows) == 1:
                raise RequestFault(
                    plan.rows[0].sequence, GenerationFailed(f"{type(error).__name__}: {error}")
                ) from error
            raise

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept per sequence outside its blocks."""

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> FloatArray:
        step, wanted = self._stage(plan)
        batch = self._backend.prepare(step)
        # The output layer is a matrix product too; the repeated row is cut off again.
        padding = max(self._min_rows - len(wanted), 0) if wanted else 0
        logits = self._model(step.ids, step.positions, batch, wanted + wanted[:1] * padding)
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
            ids[part] = row.sequence.ids[row.start : row.length]
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
        rows = torch.tensor(wanted, dtype=torch.long, device=self._device)
        options = {"logits_to_keep": rows} if self._selects_rows else {}
        output = self._model(
            input_ids=torch.from_numpy(ids).to(self._device)[None],
            position_ids=torch.from_numpy(positions).to(self._device)[None],
            use_cache=False,
            batch=batch,
            **options,
        )
        logits: Tensor = output.logits[0]
        return logits if self._selects_rows else logits[rows]
