"""What the fields of a class mean, read from the docstrings below them."""

from __future__ import annotations

import ast
import functools
import inspect
import sys


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Field name -> its docstring on one line, for the fields of a class, and of its bases in the same package, that have one."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if _package(base) == _package(cls):
            docs |= _module_docs(base.__module__).get(base.__qualname__, {})
    return docs


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


@functools.cache
def _module_docs(module: str) -> dict[str, dict[str, str]]:
    """By class; empty for modules without source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(definition: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            docs[field.target.id] = " ".join(inspect.cleandoc(str(text.value.value)).split())
    return docs
