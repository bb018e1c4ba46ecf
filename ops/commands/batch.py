"""`tgq batch`: hand in batches, follow them, fetch their results. What does the work is imported when a command runs."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.configuration import Configuration
from ops.options import BAD_USAGE, with_settings
from ops.service_options import Key, Url, service_url

if TYPE_CHECKING:
    from ops.batches.client import BatchClient

app = typer.Typer(
    name="batch",
    help="Run files of requests beside live traffic: OpenAI's batch format, one request a line. Exit status: 0 when every line "
    "was answered, 3 when some failed, 1 when the batch did not come to its end, 2 for a wrong command line.",
    no_args_is_help=True,
)

Endpoint = Annotated[str | None, typer.Option(help="What the requests are for.", show_default="as the first line says")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="File for the answers; - for standard output.", show_default=False)
]
Errors = Annotated[
    Path | None,
    typer.Option(help="File for the lines that failed.", show_default="OUT with .errors before its ending"),
]


def _reported(command: Callable[..., int]) -> Callable[..., None]:
    """Tell people in one line what went wrong, and programs by the exit status."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        from ops.batches.input import BadInput
        from ops.batches.outcome import FAILED, INTERRUPTED
        from ops.service_client import ServiceError

        try:
            status = command(*args, **options)
        except BadInput as error:
            print(f"tgq: {error}", file=sys.stderr)
            status = BAD_USAGE
        except (ServiceError, OSError) as error:
            print(f"tgq: {error}", file=sys.stderr)
            status = FAILED
        except KeyboardInterrupt:
            status = INTERRUPTED
        raise typer.Exit(status)

    return run


@app.command()
@_reported
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Requests, one JSON object a line.")],
    url: Url = None,
    api_key: Key = None,
    endpoint: Endpoint = None,
    window: Annotated[str, typer.Option(help="Time the batch may take.")] = "24h",
    metadata: Annotated[list[str] | None, typer.Option(help="NAME=VALUE to keep with it; may be repeated.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")] = False,
) -> int:
    """Hand in a file of requests; prints the batch's id."""
    from ops.batches.input import first_url, pairs
    from ops.batches.progress import view_for_stderr

    view = view_for_stderr()
    to, notes = endpoint or first_url(file), pairs(metadata or [])
    with _client(url, api_key) as client:
        progress = functools.partial(view.transfer, "sending")
        try:
            batch = client.submit(file, to, window=window, metadata=notes, progress=progress)
        finally:
            view.done()
        print(batch.id, flush=True)
        return _watch(client, batch.id) if watch else 0


@app.command("list")
@_reported
def list_(
    url: Url = None,
    api_key: Key = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many, the newest.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List the batches of your key, the newest first."""
    import msgspec

    from ops.batches.table import rows
    from ops.columns import print_columns

    with _client(url, api_key) as client:
        batches = client.batches(limit)
    if as_json:
        print(json.dumps(msgspec.to_builtins(batches), indent=2))
    else:
        print_columns(rows(batches))
    return 0


@app.command()
@_reported
def watch(
    batch_id: Annotated[str, typer.Argument(metavar="ID")],
    url: Url = None,
    api_key: Key = None,
) -> int:
    """Follow a batch to its end: lines done, failed, tokens a second, time left. Ctrl-C leaves it running."""
    with _client(url, api_key) as client:
        return _watch(client, batch_id)


@app.command()
@_reported
def cancel(
    batch_id: Annotated[str, typer.Argument(metavar="ID")],
    url: Url = None,
    api_key: Key = None,
) -> int:
    """Stop a batch; what is answered by then can be fetched."""
    with _client(url, api_key) as client:
        batch = client.cancel(batch_id)
    print(f"{batch.id}: {batch.status}")
    return 0


@app.command()
@_reported
def fetch(
    batch_id: Annotated[str, typer.Argument(metavar="ID")],
    out: Out = None,
    errors: Errors = None,
    url: Url = None,
    api_key: Key = None,
) -> int:
    """Write the answers of a batch that has ended to ID.jsonl or OUT, and failed lines to a file beside it."""
    from ops.batches.outcome import FAILED, told
    from ops.batches.progress import view_for_stderr
    from ops.batches.results import STANDARD_OUTPUT, errors_beside, fetch

    view = view_for_stderr()
    with _client(url, api_key) as client:
        batch = client.batch(batch_id)
        if batch.open:
            print(f"tgq: {batch.id} has not ended: it is {batch.status} (tgq batch watch {batch.id})", file=sys.stderr)
            return FAILED
        named = Path(f"{batch.id}.jsonl")
        output = out or named
        fetch(client, batch, output, errors or errors_beside(named if output == STANDARD_OUTPUT else output), view)
    return told(batch, view)


@app.command()
@with_settings
def run(
    configuration: Configuration,
    file: Annotated[Path, typer.Argument(metavar="IN", help="Requests, one JSON object a line.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File for the answers; - for standard output.")],
    url: Annotated[
        str | None,
        typer.Option(help="Address of a running service.", show_default="one that is started for this"),
    ] = None,
    endpoint: Endpoint = None,
    errors: Errors = None,
) -> int:
    """Answer a file of requests: hand in, follow, fetch. Without --url all that takes is started here and stopped again.

    Ctrl-C cancels the batch and writes what is answered by then.
    """
    from ops.batches.run import run_file

    return run_file(configuration.settings, file, out, errors=errors, url=url, endpoint=endpoint)


def _client(url: str | None, api_key: str | None) -> BatchClient:
    from ops.batches.client import BatchClient

    return BatchClient(service_url(url), api_key)


def _watch(client: BatchClient, batch_id: str) -> int:
    from ops.batches.following import follow
    from ops.batches.outcome import INTERRUPTED, told
    from ops.batches.progress import view_for_stderr

    view = view_for_stderr()
    try:
        batch = follow(client, batch_id, view)
    except KeyboardInterrupt:
        view.done()
        view.line(f"{batch_id} goes on (tgq batch watch {batch_id}, tgq batch cancel {batch_id})")
        return INTERRUPTED
    finally:
        view.done()
    return told(batch, view)
