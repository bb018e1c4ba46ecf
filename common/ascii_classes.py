r"""`\d`, `\w` and `\s` of a regular expression mean ASCII, as in TGI (outlines), xgrammar and JSON Schema's patterns.

The grammar library's own are Unicode's: a model could write digits that no program can parse, some newer than Python knows.
"""

from __future__ import annotations

import re

_CLASSES = {
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\s": r"[\t\n\v\f\r ]",
    r"\S": r"[^\t\n\v\f\r ]",
}
_ESCAPE = re.compile(r"\\.", re.DOTALL)


def ascii_classes(expression: str) -> str:
    """The expression with its classes written out; classes may stand within brackets, as sets may be nested there."""
    return _ESCAPE.sub(lambda found: _CLASSES.get(found[0], found[0]), expression)
