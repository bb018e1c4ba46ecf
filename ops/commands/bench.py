"""`tgq bench`: measurements of services. What does the work is imported when a command runs."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.options import BAD_USAGE

app = typer.Typer(name="bench", help="Measure services.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """With a callback, a single command keeps its name."""


class ApiName(StrEnum):
    """What `--api` takes."""

    CHAT = "openai-chat"
    COMPLETIONS = "openai-completions"
    TGI = "tgi"


_SERVERS, _LOAD, _PROMPTS, _OUTPUT = "Servers", "Load", "Prompts and answers", "Results"


@app.command()
def serve(
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Address of a server; a second one is compared with it.",
            show_default="this machine, PORT or 3000",
            rich_help_panel=_SERVERS,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The second server, measured in turn with the first.", rich_help_panel=_SERVERS
        ),
    ] = None,
    api: Annotated[ApiName, typer.Option(help="What the servers speak.", rich_help_panel=_SERVERS)] = ApiName.CHAT,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to ask for.", show_default="the first that the server lists", rich_help_panel=_SERVERS
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="API_KEY",
            help="Key to call the servers with; given twice, one for each of them.",
            show_default=False,
            show_envvar=True,
            rich_help_panel=_SERVERS,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME: VALUE", help="Send this header too; may be repeated.", rich_help_panel=_SERVERS),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Closed loop: so many requests at once, the next one when one has ended. Several numbers are measured one "
            "after another.",
            show_default="1,4,16",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,...",
            help="Open loop: so many requests a second, whether answers come or not; inf sends all at once.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            help="Shape of the gaps at a request rate: 1 is Poisson, less comes in bursts, more is steadier.",
            rich_help_panel=_LOAD,
        ),
    ] = 1.0,
    max_concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="At a request rate: requests under way at once; others wait.", rich_help_panel=_LOAD),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests for each number of a sweep.",
            show_default="100 without --duration",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds to send for, for each number of a sweep.", rich_help_panel=_LOAD),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Requests to each server beforehand, which do not count.", rich_help_panel=_LOAD)
    ] = 2,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Measure everything so often.", show_default="1, two servers 3", rich_help_panel=_LOAD
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds a request may take; then it has failed.", rich_help_panel=_LOAD)
    ] = 600.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of made-up prompts, their order and the gaps.", rich_help_panel=_LOAD)
    ] = 0,
    dataset: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Prompts, a JSON object a line: {"prompt": ...}, {"messages": [...]}, or lines of OpenAI batches; '
            "`max_tokens` or `output_len` says how long the answer may be.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    input_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1 << 20,
            help="Words of made-up prompts, about a token each.",
            show_default="128",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    output_len: Annotated[
        int,
        typer.Option(
            min=1, max=1 << 20, help="Tokens to ask for where the dataset does not say.", rich_help_panel=_PROMPTS
        ),
    ] = 128,
    range_ratio: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Draw lengths of made-up prompts and of their answers: from (1 - RATIO) to (1 + RATIO) times the given.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Ask for answers of full length.", rich_help_panel=_PROMPTS)
    ] = False,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 always takes the likeliest token.", rich_help_panel=_PROMPTS)
    ] = 0.0,
    extra_body: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="An object of more fields for each request (with tgi: of its `parameters`).",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    continuous_usage: Annotated[
        bool,
        typer.Option(
            "--continuous-usage",
            help="Ask for the count of tokens with each event (vLLM, SGLang, tgq): ITL is exact where events bring several.",
            rich_help_panel=_PROMPTS,
        ),
    ] = False,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:MS",
            help='Limits a good request keeps, such as "ttft:500 tpot:50 e2e:5000"; may be repeated.',
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.", rich_help_panel=_OUTPUT)
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Draw plots as PNG (needs matplotlib).", rich_help_panel=_OUTPUT),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a report, one HTML file with everything in it.", rich_help_panel=_OUTPUT
        ),
    ] = None,
) -> None:
    """Measure servers that speak OpenAI's API or TGI's as their clients feel them: TTFT, TPOT, ITL, E2E latency, throughput,
    goodput.

    Ctrl-C ends the measuring and shows what there is by then. Exit status: 0 when every request was answered, 3 when some
    failed, 1 when none was answered, 2 for a wrong command line.
    """
    from ops.batches.input import BadInput
    from ops.bench.serve import plan as read
    from ops.bench.serve.apis import APIS, Shape
    from ops.bench.serve.outputs import Outputs
    from ops.bench.serve.run import FAILED, INTERRUPTED, run
    from ops.bench.serve.sources import prompts_of
    from ops.bench.serve.target import targets

    spoken = APIS[api.value]
    try:
        extra = read.extra_body(extra_body)
        addresses = [*(url or [f"http://127.0.0.1:{os.environ.get('PORT') or 3000}"]), *([compare] if compare else [])]
        servers = targets(addresses, spoken, headers=read.headers(header or []), keys=api_key or [])
        what = read.Plan(
            loads=read.loads(request_rate, concurrency),
            num_prompts=num_prompts if num_prompts is not None or duration is not None else 100,
            duration=duration,
            warmup=warmup,
            rounds=rounds or (1 if len(servers) == 1 else 3),
            burstiness=burstiness,
            max_concurrency=max_concurrency,
            output_len=output_len,
            timeout=timeout,
            seed=seed,
            goals=read.goals(goodput or []),
        )
        what.check(spoken, model=model, continuous_usage=continuous_usage)
        shape = Shape(temperature, ignore_eos, continuous_usage, extra)
        prompts = prompts_of(dataset, spoken, input_len=input_len, range_ratio=range_ratio, plan=what)
        status = run(servers, spoken, shape, what, prompts, model=model, outputs=Outputs(json_file, plots, report))
    except BadInput as error:
        print(f"tgq: {error}", file=sys.stderr)
        status = BAD_USAGE
    except OSError as error:
        print(f"tgq: {error}", file=sys.stderr)
        status = FAILED
    except KeyboardInterrupt:
        status = INTERRUPTED
    raise typer.Exit(status)
