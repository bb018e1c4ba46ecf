"""`tgq chat`: talk to a model, or ask it one thing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from ops.chat.client import ChatClient
from ops.chat.conversation import Conversation
from ops.chat.safe_text import harmless
from ops.chat.session import Session
from ops.options import BAD_USAGE
from ops.service_client import ServiceError

FAILED, INTERRUPTED = 1, 130


def run(
    question: str | None,
    *,
    url: str,
    api_key: str | None,
    model: str | None,
    system: str,
    parameters: Mapping[str, Any],
) -> int:
    """Chat on a terminal; elsewhere, or with a question, print one answer. Returns the exit status.

    Args:
        question: None to be asked for one, or to read it from standard input where that is no terminal.
        parameters: fields of every request.
    """
    interactive = question is None and sys.stdin.isatty() and sys.stdout.isatty()
    conversation = Conversation(system)
    try:
        if question is None and not interactive:
            question = sys.stdin.read().strip()
        if not interactive and not question:
            _say("there is no question: give one, or send it to standard input")
            return BAD_USAGE
        with ChatClient(url, api_key, parameters) as client:
            chosen = model or client.first_model()
            if question:
                _print_answer(client, conversation, question, chosen)
            else:
                with contextlib.suppress(ImportError):
                    import readline  # noqa: F401 - gives `input` its line editor
                Session(client, conversation, chosen, read=input, write=_write).run()
    except ServiceError as error:
        _say(harmless(str(error)))
        return FAILED
    except UnicodeDecodeError as error:
        _say(f"standard input is no text: {error}")
        return BAD_USAGE
    except BrokenPipeError:
        # Who read the answer has left. Python would complain about what it has not written when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _print_answer(client: ChatClient, conversation: Conversation, question: str, model: str | None) -> None:
    written = ""
    try:
        with contextlib.closing(client.answer(conversation.asked(question), model)) as answer:
            for piece in answer:
                written = harmless(piece)
                _write(written)
    finally:
        if written and not written.endswith("\n"):
            _write("\n")
    if client.cut_off:
        _say(f"the answer was cut off ({harmless(client.cut_off)})")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _say(text: str) -> None:
    print(f"tgq: {text}", file=sys.stderr, flush=True)
