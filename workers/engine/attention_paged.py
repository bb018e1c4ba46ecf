"""Attention in plain torch over paged keys and values: any device, type and model, slow.

It serves the models that torch's flash attention does not take, and checks the other backends in tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workers.engine.attention import AttentionBatch, KVPool, LayerOptions, LayerShape, StagedRow, StagedStep
from workers.engine.staging import Upload
from workers.engine.whole_attention import attend_to

PAGE = 256
"""Tokens per block by default. Flash attention 2 wants pages in multiples of 256."""


class PagedAttention(ABC):
    """What backends over pages share."""

    fixed_shapes = False
    """Whether steps of as many tokens, one for each sequence, have arrays of the same shapes, which graphs need."""

    def __init__(
        self,
        layers: dict[int, LayerShape],
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int = PAGE,
        longest: int | None = None,
    ) -> None:
        """
        Args:
            longest: tokens of the longest sequence there will be; default: as many as the pool has.
        """
        self.block_size = block_size
        self.pool = KVPool(layers, num_blocks * block_size, dtype, device)
        self.device = device
        self.width = num_blocks if longest is None else -(-longest // block_size)
        """Blocks of the longest sequence."""

    @property
    def contiguous_blocks(self) -> bool:
        """Any block may follow any other."""
        return False

    def order(self, row: StagedRow) -> tuple[int, int]:
        # Decode rows first: they and the chunks of prefill are two kernel calls.
        return (row.count > 1, 0)

    def prepare(self, step: StagedStep) -> AttentionBatch:
        return self.stage(step, lambda array: torch.from_numpy(array).to(self.device))

    @abstractmethod
    def stage(self, step: StagedStep, upload: Upload) -> AttentionBatch:
        """`prepare` that sends its arrays by `upload`."""


class GatherAttention(PagedAttention):
    """Each sequence's keys and values are gathered from its blocks."""

    def stage(self, step: StagedStep, upload: Upload) -> GatherBatch:
        return GatherBatch(self.pool, self.block_size, step, upload)


class GatherBatch:
    """One step."""

    def __init__(self, pool: KVPool, block_size: int, step: StagedStep, upload: Upload) -> None:
        self._pool = pool
        self._block_size = block_size
        self._slots = upload(step.slots)
        self._rows = [(row, upload(self._slots_of(row))) for row in step.rows]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        output = query.new_zeros(*query.shape[:2], value.shape[-1])
        for row, slots in self._rows:
            part = slice(row.first, row.first + row.count)
            output[part] = attend_to(query[part], keys[slots], values[slots], row.start, options)
        return output

    def _slots_of(self, row: StagedRow) -> npt.NDArray[np.int64]:
        places = np.arange(row.length)
        blocks = np.asarray(row.sequence.blocks, dtype=np.int64)[places // self._block_size]
        return blocks * self._block_size + places % self._block_size
