"""No block is handed out twice or lost, whatever the order of calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.block_pool import BlockPool

actions = st.lists(st.one_of(st.integers(1, 12), st.integers(-20, -1)), max_size=80)


@pytest.mark.parametrize("contiguous", [True, False])
@given(actions=actions)
def test_blocks_are_neither_shared_nor_lost(contiguous: bool, actions: list[int]) -> None:
    pool = BlockPool(32, 16, contiguous=contiguous)
    held: list[list[int]] = []
    for action in actions:
        if action > 0:
            fits = pool.fits(action)
            blocks = pool.allocate(action)
            assert fits == (blocks is not None)
            if blocks is None:
                assert contiguous or pool.free_blocks < action
                continue
            assert len(blocks) == action
            if contiguous:
                assert blocks == list(range(blocks[0], blocks[0] + action))
            held.append(blocks)
        elif held:
            pool.free(held.pop(action % len(held)))
        in_use = [block for blocks in held for block in blocks]
        assert len(in_use) == len(set(in_use))
        assert all(0 < block < 32 for block in in_use)
        assert pool.free_blocks == pool.capacity - len(in_use)
    for blocks in held:
        pool.free(blocks)
    assert pool.allocate(pool.capacity) == list(range(1, 32))


def test_contiguous_takes_the_first_extent_that_fits() -> None:
    pool = BlockPool(11, 16, contiguous=True)
    first, second, third = pool.allocate(3), pool.allocate(2), pool.allocate(5)
    assert (first, second, third) == ([1, 2, 3], [4, 5], [6, 7, 8, 9, 10])
    pool.free([1, 2, 3])
    pool.free([6, 7, 8, 9, 10])
    assert pool.allocate(4) == [6, 7, 8, 9]
    assert pool.allocate(4) is None
    assert pool.allocate(3) == [1, 2, 3]


def test_scattered_blocks_serve_when_contiguity_does_not_matter() -> None:
    pool = BlockPool(8, 16, contiguous=False)
    pool.allocate(7)
    pool.free([2])
    pool.free([5, 6])
    assert pool.allocate(3) == [2, 5, 6]


@pytest.mark.parametrize("blocks", [[0], [3], [1, 1], [32], [-1]])
def test_freeing_what_is_not_handed_out_is_an_error(blocks: list[int]) -> None:
    pool = BlockPool(32, 16, contiguous=False)
    pool.allocate(2)
    with pytest.raises(ValueError, match="not handed out"):
        pool.free(blocks)
    assert pool.free_blocks == 29


def test_blocks_for_rounds_up() -> None:
    pool = BlockPool(32, 16, contiguous=True)
    assert [pool.blocks_for(tokens) for tokens in (1, 16, 17, 32, 33)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (2, 0)])
def test_a_cache_without_room_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(num_blocks, block_size, contiguous=True)


def test_an_empty_allocation_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        BlockPool(2, 1, contiguous=True).allocate(0)
