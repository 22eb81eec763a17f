"""Decodes provider specs."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

from jsonschema import Draft202012Validator, ValidationError

from .errors import BadRequest, Error, Invalid, OutOfRange
from .schema import TAGS_FIELD, Node, Schemas, escaped, fields_of, schemas_for
from .vm import SPEC_TAG

Spec = TypeVar("Spec")
_JSON_TYPES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
_UNKNOWN = "is not a known field"
# A message must not repeat a long value.
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Decoded(Generic[Spec]):
    """A provider spec."""

    spec: Spec
    tags: dict[str, str]
    digest: str
    """Identifies everything but the tags and the fields that `update` changes."""

    def with_digest(self) -> dict[str, str]:
        """Returns the tags of a new VM."""
        return {**self.tags, SPEC_TAG: self.digest}


class Specs(Generic[Spec]):
    """Decodes the provider specs of a type."""

    def __init__(self, kind: type[Spec]) -> None:
        self.kind = kind
        self.schemas: Schemas = schemas_for(kind)

    def decode(self, text: bytes) -> Decoded[Spec]:
        """Reads a spec in full before anything is done. Unknown fields and null are refused."""
        return self._read(text, self.schemas.names)

    def decode_new(self, text: bytes) -> Decoded[Spec]:
        """Also checks the values, for a create and an update.

        A value of the wrong type is INVALID_ARGUMENT, and only then may a value outside of its range be OUT_OF_RANGE.
        """
        self.decode(text)
        read = self._read(text, self.schemas.values)
        if validate := getattr(read.spec, "validate", None):
            try:
                validate()
            except ValueError as error:
                raise BadRequest(f"ProviderSpec: {error}") from error
        return read

    def decode_any(self, text: bytes) -> Spec | None:
        """Accepts a spec without fields, too: a Cluster asks for zones before it has a machine."""
        return None if parse(text).keys() <= {TAGS_FIELD} else self.decode(text).spec

    def _read(self, text: bytes, validator: Draft202012Validator) -> Decoded[Spec]:
        fields = parse(text)
        if problems := [_describe(problem) for problem in validator.iter_errors(fields)]:
            raise min(problems, key=_order)[1]
        tags = fields.pop(TAGS_FIELD, {})
        return Decoded(_build(self.kind, fields), tags, self._digest(fields))

    def _digest(self, fields: Node) -> str:
        fixed = copy.deepcopy(fields)
        for pointer in self.schemas.hot:
            *path, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
            inner: Any = fixed
            for part in path:
                inner = inner.get(part, {})
            inner.pop(last, None)
        text = json.dumps(fixed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def parse(text: bytes) -> Node:
    """Reads a JSON object."""
    try:
        value = json.loads(text.decode())
        # A lone surrogate, a number that is not finite: neither can be sent on.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeError as error:
        raise BadRequest("ProviderSpec is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest("ProviderSpec is not JSON") from error
    if not isinstance(value, dict):
        raise BadRequest("ProviderSpec is not a JSON object")
    return value


def _order(problem: tuple[str, Error]) -> tuple[int, str]:
    """An unknown field goes first: with it, a misspelled name of a required field is named rather than the field."""
    place, error = problem
    rank = 0 if _UNKNOWN in str(error) else 2 if isinstance(error, OutOfRange) else 1
    return rank, place


def _describe(problem: ValidationError) -> tuple[str, Error]:
    pointer = "".join(f"/{escaped(str(part))}" for part in problem.absolute_path)
    # The stubs of jsonschema allow unset fields, which a found problem does not have.
    found, rule, value, schema = cast(
        "tuple[Any, Any, Any, Any]", (problem.instance, problem.validator, problem.validator_value, problem.schema)
    )
    match rule:
        case "required":
            missing = min(name for name in value if name not in found)
            return (place := f"{pointer}/{escaped(missing)}"), Invalid(place, "is required")
        case "additionalProperties":
            unknown = min(name for name in found if name not in schema["properties"])
            return (place := f"{pointer}/{escaped(unknown)}"), Invalid(place, _UNKNOWN)
        case "type":
            kind = _JSON_TYPES[type(found)]
            return pointer, Invalid(pointer, f"must be {value}, not {kind}")
        case "minLength" if found == "":
            return pointer, Invalid(pointer, "must not be empty")
        case "minimum" | "maximum":
            limit = "at least" if rule == "minimum" else "at most"
            return pointer, OutOfRange(pointer, f"is {found}, and must be {limit} {value}")
        case "enum":
            allowed = ", ".join(map(str, value))
            return pointer, Invalid(pointer, f"must be one of these: {allowed}")
        case _:
            return pointer, Invalid(pointer, problem.message[:_LONGEST_REASON])


def _build(hint: Any, value: Any) -> Any:
    """Returns a value of a type that the schema has checked."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        known = {name: (field.name, kind) for field, name, kind, _ in fields_of(hint)}
        return hint(**{known[name][0]: _build(known[name][1], inner) for name, inner in value.items()})
    match get_origin(hint):
        case origin if origin in (list, tuple):
            return origin(_build(get_args(hint)[0], inner) for inner in value)
        case origin if origin is dict:
            return {name: _build(get_args(hint)[1], inner) for name, inner in value.items()}
    # JSON has one type of number, and 20.0 is an integer in it.
    return hint(value) if hint in (int, float) else value


def require_tags(tags: dict[str, str], required: Iterable[str]) -> None:
    """Refuses a spec without one of these tags."""
    for name in required:
        if not tags.get(name, "").strip():
            raise Invalid(f"/{TAGS_FIELD}/{escaped(name)}", f"the tag {name} is required")
