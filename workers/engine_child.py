"""What runs first in the engine process: ties its life to the worker's, shows signs of life, starts the engine."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from common.logs import configure_logging
from common.settings import Settings
from common.wire import encode_msgpack
from workers.engine.messages import EngineFailure

SIGN_SECONDS = 0.25

_PR_SET_PDEATHSIG = 1


def run_child(pipe: Connection, signs: Connection, settings: Settings, parent: int) -> None:
    """Be the engine process.

    Args:
        pipe: messages from and to the worker.
        signs: where a byte is written every `SIGN_SECONDS`, whatever the engine does, unless the whole process stands
            still.
        settings: names the function that is the engine (`engine_target`).
        parent: the worker's process id.
    """
    _die_with_parent(parent)
    # Ctrl-C and a service manager signal the whole group; the worker decides when its engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_logging(settings)
    # Libraries draw bars wherever standard error is; how far the engine is goes through the pipe.
    os.environ.setdefault("TQDM_DISABLE", "1")
    threading.Thread(target=_show_life, args=(signs,), name="signs-of-life", daemon=True).start()
    try:
        module, _, function = settings.engine_target.partition(":")
        run: Callable[[Connection, Settings], None] = getattr(importlib.import_module(module), function)
        run(pipe, settings)
    except EOFError:
        return  # The worker is gone.
    except Exception as error:  # noqa: BLE001
        # The boundary of the process: the worker logs the message, our stderr has the traceback.
        message = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            pipe.send_bytes(encode_msgpack(EngineFailure(message)))
        traceback.print_exc()
        sys.exit(1)


def _show_life(signs: Connection) -> None:
    # Bare bytes: the worker may stand still itself, and reads what has gathered at once.
    os.set_blocking(signs.fileno(), False)
    while True:
        try:
            os.write(signs.fileno(), b".")
        except BlockingIOError:
            pass  # A worker that was frozen for hours.
        except OSError:
            return
        time.sleep(SIGN_SECONDS)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its worker dies, even while it is busy in a long step (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
