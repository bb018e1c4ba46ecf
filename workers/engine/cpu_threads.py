"""Kernels of Numba in torch's own threads.

Numba would run parallel loops in threads of its own. Threads of either pool spin for a while when their work is done, so
that two pools take the cores from each other. Here the bodies of loops go to the OpenMP library that torch has loaded, by
the function that compilers call for `#pragma omp parallel`, and share torch's threads.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from numba import types

from workers.engine.cpu_compile import compiled, compiled_callback, intrinsic

_log = logging.getLogger(__name__)

_PARALLEL, _NUMBER, _COUNT = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"


def _find() -> bool:
    """Make the functions of torch's OpenMP library known to compiled code."""
    folder = f"{Path(torch.__file__).parent}/"
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    paths = {line.split(maxsplit=5)[-1] for line in lines if re.search(r"/lib[gi]?omp[^/]*$", line)}
    # What was loaded before everything else serves torch as well; otherwise its own library comes first.
    for path in [None, *sorted(paths, key=lambda path: (not path.startswith(folder), path))]:
        library = ctypes.CDLL(path)
        if all(hasattr(library, name) for name in (_PARALLEL, _NUMBER, _COUNT)):
            for name in (_PARALLEL, _NUMBER, _COUNT):
                address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                llvmlite.binding.add_symbol(name, address)
            return True
    return False


AVAILABLE = _find()
"""Whether compiled code may call what follows: torch has an OpenMP library, as its builds for Linux do."""
if not AVAILABLE:
    _log.warning(
        "torch's OpenMP library was not found: products of few rows are torch's own on the CPU, which is slower"
    )

# The address of a thread's body, its argument (an array's `ctypes`, which keeps it alive), the number of threads, and nought.
parallel = types.ExternalFunction(_PARALLEL, types.void(types.intp, types.voidptr, types.uint32, types.uint32))
thread_number = types.ExternalFunction(_NUMBER, types.int32())
thread_count = types.ExternalFunction(_COUNT, types.int32())


def thread_body(part: Callable[[Any], None]) -> int:
    """Compile what each thread of a region does, given a pointer to integers of 64 bits, and give its address."""
    _kept.append(compiled_callback(part))
    address: int = _kept[-1].address
    return address


_kept: list[Any] = []


@intrinsic
def pointer(_context: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to numbers of the type of `like`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


@compiled
def run(body: int, shape: Any, given: int, out: int, rows: int, threads: int) -> None:
    """Have a region of threads run a body whose argument is six numbers of `shape`, two addresses and the number of rows."""
    arguments = np.empty(9, dtype=np.intp)
    arguments[:6] = shape
    arguments[6], arguments[7], arguments[8] = given, out, rows
    parallel(body, arguments.ctypes, threads, 0)
