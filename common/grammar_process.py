"""The process that tries grammars, so that none can harm a web process; started by `common.grammar_checker`.

Its only argument is the number of a file descriptor: a connection on which it says that it is ready (None) and then
answers each grammar with why it is refused, or None.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from common.errors import InvalidRequest
from common.grammar import Grammar, dump_schema, grammar_error
from common.grammar_compiler import byte_tokenizer, compile_grammar
from common.tool_grammar import read_calls

if TYPE_CHECKING:
    import llguidance

MEMORY_LIMIT = 2 * 2**30
"""Bytes of address space, far above what a grammar within the limits needs."""
NICENESS = 5
"""Live traffic comes first."""


def main() -> None:
    """Until the other side hangs up."""
    connection = Connection(int(sys.argv[1]))
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    tokenizer = byte_tokenizer()
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(msgspec.msgpack.encode(None))
        while True:
            reason = None
            try:
                grammar = msgspec.msgpack.decode(connection.recv_bytes(), type=Grammar)
                check_grammar(grammar, tokenizer)
            except InvalidRequest as error:
                reason = error.message
            connection.send_bytes(msgspec.msgpack.encode(reason))


def check_grammar(grammar: Grammar, tokenizer: llguidance.LLTokenizer) -> None:
    """Whether a grammar can be used; of functions, first each one's schema by itself.

    Raises:
        InvalidRequest: it cannot; says why, and of which function.
    """
    if grammar.kind == "json":
        check_schema(json.loads(grammar.text))
    if grammar.kind == "tools":
        for function in read_calls(grammar.text).functions:
            field = f"tools.{function.place}.function.parameters"
            check_schema(function.schema, field)
            compile_grammar(Grammar("json", dump_schema(function.schema)), tokenizer, field)
    compile_grammar(grammar, tokenizer)


def check_schema(schema: Any, field: str = "grammar") -> None:
    """Whether a JSON value is a JSON Schema of draft 2020-12.

    Raises:
        InvalidRequest: says where it is not.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "/" + "/".join(str(part) for part in error.absolute_path)
        raise grammar_error(f"it is no JSON Schema: {error.message[:200]} at `{place}`", field) from None


if __name__ == "__main__":
    main()
