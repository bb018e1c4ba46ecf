"""Bringing a batch's results to files of one's own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from common.batches.objects import BatchObject
from ops.batches.client import BatchClient
from ops.batches.input import BadInput
from ops.batches.progress import BatchView

STANDARD_OUTPUT = Path("-")


def errors_beside(output: Path) -> Path:
    """Where failed lines go when nothing else is said: `answers.errors.jsonl` beside `answers.jsonl`."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


def is_device(path: Path) -> bool:
    """Whether something is there that is no file (`/dev/null`, a pipe): it is written to, never replaced or removed."""
    return path.exists() and not path.is_file()


def check_writable(path: Path) -> None:
    """Raises `BadInput` for a path that no results can be written to, before there are any."""
    if not path.parent.is_dir():
        raise BadInput(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise BadInput(f"{path} cannot be written: it is a folder")
    if not os.access(path if is_device(path) else path.parent, os.W_OK):
        raise BadInput(f"{path} cannot be written: permission denied")


def fetch(client: BatchClient, batch: BatchObject, output: Path, errors: Path, view: BatchView) -> None:
    """Write answered lines to `output` and failed ones to `errors`, each whole or not at all.

    What an earlier run left in these files goes, also where there is nothing to put in its place: `output` is empty then, `errors`
    is not there. A batch that has no results at all changes nothing.

    Raises:
        ServiceError, OSError
    """
    if batch.output_file_id is None and batch.error_file_id is None:
        return
    if batch.output_file_id is not None:
        _write(client, batch.output_file_id, output, view, "answers")
    elif output != STANDARD_OUTPUT and not is_device(output):
        output.write_bytes(b"")
    if batch.error_file_id is not None:
        _write(client, batch.error_file_id, errors, view, "failed lines")
    elif errors != STANDARD_OUTPUT and errors.is_file() and not errors.is_symlink():
        errors.unlink()


def _write(client: BatchClient, file_id: str, path: Path, view: BatchView, what: str) -> None:
    if path == STANDARD_OUTPUT:
        client.download(file_id, sys.stdout.buffer)
        sys.stdout.flush()
        return
    if is_device(path):
        with path.open("wb") as device:
            client.download(file_id, device)
        return
    target = path.resolve()  # A link stays a link.
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            client.download(file_id, file, lambda done, size: view.transfer("fetching", done, size))
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    finally:
        view.done()
    view.line(f"{what}: {path}")
