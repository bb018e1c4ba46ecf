"""The command line of TGI's launcher, as its own parser takes it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import NoReturn

from common import __version__
from common.settings import Settings
from ops.configuration import flag as our_flag
from ops.launcher.flags import FLAGS, TgiFlag
from ops.options import BAD_USAGE

PROGRAM = "text-generation-launcher"
SWITCHED_ON = "true"
"""The text that stands for a flag without a value."""

_MARKS = {"honoured": "", "ignored": "(ignored) ", "refused": "(refused) "}


def parse(arguments: Sequence[str]) -> Mapping[str, str]:
    """What was given: flag with its dashes -> text.

    Raises:
        SystemExit: 2 with a message on standard error when it cannot be read; 0 after `--help` and `--version`.
    """
    parser = _parser()
    found, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_advice(unknown[0]))
    given = {}
    for known in FLAGS:
        texts: list[str] = getattr(found, known.name) or []
        if len(texts) > 1 and not known.repeats:
            parser.error(f"{known.name} is given more than once")
        if texts:
            given[known.name] = ",".join(texts)
    return given


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"{PROGRAM}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        allow_abbrev=False,
        usage=f"{PROGRAM} [OPTIONS]",
        description="Run the whole service as `tgq serve` does, from the command line of TGI's launcher. What cannot be had "
        "here and would change answers is refused; what nobody will miss is ignored with a warning.",
        epilog="Every other setting is an environment variable (`tgq env` lists them), and a flag of `tgq serve`.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"{PROGRAM} (tgq {__version__})")
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(known.group for known in FLAGS)}
    for known in FLAGS:
        _add(groups[known.group], known)
    return parser


def _add(group: argparse._ArgumentGroup, known: TgiFlag) -> None:
    names = [known.short, known.name] if known.short else [known.name]
    where = f" [env: {known.variable}]" if known.variable else ""
    help_ = (_MARKS[known.fate] + known.words + where).replace("%", "%%")
    if known.switch:
        group.add_argument(*names, dest=known.name, action="append_const", const=SWITCHED_ON, help=help_)
    else:
        group.add_argument(*names, dest=known.name, action="append", metavar="VALUE", help=help_)


def _advice(unknown: str) -> str:
    """Says what is not known, and what may have been meant."""
    name = unknown.partition("=")[0]
    message = f"unexpected argument {name!r}"
    if not name.startswith("-"):
        return f"{message}; --help lists what there is"
    setting = next((field for field in Settings.model_fields if our_flag(field) == name), None)
    if setting is not None:
        return f"{message}: that is a flag of `tgq serve`; set {Settings.variable(setting)} here"
    near = difflib.get_close_matches(name.replace("_", "-"), [known.name for known in FLAGS], n=3)
    return f"{message}; similar: {', '.join(near)}" if near else f"{message}; --help lists what there is"
