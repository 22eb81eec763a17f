"""EC2's zones, and the resources of its instance types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cmi

from .errors import told
from .spec import Spec

_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


class Catalog:
    """EC2's offer to one client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def subnet_zones(self, subnets: Iterable[str]) -> dict[str, str]:
        """The zone of each subnet."""
        with told("reading subnets"):
            answer = self._client.describe_subnets(SubnetIds=list(subnets))
        return {subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in answer["Subnets"]}

    def zones(self, names: Iterable[str] = ()) -> list[cmi.Zone]:
        """The zones of these names, or else all of the region that need no opt-in."""
        request: dict[str, Any] = {"Filters": [{"Name": "state", "Values": ["available"]}]}
        if wanted := sorted(set(names)):
            request["ZoneNames"] = wanted
        else:
            request["Filters"].append({"Name": "opt-in-status", "Values": ["opt-in-not-required"]})
        with told("reading availability zones"):
            answer = self._client.describe_availability_zones(**request)
        return [
            cmi.Zone(zone["ZoneName"], control_plane=True, attributes={"zoneId": zone["ZoneId"]})
            for zone in answer["AvailabilityZones"]
        ]

    def describe(self, spec: Spec) -> cmi.Size:
        """Returns the resources of an instance of this spec."""
        with told(f"reading instance type {spec.instance_type}"):
            answer = self._client.describe_instance_types(InstanceTypes=[spec.instance_type])
        if not answer["InstanceTypes"]:
            raise cmi.Invalid("/instanceType", f"there is no {spec.instance_type}")
        found = answer["InstanceTypes"][0]
        capacity = {
            "cpu": str(found["VCpuInfo"]["DefaultVCpus"]),
            "memory": f"{found['MemoryInfo']['SizeInMiB']}Mi",
        }
        gpus = [gpu for gpu in found.get("GpuInfo", {}).get("Gpus", ()) if gpu.get("Manufacturer") == "NVIDIA"]
        if gpus:
            capacity["nvidia.com/gpu"] = str(sum(gpu["Count"] for gpu in gpus))
        if spec.root_volume_gib is not None:
            capacity["ephemeral-storage"] = f"{spec.root_volume_gib}Gi"
        supported = found.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
        known = (_ARCHITECTURES[each] for each in supported if each in _ARCHITECTURES)
        return cmi.Size(capacity, next(known, ""), "linux")
