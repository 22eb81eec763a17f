"""Provider specs: their schema, and how they are decoded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import cmi
import pytest
from cmi.errors import BadRequest, Error
from cmi.spec import Specs


@dataclass
class Disk:
    size_gb: Annotated[int, cmi.Field(name="sizeGB", max=64)]
    kind: Literal["ssd", "hdd"] = "ssd"


@dataclass
class Spec:
    size: Literal["small", "large"]
    root_disk: Annotated[int, cmi.Field(name="diskGB", min=10, max=100, doc="GB")] = 20
    zones: tuple[str, ...] = ()
    disks: list[Disk] = field(default_factory=list)
    labels: Annotated[dict[str, str], cmi.Field(hot=True)] = field(default_factory=dict)
    image: Annotated[str | None, cmi.Field(schema={"pattern": "^ami-"})] = None

    def validate(self) -> None:
        if self.size == "small" and self.root_disk > 50:
            raise cmi.OutOfRange("/diskGB", "a small VM has at most 50")


SPECS = Specs(Spec)


def text(**fields: Any) -> bytes:
    return json.dumps({"size": "small"} | fields).encode()


def test_the_schema_is_derived_from_the_type() -> None:
    disk = {
        "type": "object",
        "properties": {
            "sizeGB": {"type": "integer", "maximum": 64},
            "kind": {"type": "string", "enum": ["ssd", "hdd"]},
        },
        "additionalProperties": False,
        "required": ["sizeGB"],
    }
    assert cmi.schema(Spec) == {
        "type": "object",
        "properties": {
            "size": {"type": "string", "enum": ["small", "large"], "minLength": 1},
            "diskGB": {"type": "integer", "minimum": 10, "maximum": 100, "description": "GB"},
            "zones": {"type": "array", "items": {"type": "string"}},
            "disks": {"type": "array", "items": disk},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "image": {"type": "string", "pattern": "^ami-"},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "additionalProperties": False,
        "required": ["size"],
    }


def test_a_spec_becomes_its_dataclass() -> None:
    read = SPECS.decode_new(
        text(zones=["a"], disks=[{"sizeGB": 5.0}], labels={"x": "y"}, image="ami-1", tags={"team": "a"})
    )
    assert read.spec == Spec("small", 20, ("a",), [Disk(5)], {"x": "y"}, "ami-1")
    assert type(read.spec.disks[0].size_gb) is int
    assert read.tags == {"team": "a"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 7}, "/size: must be string, not integer"),
        ({"size": ""}, "/size: must not be empty"),
        ({"size": None}, "/size: must be string, not null"),
        ({"Size": "small"}, "/Size: is not a known field"),
        ({"a/b~c": 1}, "/a~1b~0c: is not a known field"),
        ({"diskGB": True}, "/diskGB: must be integer, not boolean"),
        ({"diskGB": 20.5}, "/diskGB: must be integer, not number"),
        ({"disks": [{"sizeGB": 1}, {}]}, "/disks/1/sizeGB: is required"),
        ({"labels": {"a/b": 1}}, "/labels/a~1b: must be string, not integer"),
        ({"tags": {"a": 1}}, "/tags/a: must be string, not integer"),
        ({"image": "ubuntu"}, "/image: 'ubuntu' does not match '^ami-'"),
    ],
)
def test_a_wrong_field_is_refused_by_its_pointer(fields: dict[str, Any], message: str) -> None:
    for decode in (SPECS.decode, SPECS.decode_new):
        with pytest.raises(cmi.Invalid) as refused:
            decode(text(**fields))
        assert refused.value.message == f"ProviderSpec {message}"


def test_a_misspelled_name_is_named_rather_than_the_required_field() -> None:
    with pytest.raises(cmi.Invalid, match="/sizze: is not a known field"):
        SPECS.decode(b'{"sizze": "small"}')


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"size": "huge"}, cmi.Invalid, "/size: must be one of these: small, large"),
        ({"diskGB": 101}, cmi.OutOfRange, "/diskGB: is 101, and must be at most 100"),
        ({"diskGB": 9}, cmi.OutOfRange, "/diskGB: is 9, and must be at least 10"),
        ({"diskGB": 9, "size": "huge"}, cmi.Invalid, "/size: must be one of these: small, large"),
        ({"diskGB": 60}, cmi.OutOfRange, "/diskGB: a small VM has at most 50"),
    ],
)
def test_a_value_is_checked_for_new_vms_only(fields: dict[str, Any], kind: type[Error], message: str) -> None:
    """A VM must be found and deleted when its size no longer exists."""
    SPECS.decode(text(**fields))
    with pytest.raises(kind) as refused:
        SPECS.decode_new(text(**fields))
    assert refused.value.message == f"ProviderSpec {message}"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b"[]", b'{"size": NaN}', b'{"diskGB": 1e999}', b'{"size":"\\ud800"}']
)
def test_a_text_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        SPECS.decode(raw)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadRequest):
        SPECS.decode(b'{"size":' + b"[" * 100_000)


def test_the_digest_ignores_tags_order_and_hot_fields() -> None:
    digest = SPECS.decode(b'{"size":"small","diskGB":20}').digest
    same = b'{"diskGB":20,"labels":{"a":"b"},"tags":{"a":"b"},"size":"small"}'
    assert SPECS.decode(same).digest == digest
    assert SPECS.decode(text(diskGB=21)).digest != digest


def test_static_addresses_are_an_optional_field() -> None:
    @dataclass
    class Addressed:
        network_addresses: list[cmi.StaticAddress] = field(default_factory=list)

    @dataclass
    class Always:
        network_addresses: list[cmi.StaticAddress]

    given = {"address": "10.0.0.2", "prefix": 24, "pool": {"apiGroup": "g", "kind": "P", "name": "n"}}
    specs = Specs(Addressed)
    assert specs.schemas.has("networkAddresses")
    read = specs.decode(json.dumps({"networkAddresses": [given]}).encode())
    assert read.spec.network_addresses == [cmi.StaticAddress("10.0.0.2", 24, cmi.AddressPool("g", "P", "n"))]
    with pytest.raises(TypeError, match="must be optional"):
        Specs(Always)


def test_zones_are_asked_for_before_there_is_a_spec() -> None:
    assert SPECS.decode_any(b"{}") is None
    assert SPECS.decode_any(b'{"tags":{"kubernetes.io/cluster":"c"}}') is None
    assert SPECS.decode_any(text()) == Spec("small")


def test_types_without_a_json_form_are_refused_at_the_start() -> None:
    @dataclass
    class Wrong:
        size: set[str]

    @dataclass
    class Nested:
        each: list[Annotated[str, cmi.Field(hot=True)]]
        inner: list[HotInside]

    @dataclass
    class Tagged:
        tags: dict[str, str]

    for kind, problem in ((Wrong, "/size"), (Nested, "hot"), (Tagged, "tags"), (int, "dataclass")):
        with pytest.raises(TypeError, match=problem):
            cmi.schema(kind)


@dataclass
class HotInside:
    name: Annotated[str, cmi.Field(hot=True)] = ""
