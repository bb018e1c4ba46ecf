"""`tgq batch run`: a file in, a file out."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from common.batches.objects import BatchObject
from common.model_files import ModelNotFound
from common.redis_checks import RedisUnfit
from common.settings import Settings
from ops.batches.client import BatchClient
from ops.batches.following import follow
from ops.batches.input import BadInput, first_url
from ops.batches.outcome import FAILED, INTERRUPTED, told
from ops.batches.own_service import own_service_settings
from ops.batches.progress import BatchView, view_for_stderr
from ops.batches.results import STANDARD_OUTPUT, check_writable, errors_beside, fetch, is_device
from ops.embedded_redis import RedisUnavailable
from ops.options import BAD_USAGE
from ops.ports import PortTaken
from ops.service_client import ServiceError
from ops.serving import view as serving
from ops.serving.child import ChildFailed
from ops.serving.service import Service, Stopped

CANCEL_SECONDS = 30.0
"""Time a batch has to end once it is cancelled."""
MOMENT = 0.1
_SERVICE_WINDOW = "24h"


def run_file(
    settings: Settings, source: Path, output: Path, *, errors: Path | None, url: str | None, endpoint: str | None
) -> int:
    """Run a batch from a file to files, on a service that runs, or on one of our own; returns the exit status.

    One signal to stop cancels the batch and writes what there is, another one ends it at once.
    """
    console = Console(stderr=True, highlight=False)
    view = view_for_stderr(console)
    try:
        to = endpoint or first_url(source)
        check_writable(output)
        failed = errors or errors_beside(source if output == STANDARD_OUTPUT else output)
        check_writable(failed)
        run = _Run(source, output, failed, to, view)
        if url is None:
            return _on_our_own(run, console)
        key = settings.api_key.get_secret_value() if settings.api_key else None
        return _on_service(run, url, key)
    except BadInput as error:
        print(f"tgq: {error}", file=sys.stderr)
        return BAD_USAGE
    except (ServiceError, OSError, ModelNotFound, ChildFailed, RedisUnavailable, RedisUnfit, PortTaken) as error:
        print(f"tgq: {error}", file=sys.stderr)
        return FAILED


class _Run:
    def __init__(self, source: Path, output: Path, errors: Path, endpoint: str, view: BatchView) -> None:
        self.source = source
        self.output = output
        self._errors = errors
        self._endpoint = endpoint
        self._view = view

    def through(self, client: BatchClient, window: str, waiting: _Waiting) -> int:
        """Hand in, follow, fetch; returns the exit status. Raises `Stopped` when the batch could not even be cancelled."""
        view, stopped = self._view, False
        try:
            progress = partial(view.transfer, "sending")
            batch = client.submit(self.source, self._endpoint, window=window, progress=progress)
            try:
                batch = follow(client, batch.id, view, pause=waiting.running)
            except Stopped:
                stopped = True
                view.line("cancelling; once more to end it at once")
                with suppress(ServiceError):  # It may be too late: then it ends by itself.
                    client.cancel(batch.id)
                batch = follow(client, batch.id, view, pause=waiting.ending)
        finally:
            view.done()
        fetch(client, batch, self.output, self._errors, view)
        self._clean(client, batch)
        status = told(batch, view)
        return INTERRUPTED if stopped else status

    def _clean(self, client: BatchClient, batch: BatchObject) -> None:
        """What was put on the service for this run is not needed there any more."""
        for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                try:
                    client.delete_file(file_id)
                except ServiceError as error:
                    self._view.line(f"{file_id} is left on the service: {error}")


class _Waiting:
    """Waits while a batch runs, and then while it ends."""

    def __init__(self, signals: Callable[[], int], tend: Callable[[], None]) -> None:
        """
        Args:
            signals: how many times somebody asked for the end.
            tend: called again and again meanwhile; takes a moment.
        """
        self._signals = signals
        self._tend = tend
        self._end = float("inf")

    def running(self, seconds: float) -> None:
        """Raises `Stopped` at the first signal."""
        self._wait(seconds, 1)

    def ending(self, seconds: float) -> None:
        """Raises `Stopped` at the second signal, or when it has taken too long."""
        self._end = min(self._end, time.monotonic() + CANCEL_SECONDS)
        self._wait(seconds, 2)

    def _wait(self, seconds: float, most: int) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if self._signals() >= most or now >= self._end:
                raise Stopped
            self._tend()


def _on_service(run: _Run, url: str, api_key: str | None) -> int:
    signals = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1

    _on_signals(note)
    try:
        with BatchClient(url, api_key) as client:
            return run.through(client, _SERVICE_WINDOW, _Waiting(lambda: signals, lambda: time.sleep(MOMENT)))
    except Stopped:
        return INTERRUPTED


def _on_our_own(run: _Run, console: Console) -> int:
    status = FAILED
    # Beside the results, if they are to be a file: there is room for one, so there is for the other.
    beside = None if is_device(run.output) else run.output.parent
    with tempfile.TemporaryDirectory(prefix=".tgq-batch-", dir=beside) as folder:
        settings, key, window = own_service_settings(Path(folder), run.source.stat().st_size)
        service = Service(settings, serving.view_for_stderr(console))

        def note(number: int, frame: FrameType | None) -> None:
            service.stop_signals += 1

        def tend() -> None:
            service.look_after()
            time.sleep(MOMENT)

        def work() -> None:
            nonlocal status
            with BatchClient(service.address, key) as client:
                status = run.through(client, window, _Waiting(lambda: service.stop_signals, tend))

        _on_signals(note)
        ended = service.run_for(work)
    return INTERRUPTED if service.stop_signals else ended or status


def _on_signals(note: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
