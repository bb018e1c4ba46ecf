"""How kernels for the CPU are compiled: by Numba, for the processor at hand, when they are first called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic as numba_intrinsic

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract"}}
"""Sums over a row may be vectorized, and products be added unrounded; NaN and infinities count."""


def compiled(function: Callable[..., Any]) -> Any:
    """A function that Python calls."""
    return _cached(lambda cache: numba.njit(cache=cache, nogil=True, **_OPTIONS)(function))


def compiled_callback(function: Callable[[Any], None]) -> Any:
    """A function that C calls with a pointer to integers of 64 bits. It is compiled at once."""
    signature = types.void(types.CPointer(types.intp))
    return _cached(lambda cache: numba.cfunc(signature, cache=cache, **_OPTIONS)(function))


def inlined(function: Callable[..., Any]) -> Any:
    """A part of compiled functions."""
    return numba.njit(inline="always")(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """A part of compiled functions that is written in LLVM's language."""
    return numba_intrinsic(function)


def _cached(compile_: Callable[[bool], Any]) -> Any:
    """Keep what is compiled on disk, beside the code or in the user's folder (`NUMBA_CACHE_DIR`), if one can be written."""
    try:
        return compile_(True)
    except RuntimeError:
        return compile_(False)
