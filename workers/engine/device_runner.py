"""Runs a transformers model on a device beside the host, which need not wait for it.

A step goes there in one copy, decode steps as captured graphs where there are any, and most tokens are chosen there:
what comes back are a few numbers per row, and the next step can be launched before they do (see `overlap`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.wire import ModelCard
from workers.engine.adapters import AdapterStore
from workers.engine.attention import StagedRow, StagedStep
from workers.engine.attention_paged import PagedAttention
from workers.engine.cuda_graphs import DecodeGraphs, Work
from workers.engine.device_sampler import choose, samples, stage_rules
from workers.engine.lora import LoraStep
from workers.engine.model_runner import TransformersRunner
from workers.engine.overlap import Outcome
from workers.engine.plan import FloatArray, Row, StepPlan
from workers.engine.sampler import Choice, short_logprob
from workers.engine.staging import Stage

_TOKEN_BYTES = 96
"""What a token needs of a stage at most: id, position, slot, rows of logits and the sampler's rules, and alignment."""


def stage_bytes(tokens: int, rows: int, width: int) -> int:
    """Room for a step.

    Args:
        tokens: of the largest step.
        rows: sequences in it.
        width: blocks of the longest sequence.
    """
    return tokens * _TOKEN_BYTES + rows * (4 * width + 64) + 4096


class LaunchedStep:
    """A step on the device. See `overlap.Launched`."""

    def __init__(
        self,
        runner: DeviceRunner,
        plan: StepPlan,
        chosen: list[int],
        logits: Tensor,
        picks: tuple[Tensor, Tensor] | None,
    ) -> None:
        """
        Args:
            chosen: indexes of the rows whose tokens the device chooses.
            logits: wanted on the host.
            picks: those tokens, and their log probabilities.
        """
        self.plan = plan
        self.decided = len(chosen) == len(plan.rows)
        self.ids = None if picks is None else picks[0]
        self.places = {plan.rows[index].sequence: place for place, index in enumerate(chosen)}
        """Where in `ids` the token of a sequence is."""
        self._runner = runner
        self._chosen = chosen
        self._back = [_to_host(tensor) for tensor in (logits, *(picks or ()))]
        self._done = _record() if logits.device.type == "cuda" else None

    def take(self) -> Outcome:
        with self._runner.blame(self.plan):
            if self._done is not None:
                self._done.synchronize()
        logits, *picks = (tensor.numpy() for tensor in self._back)
        pairs = zip(*picks, strict=True) if picks else ()
        choices = [Choice(int(token), short_logprob(logprob)) for token, logprob in pairs]
        return Outcome(logits, dict(zip(self._chosen, choices, strict=True)))


