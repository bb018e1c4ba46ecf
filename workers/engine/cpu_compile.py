"""How kernels for the CPU are compiled: by Numba, for the processor at hand, when they are first called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core import registry
from numba.extending import intrinsic as numba_intrinsic

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract"}}
"""Sums over a row may be vectorized, and products be added unrounded; NaN and infinities count."""

TARGET = registry.cpu_target.target_context.codegen().magic_tuple()
"""The system, the processor and its features that Numba compiles for."""

_SOURCES = sorted(Path(__file__).parent.glob("cpu_*.py"))
"""All files with parts of compiled functions."""


def compiled(function: Callable[..., Any]) -> Any:
    """A function that Python calls."""
    return _cached(function, numba.njit, nogil=True)


def compiled_callback(function: Callable[[Any], None]) -> Any:
    """A function that C calls with a pointer to integers of 64 bits. It is compiled at once."""
    signature = types.void(types.CPointer(types.intp))
    return _cached(function, numba.cfunc, signature)


def inlined(function: Callable[..., Any]) -> Any:
    """A part of compiled functions."""
    return numba.njit(inline="always")(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """A part of compiled functions that is written in LLVM's language."""
    return numba_intrinsic(function)


def _cached(function: Callable[..., Any], compiler: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Keep what is compiled on disk, beside the code or in the user's folder (`NUMBA_CACHE_DIR`), if one can be written.

    There Numba looks for it by the function's name. It notices when the function's own file has changed, but not when others
    have, and processes of unlike processors or versions would overwrite each other's: so the name changes with all that.
    """
    files = [path.read_bytes() for path in (*_SOURCES, Path(function.__code__.co_filename))]
    stamp = hashlib.sha256(b"".join([repr(TARGET).encode(), *files])).hexdigest()[:16]
    function.__qualname__ = f"{function.__name__}_{stamp}"
    try:
        return compiler(*arguments, cache=True, **options, **_OPTIONS)(function)
    except RuntimeError:
        return compiler(*arguments, **options, **_OPTIONS)(function)
