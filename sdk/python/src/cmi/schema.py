"""The JSON Schema of a provider spec, derived from its dataclass."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator

TAGS_FIELD = "tags"
"""The field of the provider spec with the tags, which belongs to the caller."""
ZONE_FIELD = "failureDomain"
"""The field of the provider spec with the failure domain, which the caller sets."""
ADDRESSES_FIELD = "networkAddresses"
"""The field of the provider spec with the static addresses, which the caller sets."""

Node: TypeAlias = dict[str, Any]
_TYPES: dict[Any, Node] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """Rules of a field of a provider spec, as in `disk: Annotated[int, Field(name="diskGB", min=10, max=1000)]`."""

    name: str = ""
    """The name in JSON. Default: the name of the field with capitals in place of underscores, as `rootDisk`."""
    min: float | None = None
    """The least value; OUT_OF_RANGE below."""
    max: float | None = None
    """The largest value; OUT_OF_RANGE above."""
    hot: bool = False
    """Whether `update` changes the field of a running VM."""
    doc: str = ""
    """The description in the schema."""
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further keywords of JSON Schema, such as `{"pattern": "^ami-"}`."""


@dataclass(frozen=True)
class Schemas:
    """The JSON Schemas of a provider spec."""

    published: Node
    """The whole schema."""
    values: Draft202012Validator
    """Checks everything."""
    names: Draft202012Validator
    """Checks names and types alone: a VM must be found and deleted when its size no longer exists."""
    hot: tuple[str, ...]
    """The JSON pointers of the fields that `update` changes."""

    @property
    def text(self) -> bytes:
        """The published schema as JSON."""
        return json.dumps(self.published).encode()

    def has(self, name: str) -> bool:
        """Says whether the provider spec has a field at its top."""
        return name in self.published["properties"]


def schema(spec: type) -> Node:
    """Returns the JSON Schema of a provider spec, as the driver publishes it."""
    return schemas_for(spec).published


def schemas_for(spec: type) -> Schemas:
    """Derives the schemas of a provider spec.

    Raises:
        TypeError: A field has a type that JSON does not have, or is called `tags`, or must be optional.
    """
    if not dataclasses.is_dataclass(spec):
        raise TypeError(f"the provider spec {spec.__name__} must be a dataclass")
    hot: list[str] = []
    root = _object(spec, "", hot)
    if TAGS_FIELD in root["properties"]:
        raise TypeError(f"{spec.__name__} has the field {TAGS_FIELD}, which this package reads; remove it")
    if ADDRESSES_FIELD in root.get("required", ()):
        raise TypeError(
            f"the field {ADDRESSES_FIELD} of {spec.__name__} must be optional: only some machines have them"
        )
    root["properties"][TAGS_FIELD] = {"type": "object", "additionalProperties": {"type": "string"}}
    Draft202012Validator.check_schema(root)
    names = Draft202012Validator(_without_values(root))
    return Schemas(root, Draft202012Validator(root), names, tuple(hot))


def _object(spec: type, pointer: str, hot: list[str]) -> Node:
    properties: Node = {}
    required = []
    for field, name, hint, rules in fields_of(spec):
        place = f"{pointer}/{escaped(name)}"
        node = {**_node(hint, place, hot), **rules.schema}
        if rules.min is not None:
            node["minimum"] = rules.min
        if rules.max is not None:
            node["maximum"] = rules.max
        if rules.doc:
            node["description"] = rules.doc
        if rules.hot:
            if "*" in place:
                raise TypeError(f"{spec.__name__}.{field.name}: put `hot` at the list or the map that has the field")
            hot.append(place)
        if is_required(field):
            required.append(name)
            if node.get("type") == "string":
                node.setdefault("minLength", 1)
        properties[name] = node
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": required} if required else made


def fields_of(spec: type) -> list[tuple[dataclasses.Field[Any], str, Any, Field]]:
    """Returns the fields of a dataclass with their names in JSON, types and rules."""
    hints = get_type_hints(spec, include_extras=True)
    found = []
    for field in dataclasses.fields(spec):
        hint, rules = hints[field.name], Field()
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            rules = next((extra for extra in extras if isinstance(extra, Field)), rules)
        camel = re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), field.name)
        found.append((field, rules.name or camel, _without_none(hint), rules))
    return found


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Says whether users must set a field."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _without_none(hint: Any) -> Any:
    """Returns the type of a field that may be None when a user leaves it out. The value null is never allowed."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    others = [each for each in get_args(hint) if each is not type(None)]
    return others[0] if len(others) == 1 else hint


def _node(hint: Any, pointer: str, hot: list[str]) -> Node:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _object(hint, pointer, hot)
    arguments = get_args(hint)
    match get_origin(hint):
        case None if hint in _TYPES:
            return dict(_TYPES[hint])
        case origin if origin is Literal:
            kinds = {type(each) for each in arguments}
            if len(kinds) == 1 and (kind := kinds.pop()) in (str, int):
                return {**_TYPES[kind], "enum": list(arguments)}
        case origin if origin is list or (origin is tuple and arguments[1:] == (...,)):
            return {"type": "array", "items": _node(arguments[0], f"{pointer}/*", hot)}
        case origin if origin is dict and arguments[0] is str:
            return {"type": "object", "additionalProperties": _node(arguments[1], f"{pointer}/*", hot)}
    raise TypeError(
        f"the field {pointer} of the provider spec has the type {hint}; use str, int, float, bool, Literal, "
        "a dataclass, or list, tuple and dict of them"
    )


def _without_values(node: Any) -> Any:
    """Copies a schema and keeps names and types alone."""
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, value in node.items():
        # A property may have such a name. Its schema is an object.
        if isinstance(value, dict) or key not in ("enum", "minimum", "maximum"):
            kept[key] = _without_values(value)
    return kept


def escaped(name: str) -> str:
    """Returns a name in the form of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
