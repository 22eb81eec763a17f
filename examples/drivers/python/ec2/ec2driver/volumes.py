"""Volume ids in PersistentVolume specs."""

from __future__ import annotations

import json
import re
from typing import Any

from .contract import Code, Failure

_CSI_DRIVER = "ebs.csi.aws.com"
_VOLUME = re.compile(r"vol-[0-9a-f]+")


def ids(raw: bytes) -> list[str]:
    """The ids of EBS volumes in a JSON array of PersistentVolume specs, in its order; others are left out.

    Both forms of one volume are understood: the CSI driver's handle, and the in-tree plugin's `aws://zone/vol-…`.
    """
    if not raw:
        raise Failure(Code.INVALID_ARGUMENT, "PVSpecList is required")
    try:
        specs = json.loads(raw)
    except ValueError as error:
        raise Failure(Code.INVALID_ARGUMENT, f"PVSpecList is no JSON: {error}") from None
    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise Failure(Code.INVALID_ARGUMENT, "PVSpecList is no JSON array of PersistentVolume specs")
    return [found for found in map(_id, specs) if found]


def _id(spec: dict[str, Any]) -> str | None:
    csi = spec.get("csi")
    in_tree = spec.get("awsElasticBlockStore")
    if isinstance(csi, dict) and csi.get("driver") == _CSI_DRIVER:
        volume = csi.get("volumeHandle")
    elif isinstance(in_tree, dict):
        volume = in_tree.get("volumeID")
    else:
        return None
    last = str(volume).rsplit("/", 1)[-1]
    return last if _VOLUME.fullmatch(last) else None
