"""Digests and the blocks they name."""

from __future__ import annotations

from array import array

from workers.engine.block_pool import BlockPool
from workers.engine.prefix_cache import PrefixCache, block_digest, root_digest


def chain(ids: list[int], root: bytes = b"root", size: int = 4) -> list[bytes]:
    digests = [root]
    for start in range(0, len(ids) - size + 1, size):
        digests.append(block_digest(digests[-1], array("I", ids[start : start + size])))
    return digests[1:]


def test_a_digest_stands_for_everything_before_its_block() -> None:
    one, two = chain([1, 2, 3, 4, 5, 6, 7, 8]), chain([9, 2, 3, 4, 5, 6, 7, 8])
    assert len({*one, *two}) == 4
    assert chain([1, 2, 3, 4, 9, 9, 9, 9])[0] == one[0]
    assert {len(digest) for digest in one} == {16}


def test_roots_differ_with_any_part() -> None:
    roots = [
        root_digest("m", None, ""),
        root_digest("m", "", ""),
        root_digest("m", "r", ""),
        root_digest("mr", None, ""),
    ]
    roots += [root_digest("m", None, b"x"), root_digest("m", None), root_digest("a", "bc"), root_digest("ab", "c")]
    assert len(set(roots)) == len(roots)
    assert root_digest("m", None, "") == roots[0]


def test_the_longest_known_beginning_is_found() -> None:
    cache = PrefixCache()
    digests = chain(list(range(16)))
    for block, digest in zip((7, 3, 9), digests, strict=False):
        cache.add(digest, block)
    assert cache.find(digests) == [7, 3, 9]
    assert cache.find(chain([0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 1, 1])) == [7, 3]
    cache.forget(3)
    assert cache.find(digests) == [7]
    assert (7 in cache, 3 in cache, len(cache)) == (True, False, 2)


def test_a_name_belongs_to_the_newest_block() -> None:
    cache = PrefixCache()
    assert cache.add(b"a", 1) is None
    assert cache.add(b"a", 1) is None
    assert cache.add(b"a", 2) == 1
    assert cache.find([b"a"]) == [2]
    assert 1 not in cache
    cache.add(b"b", 2)
    assert cache.find([b"a"]) == []
    assert cache.find([b"b"]) == [2]


def test_freed_content_is_found_until_its_block_is_handed_out() -> None:
    pool = BlockPool(7, 4, contiguous=False)
    blocks = pool.allocate(3)
    assert blocks == [1, 2, 3]
    for block, digest in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.publish(block, digest)
    pool.free(blocks)
    assert pool.find([b"a", b"b", b"c"]) == [1, 2, 3]
    # Blocks without content first, then the end of what was freed.
    assert pool.allocate(4) == [4, 5, 6, 3]
    assert pool.find([b"a", b"b", b"c"]) == [1, 2]
    assert pool.allocate(1) == [2]
    assert pool.find([b"a", b"b"]) == [1]


def test_what_was_used_last_is_kept_longest() -> None:
    pool = BlockPool(5, 4, contiguous=False)
    for digest in (b"a", b"b", b"c", b"d"):
        (block,) = pool.allocate(1) or []
        pool.publish(block, digest)
    pool.free([1])
    pool.free([2])
    pool.share(pool.find([b"a"]))
    pool.free([3])
    pool.free([1])
    assert pool.allocate(2) == [2, 3]
    assert pool.find([b"a"]) == [1]


def test_shared_blocks_are_free_when_the_last_holder_has_freed_them() -> None:
    pool = BlockPool(4, 4, contiguous=False)
    blocks = pool.allocate(2) or []
    pool.share(blocks[:1])
    assert (pool.shared(1), pool.shared(2), pool.free_blocks) == (True, False, 1)
    pool.free(blocks)
    assert (pool.is_free(1), pool.is_free(2), pool.free_blocks) == (False, True, 2)
    assert pool.fits(3, freed=[1])
    assert not pool.fits(3)
    pool.free([1])
    assert pool.allocate(3) == [1, 2, 3]


def test_an_extent_takes_the_place_of_the_oldest_content() -> None:
    pool = BlockPool(13, 4, contiguous=True)
    extents = [pool.allocate(3) or [] for _ in range(4)]
    for extent in extents:
        for block in extent:
            pool.publish(block, bytes([block]))
    for index in (2, 0, 3, 1):
        pool.free(extents[index])
    assert pool.allocate(3) == extents[2]
    assert pool.allocate(2) == [2, 3]
    assert pool.find([bytes([1])]) == [1]
    assert pool.find([bytes([2])]) == []
    # Where it continues what it begins with, if that is free.
    assert pool.allocate(3, near=4) == [4, 5, 6]
    assert pool.allocate(3, near=5) == [10, 11, 12]


def test_an_extent_fits_once_others_are_freed() -> None:
    pool = BlockPool(11, 4, contiguous=True)
    first, second, third = (pool.allocate(count) or [] for count in (3, 3, 4))
    assert not pool.fits(1)
    assert pool.fits(3, freed=first)
    assert pool.fits(6, freed=first + second)
    assert not pool.fits(6, freed=first + third)
    assert pool.fits(10, freed=first + second + third)