class DeviceRunner(TransformersRunner):
    """A `ModelRunner` and an `overlap.Launcher`. Runs on CPU too, where nothing is gained by it, for tests."""

    def __init__(
        self,
        model: PreTrainedModel,
        backend: PagedAttention,
        card: ModelCard,
        *,
        vocab_size: int,
        num_blocks: int,
        max_tokens: int,
        graphs: DecodeGraphs | None = None,
        lora: LoraStep | None = None,
        adapters: AdapterStore | None = None,
    ) -> None:
        """
        Args:
            max_tokens: of the largest step.
            graphs: to be captured, where the backend's steps have fixed shapes.

        The rest as for `TransformersRunner`.
        """
        super().__init__(
            model, backend, card, vocab_size=vocab_size, num_blocks=num_blocks, min_rows=1, lora=lora, adapters=adapters
        )
        self._paged = backend
        self._stage_area = Stage(backend.device, stage_bytes(max_tokens, card.max_batch_size, backend.width))
        self._graphs = graphs if backend.fixed_shapes else None
        if self._graphs is not None:
            self._graph_logits = torch.zeros(self._graphs.largest, vocab_size, device=backend.device)
            self._graphs.capture(self._capturable)

    @torch.inference_mode()
    def launch(self, plan: StepPlan, after: Any = None) -> LaunchedStep:
        """See `overlap.Launcher`; `after` is a `LaunchedStep` of this runner."""
        with self.blame(plan):
            return self._launch(plan, after, choosing=True)

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> FloatArray:
        return self._launch(plan, None, choosing=False).take().logits

    def _launch(self, plan: StepPlan, after: LaunchedStep | None, *, choosing: bool) -> LaunchedStep:
        rows = plan.rows
        decode = all(row.count == row.logits == 1 for row in rows)
        size = self._graph_size(rows) if decode else None
        step, wanted = self._stage_decode(plan, size or len(rows)) if decode else self._stage(plan)

        area = self._stage_area
        area.begin()
        inputs = _Inputs(area, step, self._paged)
        if self._lora is not None:
            self._lora.begin(step.rows, area.add)
        places = None if decode else area.add(np.array(wanted, dtype=np.int64))
        picker = _Picker(area, rows if choosing else [], rows, self.vocab_size)
        unknown = [i for i, row in enumerate(rows) if row.start == len(row.sequence.ids)]
        if unknown:
            assert after is not None, "a token that nobody knows"
            assert after.ids is not None
            targets = area.add(np.array(unknown, dtype=np.int64))
            sources = area.add(np.array([after.places[rows[i].sequence] for i in unknown], dtype=np.int64))
            area.send()
            # Where scores were not finite there is no token: any will do, the request fails.
            inputs.ids.index_copy_(0, targets, after.ids.index_select(0, sources).clamp_(min=0))
        else:
            area.send()

        if size is not None and self._graphs is not None:
            self._graphs.replay(size, inputs.tensors)
            logits = self._graph_logits[: len(rows)]
        else:
            logits = self._model.logits(inputs.ids, inputs.positions, inputs.batch, places).float()
        return LaunchedStep(self, plan, picker.chosen, *picker.pick(logits))

    def _graph_size(self, rows: list[Row]) -> int | None:
        """The captured size that serves, if any; adapters were not there when it was captured."""
        if self._graphs is None or any(row.sequence.adapter is not None for row in rows):
            return None
        return self._graphs.size(len(rows))

    def _stage_decode(self, plan: StepPlan, size: int) -> tuple[StagedStep, list[int]]:
        """`_stage` of a step of one token per row, padded to `size` rows: it is made for every token."""
        block_size, count = self.block_size, len(plan.rows)
        ids, positions, slots = (np.zeros(size, dtype=np.int64) for _ in range(3))
        staged = [StagedRow(row.sequence, row.start, 1, index) for index, row in enumerate(plan.rows)]
        positions[:count] = [row.start for row in staged]
        ids[:count] = [row.sequence.ids[row.start] if row.start < len(row.sequence.ids) else 0 for row in staged]
        slots[:count] = [
            row.sequence.blocks[row.start // block_size] * block_size + row.start % block_size for row in staged
        ]
        return StagedStep(ids, positions, slots, staged), list(range(count))

    @torch.inference_mode()
    def _capturable(self, size: int) -> tuple[list[Tensor], Work]:
        """A decode step of padding alone, for `DecodeGraphs.capture`."""
        self._stage_area.begin()
        zeros = np.zeros(size, dtype=np.int64)
        inputs = _Inputs(self._stage_area, StagedStep(zeros, zeros, zeros, []), self._paged)
        self._stage_area.send()

        @torch.inference_mode()
        def work() -> None:
            self._graph_logits[:size] = self._model.logits(inputs.ids, inputs.positions, inputs.batch, None)

        return inputs.tensors, work


class _Inputs:
    """What the model's forward reads of a stage, always laid out in this order."""

    def __init__(self, area: Stage, step: StagedStep, backend: PagedAttention) -> None:
        self.tensors: list[Tensor] = []

        def upload(array: np.ndarray[Any, Any]) -> Tensor:
            tensor = area.add(array)
            self.tensors.append(tensor)
            return tensor

        self.ids, self.positions = upload(step.ids), upload(step.positions)
        self.batch = backend.stage(step, upload)


class _Picker:
    """Which rows' tokens the device chooses, and by which rules."""

    def __init__(self, area: Stage, candidates: list[Row], rows: list[Row], vocab_size: int) -> None:
        self.chosen = [index for index, row in enumerate(candidates) if _chooses(row)]
        starts = np.cumsum([0, *(row.logits for row in rows)])
        mine = starts[self.chosen]
        self._all = len(mine) == starts[-1]
        self._mine, self._others = area.add(mine), area.add(np.setdiff1d(np.arange(starts[-1]), mine))
        asked = [(rows[i].sequence.job.parameters, _index(rows[i])) for i in self.chosen]
        self._rules = stage_rules(asked, vocab_size, area.add) if asked else None

    def pick(self, logits: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The logits that the host wants, and the tokens chosen here with their log probabilities."""
        others = logits.index_select(0, self._others)
        if self._rules is None:
            return others, None
        return others, choose(logits if self._all else logits.index_select(0, self._mine), self._rules)


def _chooses(row: Row) -> bool:
    """Whether the device chooses the token that follows a row."""
    sequence = row.sequence
    return row.logits == 1 and not row.draft and not sequence.wants_prompt_logprobs and samples(sequence.job.parameters)


def _index(row: Row) -> int:
    """Of the token that follows, counted from the first generated one."""
    return row.start + row.count - row.sequence.prompt_length


def _to_host(tensor: Tensor) -> Tensor:
    """A copy there, complete once the device is done with all that was launched."""
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned).copy_(tensor, non_blocking=True)


def _record() -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
