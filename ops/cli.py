"""The `tgq` command line.

Commands are imported when they run: the command line itself starts fast, and a web node never loads torch.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from common import __version__
from common.libraries import unfit_libraries
from ops import completion
from ops.commands import batch, bench
from ops.configuration import Configuration
from ops.options import SettingsCommand, with_redis_settings, with_settings
from ops.program import run_program
from ops.service_options import Key, Url, service_url

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_WORKERS = typer.Argument(
    metavar="WORKER", help="Ids from `tgq ps`, or their beginnings or ends.", autocompletion=completion.workers
)
Workers = Annotated[list[str], _WORKERS]

app = typer.Typer(
    name="tgq",
    cls=completion.Group,
    help="Text generation on a queue. Settings are flags and environment variables; `tgq env` shows them all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(batch.app)
app.add_typer(bench.app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tgq {__version__}")
        raise typer.Exit


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if (problem := unfit_libraries()) is not None:
        typer.echo(f"tgq: {problem}", err=True)
        raise typer.Exit(1)


@app.command(cls=SettingsCommand)
@with_settings
def serve(configuration: Configuration) -> int:
    """Run all of it here: Redis unless REDIS_URL is set, workers, and a web node."""
    from ops.commands.serve import run

    return run(configuration)


@app.command(cls=SettingsCommand)
@with_settings
def web(configuration: Configuration) -> int:
    """Run a web node."""
    from ops.commands.web import run

    return run(configuration)


@app.command(cls=SettingsCommand)
@with_settings
def worker(configuration: Configuration) -> int:
    """Run a worker."""
    from ops.commands.worker import run

    return run(configuration)


@app.command("batch-worker", cls=SettingsCommand)
@with_settings
def batch_worker(
    configuration: Configuration,
    forgetful_redis: Annotated[bool, typer.Option("--forgetful-redis", hidden=True)] = False,
) -> int:
    """Run a batch runner: it takes batches line by line through the queue, behind live requests."""
    from ops.commands.batch_worker import run

    return run(configuration, forgetful_redis=forgetful_redis)


@app.command()
def chat(
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION", help="Ask this alone.", show_default="a terminal chats, standard input is a question"
        ),
    ] = None,
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="The same as QUESTION.", show_default=False)
    ] = None,
    url: Url = None,
    api_key: Key = None,
    model: Annotated[str | None, typer.Option(help="Model to ask.", show_default="the first one there is")] = None,
    system: Annotated[str, typer.Option(help="System prompt.", show_default=False)] = "",
    temperature: Annotated[float | None, typer.Option(callback=_finite, help="0 for the likeliest answer.")] = None,
    top_p: Annotated[
        float | None, typer.Option(callback=_finite, help="Share of the likeliest tokens to draw from.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Longest answer, in tokens; 0 leaves it to the service.",
            show_default="512, or what there is room for",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes drawn answers repeatable.")] = None,
) -> None:
    """Talk to a model of any service with OpenAI's API, or ask it one thing; Ctrl-C stops an answer."""
    from ops.commands.chat import run

    if question is not None and quick is not None:
        raise typer.BadParameter("QUESTION and --quick are the same: give one of them")
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
    parameters = {name: value for name, value in given.items() if value is not None}
    asked = question if quick is None else quick
    status = run(asked, url=service_url(url), api_key=api_key, model=model, system=system, parameters=parameters)
    raise typer.Exit(status)


@app.command(cls=SettingsCommand)
@with_redis_settings
def ps(
    configuration: Configuration,
    as_json: AsJson = False,
) -> int:
    """List the workers: who they are, what they serve and how busy they are."""
    from ops.commands.ps import run

    return run(configuration, as_json=as_json)


@app.command("worker-health", cls=SettingsCommand)
@with_redis_settings
def worker_health(
    configuration: Configuration,
    loaded: Annotated[bool, typer.Option("--loaded", help="Fail until the model has been loaded.")] = False,
) -> int:
    """Tell whether the worker of this host lives, for the probes of containers; exits with 0 when it does."""
    from ops.commands.worker_health import run

    return run(configuration, loaded=loaded)


@app.command(cls=SettingsCommand)
@with_redis_settings
def queue(
    configuration: Configuration,
    as_json: AsJson = False,
) -> int:
    """Show what waits for the workers, by model and class."""
    from ops.commands.fleet import queue as run

    return run(configuration, as_json=as_json)


@app.command(cls=SettingsCommand)
@with_redis_settings
def running(
    configuration: Configuration,
    as_json: AsJson = False,
) -> int:
    """List the requests that workers hold, with their progress; never what they say."""
    from ops.commands.fleet import running as run

    return run(configuration, as_json=as_json)


@app.command(cls=SettingsCommand)
@with_redis_settings
def cancel(
    configuration: Configuration,
    requests: Annotated[
        list[str],
        typer.Argument(
            metavar="REQUEST",
            help="Ids from `tgq running`, or their beginnings.",
            autocompletion=completion.requests,
        ),
    ],
) -> int:
    """Cancel requests; their callers get an error that says so."""
    from ops.commands.fleet import cancel as run

    return run(configuration, requests)


@app.command(cls=SettingsCommand)
@with_redis_settings
def drain(
    configuration: Configuration,
    names: Workers,
    wait: Annotated[float | None, typer.Option(help="Wait so many seconds for their last job to end.")] = None,
) -> int:
    """Let workers take nothing more; what they hold goes on. `tgq undrain` undoes it."""
    from ops.commands.fleet import drain as run

    return run(configuration, names, wait=wait)


@app.command(cls=SettingsCommand)
@with_redis_settings
def undrain(
    configuration: Configuration,
    names: Workers,
) -> int:
    """Let drained workers take jobs again."""
    from ops.commands.fleet import undrain as run

    return run(configuration, names)


@app.command(cls=SettingsCommand)
@with_redis_settings
def top(
    configuration: Configuration,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="Look once and leave, as off a terminal.")] = False,
) -> int:
    """Watch workers, queues and rates, like the system's own top; Ctrl-C leaves."""
    from ops.commands.top import run

    return run(configuration, interval=interval, once=once)


@app.command(cls=SettingsCommand)
@with_settings
def env(
    configuration: Configuration,
    as_json: AsJson = False,
) -> int:
    """Show every setting, its value and where it came from; secrets stay hidden."""
    from ops.commands.env import run

    return run(configuration, as_json=as_json)


@app.command(cls=SettingsCommand)
@with_settings
def watermark(
    configuration: Configuration,
    file: Annotated[Path | None, typer.Argument(help="Text to look at; standard input when there is none.")] = None,
    threshold: Annotated[float, typer.Option(help="Standard deviations that count as found.")] = 4.0,
    as_json: AsJson = False,
) -> int:
    """Look for the watermark in a text; exits with 0 when it is there and with 1 when it is not."""
    from ops.commands.watermark import run

    return run(configuration, file, threshold=threshold, as_json=as_json)


def main() -> None:
    """Entry point of the `tgq` program."""
    run_program(lambda: app(prog_name="tgq"))


if __name__ == "__main__":
    main()
