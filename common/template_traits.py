"""What a chat template understands, read from its source: templates come with no description."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jinja2 import meta, nodes

from common.chat_environment import parse_template
from common.tool_format import HERMES, ToolFormat, find_format

_NINE = re.compile(r"length\s*!=\s*9\b")


@dataclass(frozen=True)
class TemplateTraits:
    knows_tools: bool
    """It shows the functions that may be called."""
    knows_calls: bool
    """It shows past calls."""
    knows_results: bool
    """It has a role for what functions answered."""
    native_format: ToolFormat | None
    """How it writes calls, if we know that format."""
    takes_parts: bool
    """Contents are lists of parts for it, never strings."""
    short_ids: bool
    """The ids of calls have nine letters and digits: Mistral's rule."""

    @property
    def format(self) -> ToolFormat:
        """How the model writes its calls: natively, or as it is told to."""
        return self.native_format if self.native_format is not None and self.knows_tools else HERMES

    @property
    def explains_format(self) -> bool:
        return self.format is self.native_format and self.knows_tools

    @classmethod
    def of(cls, source: str) -> TemplateTraits:
        """
        Raises:
            jinja2.TemplateError: the source is no template.
        """
        tree = parse_template(source)
        constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        names = constants | {node.attr for node in tree.find_all(nodes.Getattr)}
        return cls(
            knows_tools="tools" in meta.find_undeclared_variables(tree),
            knows_calls="tool_calls" in names,
            knows_results="tool" in constants,
            native_format=find_format(source),
            takes_parts=_takes_parts(tree),
            short_ids=_NINE.search(source) is not None,
        )


def _takes_parts(tree: nodes.Template) -> bool:
    if any(test.name == "string" for test in tree.find_all(nodes.Test)):
        return False
    loops = any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))
    return loops or any(_is_field_of_part(item) for item in tree.find_all(nodes.Getitem))


def _is_content(node: nodes.Node | None) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


def _is_field_of_part(node: nodes.Getitem) -> bool:
    """`message['content'][0]['text']`"""
    return isinstance(node.node, nodes.Getitem) and _is_content(node.node.node)
