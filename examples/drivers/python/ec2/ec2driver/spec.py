"""The provider spec: what a VM is made from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import cmi

# Tags of EC2's and of this driver: no provider spec may set them.
NAME_TAG = "Name"
MACHINE_NAME_TAG = "capcmi.io/machine-name"

_MOST_TAGS = 48
_TAG = re.compile(r"(?!aws:).{1,128}", re.IGNORECASE)
_LONGEST_VALUE = 256

_TEXT = {"minLength": 1, "maxLength": 255}


@dataclass(frozen=True)
class Spec:
    """A provider spec."""

    image: Annotated[str, cmi.Field(schema={"pattern": "^ami-[0-9a-f]{8,17}$"}, doc="Image (AMI).")]
    instance_type: Annotated[str, cmi.Field(schema=_TEXT, doc="Instance type, m7g.large.")]
    subnets: Annotated[
        tuple[str, ...],
        cmi.Field(
            schema={
                "minItems": 1,
                "uniqueItems": True,
                "items": {"type": "string", "pattern": "^subnet-[0-9a-f]{8,17}$"},
            },
            doc="Subnets; their zones are the failure domains.",
        ),
    ]
    region: Annotated[
        str | None,
        cmi.Field(
            schema={"pattern": "^[a-z]+(-[a-z0-9]+)+$"},
            doc="Region, eu-central-1. Default: the driver's AWS_REGION.",
        ),
    ] = None
    security_groups: Annotated[
        tuple[str, ...],
        cmi.Field(
            schema={"items": {"type": "string", "pattern": "^sg-[0-9a-f]{8,17}$"}},
            doc="Security groups. Default: that of the VPC.",
        ),
    ] = ()
    key_name: Annotated[str | None, cmi.Field(schema=_TEXT, doc="Key pair for SSH.")] = None
    instance_profile: Annotated[str | None, cmi.Field(schema=_TEXT, doc="Name of the IAM instance profile.")] = None
    root_volume_gib: Annotated[
        int | None,
        cmi.Field(
            name="rootVolumeGiB",
            max=16384,
            schema={"exclusiveMinimum": 0},
            doc="Size of the root volume. Default: that of the image.",
        ),
    ] = None
    source_dest_check: Annotated[
        bool,
        cmi.Field(hot=True, doc="False lets the VM forward packets that are neither from nor to it. Default: true."),
    ] = True
    failure_domain: Annotated[
        str | None, cmi.Field(schema=_TEXT, doc="The zone. Set by the provider from the Machine.")
    ] = None


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuses tags that EC2 does not take, or that are not the user's."""
    if len(tags) > _MOST_TAGS:
        raise cmi.Invalid("/tags", f"has {len(tags)} tags; EC2 takes {_MOST_TAGS} beside those of the driver")
    for name, value in tags.items():
        if not _TAG.fullmatch(name) or name in (NAME_TAG, MACHINE_NAME_TAG):
            raise cmi.Invalid("/tags", f"the tag {name[:200]} is reserved, or not 1 to 128 characters long")
        if len(value) > _LONGEST_VALUE:
            raise cmi.Invalid(f"/tags/{name}", f"has {len(value)} characters; EC2 takes {_LONGEST_VALUE}")
