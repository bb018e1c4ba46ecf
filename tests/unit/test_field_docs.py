"""Docstrings of fields, read from the source."""

from __future__ import annotations

from dataclasses import dataclass

from common.field_docs import field_docs
from common.settings import Settings


@dataclass
class Base:
    kept: int
    """Of the base."""
    told_anew: int
    """Old words."""
    silent: int


@dataclass
class Derived(Base):
    told_anew: int
    """New words
    in two lines."""
    another: str = ""
    """Last."""


def test_fields_of_a_class_and_its_bases() -> None:
    assert field_docs(Derived) == {"kept": "Of the base.", "told_anew": "New words in two lines.", "another": "Last."}


def test_classes_without_source_have_none() -> None:
    assert field_docs(type("Made", (), {})) == {}
    assert field_docs(int) == {}


def test_settings_are_told() -> None:
    assert field_docs(Settings)["max_best_of"].startswith("Largest")
