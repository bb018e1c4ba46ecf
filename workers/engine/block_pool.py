"""Which blocks of the key/value cache are free."""

from __future__ import annotations

from bisect import bisect_left


class BlockPool:
    """Hands out blocks 1 to `num_blocks - 1`; block 0 is a dummy for padding and is never handed out.

    Free blocks are kept as extents in ascending order. With `contiguous=True` an allocation is one extent of consecutive
    ids (first fit), so that on CPU a sequence's keys and values are one view; otherwise it may be pieced together.
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
        self._free: list[tuple[int, int]] = [(1, num_blocks)]
        """Extents `[start, stop)`, sorted, never empty, never touching."""
        self._used = bytearray(num_blocks)

    @property
    def capacity(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        return sum(stop - start for start, stop in self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def fits(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed now."""
        if self.contiguous:
            return any(stop - start >= count for start, stop in self._free)
        return self.free_blocks >= count

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks (>= 1), or None when they are not free (for `contiguous`, not in one piece)."""
        if count < 1:
            raise ValueError(f"cannot allocate {count} blocks")
        if not self.fits(count):
            return None
        blocks: list[int] = []
        for start, stop in list(self._free):
            take = min(stop - start, count - len(blocks))
            if self.contiguous and take < count:
                continue
            self._take(start, stop, take)
            blocks.extend(range(start, start + take))
            if len(blocks) == count:
                break
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Give blocks back.

        Raises:
            ValueError: a block is not handed out; the pool is unchanged.
        """
        if len(set(blocks)) != len(blocks) or not all(0 < b < self.num_blocks and self._used[b] for b in blocks):
            raise ValueError(f"blocks freed that are not handed out: {blocks}")
        for start, stop in _extents(sorted(blocks)):
            self._used[start:stop] = bytes(stop - start)
            self._insert(start, stop)

    def _take(self, start: int, stop: int, count: int) -> None:
        self._used[start : start + count] = b"\x01" * count
        index = bisect_left(self._free, (start, stop))
        self._free[index : index + 1] = [(start + count, stop)] if start + count < stop else []

    def _insert(self, start: int, stop: int) -> None:
        index = bisect_left(self._free, (start, stop))
        before = after = index
        if index > 0 and self._free[index - 1][1] == start:
            before, start = index - 1, self._free[index - 1][0]
        if index < len(self._free) and self._free[index][0] == stop:
            after, stop = index + 1, self._free[index][1]
        self._free[before:after] = [(start, stop)]


def _extents(ids: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive ids, as `[start, stop)`."""
    runs: list[tuple[int, int]] = []
    for i in ids:
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs
