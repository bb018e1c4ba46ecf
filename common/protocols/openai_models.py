"""The models as OpenAI's API lists them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct


class Model(Struct, frozen=True):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    """Not known; TGI says 0 as well."""
    owned_by: str = ""
    parent: str | None = None
    """The model that an adapter adapts; not OpenAI's."""


class ModelList(Struct, frozen=True):
    object: Literal["list"]
    data: list[Model]


def model(name: str, parent: str | None = None) -> Model:
    return Model(id=name, owned_by=name if parent is None else parent, parent=parent)


def model_list(models: list[Model]) -> bytes:
    return msgspec.json.encode(ModelList("list", models))


def model_body(model: Model) -> bytes:
    return msgspec.json.encode(model)
