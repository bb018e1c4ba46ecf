"""What each setting means, read from the docstrings in `common.settings`."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap

from common.settings import Settings


@functools.cache
def setting_docs() -> dict[str, str]:
    """Field name -> its docstring on one line, for the fields that have one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(Settings)))
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = " ".join(inspect.cleandoc(str(ast.literal_eval(text.value))).split())
    return docs
