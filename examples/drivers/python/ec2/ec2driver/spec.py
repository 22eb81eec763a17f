"""The provider spec: what a VM is made from. One schema checks it here and tells the provider what it may hold."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from .contract import CLUSTER_TAG, IDENTITY_TAG, Code, Failure

# Tags of EC2's and of this driver: no provider spec may set them.
NAME_TAG = "Name"
MACHINE_NAME_TAG = "capcmi.io/machine-name"

_TEXT = {"type": "string", "minLength": 1, "maxLength": 255}

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Provider spec of the EC2 driver",
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "instanceType", "subnets"],
    "properties": {
        "region": {
            "type": "string",
            "pattern": "^[a-z]+(-[a-z0-9]+)+$",
            "description": "Region, eu-central-1. Default: the driver's AWS_REGION.",
        },
        "image": {"type": "string", "pattern": "^ami-[0-9a-f]{8,17}$", "description": "Image (AMI)."},
        "instanceType": {**_TEXT, "description": "Instance type, m7g.large."},
        "subnets": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"type": "string", "pattern": "^subnet-[0-9a-f]{8,17}$"},
            "description": "Subnets; their zones are the failure domains that there are.",
        },
        "securityGroups": {
            "type": "array",
            "items": {"type": "string", "pattern": "^sg-[0-9a-f]{8,17}$"},
            "description": "Security groups. Default: that of the VPC.",
        },
        "keyName": {**_TEXT, "description": "Key pair for SSH."},
        "instanceProfile": {**_TEXT, "description": "Name of the IAM instance profile."},
        "rootVolumeGiB": {
            "type": "integer",
            "minimum": 1,
            "maximum": 16384,
            "description": "Size of the root volume. Default: that of the image.",
        },
        "sourceDestCheck": {
            "type": "boolean",
            "description": "False lets the VM forward packets that are neither from nor to it. Default: true.",
        },
        "failureDomain": {**_TEXT, "description": "The zone. Set by the provider from the Machine."},
        "tags": {
            "type": "object",
            "maxProperties": 48,
            "propertyNames": {
                "minLength": 1,
                "maxLength": 128,
                "pattern": "^(?![aA][wW][sS]:)",
                "not": {"enum": [NAME_TAG, MACHINE_NAME_TAG]},
            },
            "additionalProperties": {"type": "string", "maxLength": 256},
            "description": "Tags of the VM, its volumes and its network interfaces. They may change while it lives.",
        },
    },
}
_VALIDATOR = Draft202012Validator(SCHEMA)
# What may change on a living VM, as JSON pointers.
HOT_UPDATABLE = ("/tags", "/sourceDestCheck")
TAG_PATH = "/tags"


@dataclass(frozen=True)
class Spec:
    """A provider spec whose fields have the right types."""

    region: str
    image: str
    instance_type: str
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...] = ()
    key_name: str | None = None
    instance_profile: str | None = None
    root_volume_gib: int | None = None
    source_dest_check: bool = True
    failure_domain: str | None = None
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def cluster(self) -> str:
        """The cluster that the VM belongs to; empty where the call does not ask for it."""
        return self.tags.get(CLUSTER_TAG, "")

    @property
    def identity(self) -> str:
        """The machine object that the VM belongs to; empty where the call does not ask for it."""
        return self.tags.get(IDENTITY_TAG, "")


def for_new_machine(raw: bytes, region: str | None) -> Spec:
    """The spec of a VM that is to be made: what it asks for can be had."""
    return _typed(_checked(raw, (CLUSTER_TAG, IDENTITY_TAG), in_range=True), region)


def for_machine(raw: bytes, region: str | None) -> Spec:
    """The spec of a call about one machine: its tags say whose it is."""
    return _typed(_checked(raw, (CLUSTER_TAG, IDENTITY_TAG)), region)


def for_cluster(raw: bytes, region: str | None) -> Spec:
    """The spec of a call about all machines of a cluster."""
    return _typed(_checked(raw, (CLUSTER_TAG,)), region)


def for_class(raw: bytes, region: str | None) -> Spec:
    """The spec of a call about what machines are made from."""
    return _typed(_checked(raw, ()), region)


def last_applied(raw: bytes) -> dict[str, str]:
    """The tags of a spec that was applied before; it was checked then."""
    try:
        tags = _object(raw, "the last applied provider spec").get("tags", {})
    except Failure:
        return {}
    return tags if isinstance(tags, dict) else {}


def region_of(spec: dict[str, Any], default: str | None) -> str:
    """The region that a spec names, or the driver's."""
    region = spec.get("region") or default
    if not isinstance(region, str):
        raise Failure(
            Code.INVALID_ARGUMENT,
            "the provider spec's /region is required, since the driver has no AWS_REGION",
        )
    return region


def partial(raw: bytes) -> dict[str, Any]:
    """The spec of a call that comes before there are machines: it may hold no more than tags."""
    return _object(raw, "the provider spec")


def _object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise Failure(Code.INVALID_ARGUMENT, f"{what} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Failure(Code.INVALID_ARGUMENT, f"{what} is no JSON object")
    return value


def _checked(raw: bytes, tags: Iterable[str], in_range: bool = False) -> dict[str, Any]:
    """A limit may be lowered one day: it must not keep a VM that was made before from being found and deleted."""
    spec = _object(raw, "the provider spec")
    for error in sorted(_VALIDATOR.iter_errors(spec), key=lambda error: error.json_path):
        if in_range or error.validator != "maximum":
            raise _violation(error)
    for tag in tags:
        if not spec.get("tags", {}).get(tag, "").strip():
            raise Failure(
                Code.INVALID_ARGUMENT,
                f"the provider spec's /tags/{tag.replace('/', '~1')} is required and has to be a text",
            )
    return spec


def _violation(error: ValidationError) -> Failure:
    place = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.absolute_path)
    # What there is, but not in this size, has a code of its own (DRV-CR-11).
    code = Code.OUT_OF_RANGE if error.validator == "maximum" else Code.INVALID_ARGUMENT
    return Failure(code, f"the provider spec{place and chr(39) + 's ' + place}: {error.message[:300]}")


def _typed(spec: dict[str, Any], region: str | None) -> Spec:
    return Spec(
        region=region_of(spec, region),
        image=spec["image"],
        instance_type=spec["instanceType"],
        subnets=tuple(spec["subnets"]),
        security_groups=tuple(spec.get("securityGroups", ())),
        key_name=spec.get("keyName"),
        instance_profile=spec.get("instanceProfile"),
        root_volume_gib=spec.get("rootVolumeGiB"),
        source_dest_check=spec.get("sourceDestCheck", True),
        failure_domain=spec.get("failureDomain"),
        tags=spec.get("tags", {}),
    )
