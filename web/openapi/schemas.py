"""JSON Schemas of the request models (pydantic) and answer structs (msgspec), under the names the document gives them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from common.field_docs import field_docs

Schema = dict[str, Any]

_REF = "#/components/schemas/"
_OWNERS = (
    ("open_inference_", "OpenInference"),
    ("openai_chat_", "Chat"),
    ("openai_completion_", "Completion"),
)
"""Modules whose classes get a prefix, for others are called like them."""


class Schemas:
    """All schemas of a document, made together."""

    def __init__(
        self,
        models: Iterable[type[BaseModel]],
        answers: Iterable[Any],
        *,
        shapes: Mapping[str, Schema] | None = None,
        fields: Mapping[type, Mapping[str, Schema]] | None = None,
        limits: Mapping[type, Mapping[str, Schema]] | None = None,
    ) -> None:
        """
        Args:
            models: pydantic models of bodies.
            answers: types msgspec can encode.
            shapes: schemas by name, for `fields`.
            fields: model -> field -> its schema, where the model takes any JSON.
            limits: model -> field -> keywords of what the model leaves to rules.

        Raises:
            ValueError: two classes would have the same name.
        """
        self.components: dict[str, Schema] = dict(shapes or {})
        self._fields = fields or {}
        self._limits = limits or {}
        self._owners: dict[str, type] = {}
        models, answers = list(dict.fromkeys(models)), list(answers)
        self._add_models(models)
        self._add_structs(answers)
        self.components = dict(sorted(self.components.items()))

    def of(self, *kinds: Any) -> Schema:
        """The schema of the types given, each by reference where it is a class; of several, of any of them."""
        alternatives = [self._of(kind) for kind in kinds]
        return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}

    def _of(self, kind: Any) -> Schema:
        if isinstance(kind, type) and issubclass(kind, (BaseModel, Struct)):
            return {"$ref": _REF + public_name(kind)}
        names = {_REF + short: _REF + public_name(cls) for cls, short in _struct_names([kind]).items()}
        ((schema,), _) = msgspec.json.schema_components([kind], ref_template=_REF + "{name}")
        plain: Schema = _plain(schema, names)
        return plain

    def _add_models(self, models: list[type[BaseModel]]) -> None:
        everything = list(dict.fromkeys(found for model in models for found in _nested(model, BaseModel)))
        wanted: list[Any] = [(model, "validation") for model in everything]
        keys, definitions = models_json_schema(wanted, ref_template=_REF + "{model}")
        names = {keys[model, "validation"]["$ref"]: _REF + public_name(model) for model in everything}
        for model in everything:
            definition = definitions["$defs"][keys[model, "validation"]["$ref"].removeprefix(_REF)]
            schema = _plain(definition, names)
            schema["properties"] |= copy.deepcopy(dict(self._fields.get(model, {})))
            for name, keywords in self._limits.get(model, {}).items():
                _limit(schema["properties"][name], keywords)
            _describe(schema, model)
            for name, field in schema["properties"].items():
                if name not in schema.get("required", ()):
                    schema["properties"][name] = _or_null(field)
            self._add(model, schema)

    def _add_structs(self, answers: list[Any]) -> None:
        shorts = _struct_names(answers)
        _, definitions = msgspec.json.schema_components(list(shorts), ref_template=_REF + "{name}")
        names = {_REF + short: _REF + public_name(cls) for cls, short in shorts.items()}
        for cls, short in shorts.items():
            schema = _plain(definitions[short], names)
            _describe(schema, cls)
            schema["required"] = _always_there(cls)
            self._add(cls, schema)

    def _add(self, cls: type, schema: Schema) -> None:
        name = public_name(cls)
        owner = self._owners.setdefault(name, cls)
        if owner is not cls or name in self.components:
            raise ValueError(f"{owner} and {cls} would both be the schema {name}")
        schema.pop("description", None)  # the class's, which speaks to who works on it
        self.components[name] = schema


def public_name(cls: type) -> str:
    module = cls.__module__.rpartition(".")[2]
    prefix = next((prefix for start, prefix in _OWNERS if module.startswith(start)), "")
    return cls.__name__ if cls.__name__.startswith(prefix) else prefix + cls.__name__


def _struct_names(kinds: list[Any]) -> dict[type[Struct], str]:
    """Every struct the types are made of -> the name msgspec gives its schema."""
    structs = list(dict.fromkeys(found for kind in kinds for found in _nested(kind, Struct)))
    refs, _ = msgspec.json.schema_components(structs, ref_template=_REF + "{name}")
    return {cls: ref["$ref"].removeprefix(_REF) for cls, ref in zip(structs, refs, strict=True)}


def _nested(kind: Any, base: type) -> Iterator[type[Any]]:
    """The subclasses of `base` that a type is made of, itself included."""
    waiting, seen = [kind], set()
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, base) and kind not in seen:
            seen.add(kind)
            yield kind
            waiting += _field_types(kind)


def _field_types(cls: type) -> list[Any]:
    if issubclass(cls, BaseModel):
        return [field.annotation for field in cls.model_fields.values()]
    return list(get_type_hints(cls).values())


def _always_there(cls: type[Struct]) -> list[str]:
    """Fields that every encoded struct has: those that cannot be unset, for ours are encoded with their defaults."""
    hints = get_type_hints(cls)
    optional = {name for name, hint in hints.items() if UnsetType in get_args(hint)}
    config = cls.__struct_config__
    tag = [] if config.tag is None else [str(config.tag_field)]
    return tag + [
        field.encode_name
        for field in msgspec.structs.fields(cls)
        if field.name not in optional and (field.required or not config.omit_defaults)
    ]


def _describe(schema: Schema, cls: type) -> None:
    docs = field_docs(cls)
    renamed = (
        {field.name: field.encode_name for field in msgspec.structs.fields(cls)} if issubclass(cls, Struct) else {}
    )
    for name, text in docs.items():
        field = schema.get("properties", {}).get(renamed.get(name, name))
        if field is not None:
            field["description"] = text


_STANDARD = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic leaves its own words where a validator of ours comes before a limit."""
_KEYWORDS = {
    "number": ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    "integer": ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    "string": ("minLength", "maxLength", "enum"),
    "array": ("minItems", "maxItems", "items"),
    "object": ("maxProperties", "propertyNames", "additionalProperties"),
}
"""Which keywords limit which type."""


