"""What the shell may offer at a TAB beyond flags: workers and requests, asked of a Redis that is near; and for which shell.

Nobody waits for it: whatever is not known in `SECONDS` is not offered, and what goes wrong is not shown.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer
from typer.completion import install_callback, show_callback
from typer.core import TyperGroup

if TYPE_CHECKING:
    from ops.fleet import Fleet

SECONDS = 0.7
_FLAGS = ("redis_url", "key_prefix")
"""Settings that may stand in front on the command line and say which fleet is meant."""


SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_OPTIONS = {"--show-completion": show_callback, "--install-completion": install_callback}


class Group(TyperGroup):
    """Commands whose `--show-completion` and `--install-completion` may be told the shell, which else is the one they run in."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in _OPTIONS and args[1:]:
            if args[1:] not in [[shell] for shell in SHELLS]:
                raise typer.BadParameter(f"may be followed by one of {', '.join(SHELLS)}", ctx, param_hint=args[0])
            option = next(option for option in self.params if args[0] in option.opts)
            _OPTIONS[args[0]](ctx, option, args[1])  # does not return
        return super().parse_args(ctx, args)


def workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of live workers."""
    return _ask(ctx, incomplete, lambda fleet: (worker.id for worker in fleet.workers()))


def requests(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of requests that workers hold."""
    return _ask(ctx, incomplete, lambda fleet: (job.request for held in fleet.held() for job in held.jobs))


def _ask(ctx: typer.Context, incomplete: str, names: Callable[[Fleet], Iterable[str]]) -> list[str]:
    given = {name: value for name in _FLAGS if (value := ctx.params.get(name))}
    found: list[str] = []

    def look() -> None:
        # Whatever goes wrong here, a TAB is no place to say so.
        with contextlib.suppress(Exception):
            from common.redis_clients import sync_redis
            from common.settings import Settings
            from ops.fleet import Fleet

            settings = Settings.of(**given)
            with sync_redis(settings) as client:
                found.extend(names(Fleet(client, settings)))

    # A thread, as no time limit of a client bounds the look-up of a host's name.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return [name for name in found if name.startswith(incomplete)]
