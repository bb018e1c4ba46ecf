"""Which blocks of the key/value cache hold the beginning of which texts.

A full block is named by a digest of its tokens and of everything before it: the digests of a text form a chain whose root
stands for all else that the keys and values depend on. 128 bits make a collision impossible in practice, so tokens are
not compared again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

_DIGEST_BYTES = 16


def root_digest(*parts: str | bytes | None) -> bytes:
    """Root of a chain: texts share blocks only when all of `parts` (model, revision, adapter, salt) are equal."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # Lengths keep ("a", "bc") and ("ab", "c") apart; a missing part is not an empty one.
        digest.update(b"-" if data is None else b"%d:" % len(data) + data)
    return digest.digest()


def block_digest(parent: bytes, ids: array[int]) -> bytes:
    """Digest of a full block behind `parent`, the digest of the block before it or the root."""
    return blake2b(parent + ids.tobytes(), digest_size=_DIGEST_BYTES).digest()


class PrefixCache:
    """Finds blocks by digest. A digest names one block, the newest that was added with it."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    def __len__(self) -> int:
        return len(self._digest_of)

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Blocks of the longest beginning of the chain that is known."""
        blocks = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def add(self, digest: bytes, block: int) -> int | None:
        """Name a block; returns the block that had the name before, if another one."""
        before = self._block_of.get(digest)
        if before == block:
            return None
        self.forget(block)
        if before is not None:
            del self._digest_of[before]
        self._block_of[digest] = block
        self._digest_of[block] = digest
        return before

    def forget(self, block: int) -> None:
        """The block will be written anew."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]