def _limit(schema: Schema, keywords: Mapping[str, Any]) -> None:
    """Tighten the alternatives that the keywords are for."""
    for part in (schema, *schema.get("anyOf", ())):
        own = _KEYWORDS.get(part.get("type", ""), ())
        part.update({keyword: value for keyword, value in keywords.items() if keyword in own})
        for high in ("maximum", "exclusiveMaximum"):
            if high in keywords and high in part:
                part.pop("maximum" if high == "exclusiveMaximum" else "exclusiveMaximum", None)


def _or_null(schema: Schema) -> Schema:
    """An explicit null is the same as leaving the key out."""
    alternatives = schema.get("anyOf", ())
    if {"type": "null"} in alternatives or not schema.keys() - {"description", "default"}:
        return schema
    notes: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    bare = {key: value for key, value in schema.items() if key not in notes}
    return {"anyOf": [*alternatives, {"type": "null"}] if alternatives else [bare, {"type": "null"}], **notes}


def _plain(value: Any, names: dict[str, str]) -> Any:
    """Without the titles that repeat names, with our names in references, and enumerations with their type."""
    if isinstance(value, list):
        return [_plain(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    plain: Schema = {}
    for key, item in value.items():
        if key == "properties":
            plain[key] = {name: _plain(field, names) for name, field in item.items()}
        elif key != "title" or not isinstance(item, str):
            plain[_STANDARD.get(str(key), str(key))] = _plain(item, names)
    if "$ref" in plain:
        plain["$ref"] = names.get(plain["$ref"], plain["$ref"])
    if "enum" in plain and "type" not in plain and all(isinstance(entry, str) for entry in plain["enum"]):
        plain["type"] = "string"
    if "patternProperties" in plain:
        plain["additionalProperties"] = False
    if plain.get("default", UNSET) is None:
        del plain["default"]
    return plain
