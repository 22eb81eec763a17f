"""The ids of volumes in PersistentVolume specs."""

from __future__ import annotations

import re

import cmi

_CSI_DRIVER = "ebs.csi.aws.com"
_VOLUME = re.compile(r"vol-[0-9a-f]+")


def volume_id(volume: cmi.PersistentVolume) -> str:
    """The id of an EBS volume: the CSI driver's handle, or the in-tree plugin's `aws://zone/vol-…`."""
    in_tree = volume.spec.get("awsElasticBlockStore")
    found = volume.handle if volume.driver == _CSI_DRIVER else ""
    if isinstance(in_tree, dict):
        found = str(in_tree.get("volumeID", ""))
    last = found.rsplit("/", 1)[-1]
    return last if _VOLUME.fullmatch(last) else ""
