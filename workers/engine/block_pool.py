"""Which blocks of the key/value cache are free, and what those that are still hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from workers.engine.prefix_cache import PrefixCache

_USED = np.iinfo(np.int64).max


class BlockPool:
    """Hands out blocks 1 to `num_blocks - 1`; block 0 is a dummy for padding and is never handed out.

    With `contiguous=True` an allocation is one extent of consecutive ids, so that on CPU a sequence's keys and values are
    one view; otherwise it may be pieced together, and sequences may share blocks (`share`): a block is free when the last
    one that holds it frees it.

    A freed block that was published keeps its content, and `find` finds it, until it is handed out again. Blocks without
    such content go first, in ascending order, then those that were freed longest ago, of one sequence the last first.
    """

    def __init__(self, num_blocks: int, block_size: int, *, contiguous: bool) -> None:
        """
        Args:
            num_blocks: blocks of the cache, the dummy included (>= 2).
            block_size: tokens per block.
        """
        if num_blocks < 2 or block_size < 1:
            raise ValueError(f"a cache needs at least 2 blocks of 1 token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.contiguous = contiguous
        self._freed_at = np.zeros(num_blocks, dtype=np.int64)
        """Order in which free blocks with content were freed, 0 for free ones without, `_USED` for the others."""
        self._freed_at[0] = _USED
        self._holders = [0] * num_blocks
        self._free = num_blocks - 1
        self._frees = 0
        self._cache = PrefixCache()

    @property
    def capacity(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        return self._free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def is_free(self, block: int) -> bool:
        return bool(self._freed_at[block] < _USED)

    def shared(self, block: int) -> bool:
        """Whether several sequences hold the block."""
        return self._holders[block] > 1

    def fits(self, count: int, freed: Iterable[int] = ()) -> bool:
        """Whether `allocate(count)` would succeed, once `freed` (with repetitions) were freed too."""
        gone = [block for block, times in Counter(freed).items() if self._holders[block] <= times]
        if not self.contiguous:
            return self._free + len(gone) >= count
        free = self._freed_at < _USED
        free[gone] = True
        return _longest_run(free) >= count

    def allocate(self, count: int, near: int | None = None) -> list[int] | None:
        """`count` blocks (>= 1), or None when they are not free (for `contiguous`, not in one piece).

        Args:
            near: where an extent should begin if it can.
        """
        if count < 1:
            raise ValueError(f"cannot allocate {count} blocks")
        if self._free < count:
            return None
        if self.contiguous:
            start = self._extent(count, near)
            if start is None:
                return None
            blocks = list(range(start, start + count))
        else:
            blocks = self._scattered(count)
        self._freed_at[blocks] = _USED
        self._free -= count
        for block in blocks:
            self._holders[block] = 1
            self._cache.forget(block)
        return blocks

    def share(self, blocks: list[int]) -> None:
        """Hold blocks that `find` found or another sequence holds; each holder frees them."""
        for block in blocks:
            if self._holders[block] == 0:
                self._freed_at[block] = _USED
                self._free -= 1
            self._holders[block] += 1

    def free(self, blocks: list[int]) -> None:
        """Give blocks back.

        Raises:
            ValueError: a block is not handed out; the pool is unchanged.
        """
        if len(set(blocks)) != len(blocks) or not all(0 < b < self.num_blocks and self._holders[b] for b in blocks):
            raise ValueError(f"blocks freed that are not handed out: {blocks}")
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._frees += 1
                self._freed_at[block] = self._frees if block in self._cache else 0
                self._free += 1

    # -- what blocks hold

    def publish(self, block: int, digest: bytes) -> None:
        """A block that is handed out is full, and from now on it is never written to."""
        replaced = self._cache.add(digest, block)
        if replaced is not None and self.is_free(replaced):
            self._freed_at[replaced] = 0

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Blocks, free or not, that hold the longest beginning of this chain."""
        return self._cache.find(digests)

    # -- which blocks to take

    def _extent(self, count: int, near: int | None) -> int | None:
        if near is not None and near + count <= self.num_blocks and (self._freed_at[near : near + count] < _USED).all():
            return near
        # The extent whose most recent content is the oldest.
        newest = _window_max(self._freed_at, count)
        start = int(newest.argmin())
        return start if newest[start] < _USED else None

    def _scattered(self, count: int) -> list[int]:
        blocks: list[int] = np.flatnonzero(self._freed_at == 0)[:count].tolist()
        missing = count - len(blocks)
        if missing == 1:
            rest = np.where(self._freed_at > 0, self._freed_at, _USED)
            blocks.append(int(rest.argmin()))
        elif missing:
            rest = np.where(self._freed_at > 0, self._freed_at, _USED)
            oldest = np.argpartition(rest, missing - 1)[:missing]
            blocks.extend(sorted(oldest.tolist(), key=lambda block: int(rest[block])))
        return blocks


def _longest_run(free: npt.NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(free.astype(np.int8), prepend=0, append=0))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _window_max(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Largest of each `width` neighbours, by doubling."""
    done, largest = 1, values
    while done < width:
        step = min(done, width - done)
        largest = np.maximum(largest[:-step], largest[step:])
        done += step
    return largest
