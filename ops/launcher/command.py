"""`text-generation-launcher`: what TGI's users start, for this service."""

from __future__ import annotations

import os
import sys

from ops.configuration import BadSetting, Configuration
from ops.launcher.arguments import PROGRAM, parse
from ops.launcher.translation import translate
from ops.options import BAD_USAGE
from ops.program import run_program


def launch() -> int:
    """Serve until told to stop; returns the exit status, 2 when something cannot be had."""
    given = parse(sys.argv[1:])
    translation = translate(given, os.environ)
    problems = translation.refused
    configuration = None
    try:
        configuration = Configuration.load(translation.settings)
    except BadSetting as error:
        problems = [*problems, *str(error).splitlines()]
    if translation.ignored:
        _say(f"without effect here: {'; '.join(translation.ignored)}")
    if problems or configuration is None:
        for problem in problems:
            _say(problem)
        return BAD_USAGE
    configuration.export()
    os.environ.update(translation.environment)
    if "--env" in given:
        from ops.commands.env import run as show

        show(configuration, as_json=False)
    from ops.commands.serve import run

    return run(configuration)


def _say(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Entry point of the `text-generation-launcher` program."""
    run_program(lambda: sys.exit(launch()))


if __name__ == "__main__":
    main()
