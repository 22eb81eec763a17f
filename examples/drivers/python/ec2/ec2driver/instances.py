"""Instances of EC2: how they are found, made, changed and ended. Every call on them is here."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import cmi

from .errors import told
from .spec import MACHINE_NAME_TAG, NAME_TAG, Spec

# EC2 shows an instance for an hour after its end; to the contract it is gone.
_ALIVE = ["pending", "running", "stopping", "stopped", "shutting-down"]
_POWER = {
    "pending": cmi.Power.STARTING,
    "running": cmi.Power.RUNNING,
    "stopping": cmi.Power.STOPPING,
    "shutting-down": cmi.Power.STOPPING,
    "stopped": cmi.Power.STOPPED,
}
_PROVIDER_ID = re.compile(r"aws:///[a-z0-9-]+/(i-[0-9a-f]{8,17})")
_MOST_USER_DATA = 16 * 1024


def instance_id(provider_id: str) -> str | None:
    """The instance that a ProviderID names; none when there is no ProviderID."""
    if not provider_id:
        return None
    match = _PROVIDER_ID.fullmatch(provider_id)
    if match is None:
        raise cmi.BadRequest(f"ProviderID {provider_id[:200]!r} does not read aws:///ZONE/i-…")
    return match[1]


@dataclass(frozen=True)
class Instance:
    """What DescribeInstances says of one."""

    id: str
    zone: str
    state: str
    node_name: str
    addresses: tuple[cmi.Address, ...]
    instance_type: str
    image: str
    subnet: str
    source_dest_check: bool
    # Names by id.
    groups: Mapping[str, str]
    key_name: str | None
    # Name of the IAM instance profile.
    profile: str | None
    tags: Mapping[str, str]
    # When it was launched; a stop and a start count as another launch.
    launched: datetime
    # Volumes and network interfaces, which have the same tags.
    parts: tuple[str, ...]

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Instance:
        """From EC2's words."""
        try:
            return cls._read(raw)
        except KeyError as missing:
            name = raw.get("InstanceId", "an instance")
            raise cmi.Internal(f"EC2 describes {name} without its {missing.args[0]}") from missing

    @classmethod
    def _read(cls, raw: Mapping[str, Any]) -> Instance:
        private = raw.get("PrivateDnsName", "")
        addresses = (
            (cmi.AddressType.INTERNAL_IP, raw.get("PrivateIpAddress")),
            (cmi.AddressType.INTERNAL_DNS, private),
            (cmi.AddressType.HOST_NAME, private),
            (cmi.AddressType.EXTERNAL_IP, raw.get("PublicIpAddress")),
            (cmi.AddressType.EXTERNAL_DNS, raw.get("PublicDnsName")),
        )
        volumes = (mapping.get("Ebs", {}).get("VolumeId") for mapping in raw.get("BlockDeviceMappings", ()))
        interfaces = (interface.get("NetworkInterfaceId") for interface in raw.get("NetworkInterfaces", ()))
        return cls(
            id=raw["InstanceId"],
            zone=raw["Placement"]["AvailabilityZone"],
            state=raw["State"]["Name"],
            node_name=private,
            addresses=tuple(cmi.Address(kind, address) for kind, address in addresses if address),
            instance_type=raw["InstanceType"],
            image=raw["ImageId"],
            subnet=raw.get("SubnetId", ""),
            source_dest_check=raw.get("SourceDestCheck", True),
            groups={group["GroupId"]: group.get("GroupName", "") for group in raw.get("SecurityGroups", ())},
            key_name=raw.get("KeyName") or None,
            profile=raw.get("IamInstanceProfile", {}).get("Arn", "").rsplit("/", 1)[-1] or None,
            tags={tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())},
            launched=raw["LaunchTime"],
            parts=tuple(part for part in (*volumes, *interfaces) if part),
        )

    @property
    def provider_id(self) -> str:
        """As AWS's cloud provider writes it into the Node."""
        return f"aws:///{self.zone}/{self.id}"

    @property
    def name(self) -> str:
        """The machine's name; empty when the tag was removed (DRV-36)."""
        return self.tags.get(MACHINE_NAME_TAG, "")

    @property
    def alive(self) -> bool:
        """Whether there still is something of it."""
        return self.state in _ALIVE

    @property
    def ending(self) -> bool:
        """Whether it is being terminated."""
        return self.state == "shutting-down"

    def vm(self, name: str = "", state: bytes = b"") -> cmi.VM:
        """In the words of the kit. The name is that of a machine whose VM has lost its tag."""
        return cmi.VM(
            self.provider_id,
            self.name or name,
            self.tags,
            node_name=self.node_name,
            addresses=self.addresses,
            power=_POWER.get(self.state, cmi.Power.UNKNOWN),
            zone=self.zone,
            created_at=self.launched,
            state=state,
        )


class Instances:
    """The instances that one client sees."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def of_machine(self, cluster: str, name: str) -> list[Instance]:
        """Those of a cluster that have a machine's name, with any identity."""
        found = self._all(cluster, [{"Name": f"tag:{MACHINE_NAME_TAG}", "Values": [_literal(name)]}])
        return [instance for instance in found if instance.name == name]

    def of_cluster(self, cluster: str) -> list[Instance]:
        """All of a cluster's."""
        return self._all(cluster, [])

    def by_id(self, instance: str) -> Instance | None:
        """One that may not be found by its tags yet, terminated or not; none when EC2 does not know it (yet)."""
        try:
            with told("looking for an instance"):
                answer = self._client.describe_instances(InstanceIds=[instance])
        except cmi.Gone:
            return None
        return next(_raw(answer), None)

    def by_token(self, token: str) -> list[Instance]:
        """Returns the instances of a client token, also terminated ones, as far as EC2 shows them."""
        with told("looking for what a client token has made"):
            answer = self._client.describe_instances(Filters=[{"Name": "client-token", "Values": [token]}])
        return list(_raw(answer))

    def _all(self, cluster: str, more: list[dict[str, Any]]) -> list[Instance]:
        with told("looking for instances"):
            pages = self._client.get_paginator("describe_instances").paginate(Filters=_filters(cluster) + more)
            return [instance for page in pages for instance in _read(page, cluster)]

    def run(self, spec: Spec, id: cmi.Identity, subnet: str, token: str, user_data: bytes) -> Instance:
        """Makes an instance, or returns the instance that the same token made before."""
        wanted = {**id.tags, NAME_TAG: id.name, MACHINE_NAME_TAG: id.name}
        # Always in the same order: EC2 compares the requests of one token.
        tags = [{"Key": key, "Value": value} for key, value in sorted(wanted.items())]
        request: dict[str, Any] = {
            "ClientToken": token,
            "ImageId": spec.image,
            "InstanceType": spec.instance_type,
            "SubnetId": subnet,
            "MinCount": 1,
            "MaxCount": 1,
            "UserData": user_data,
            # Tags in the same call: the instance never exists without its owner's tags.
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume", "network-interface")
            ],
            "BlockDeviceMappings": self._volumes(spec),
            # The metadata service has the user data, which has the token to join the cluster with.
            "MetadataOptions": {"HttpTokens": "required"},
        }
        if spec.security_groups:
            request["SecurityGroupIds"] = list(spec.security_groups)
        if spec.key_name:
            request["KeyName"] = spec.key_name
        if spec.instance_profile:
            request["IamInstanceProfile"] = {"Name": spec.instance_profile}
        with told(f"running an instance in {subnet}"):
            answer = self._client.run_instances(**request)
        if not answer.get("Instances"):
            raise cmi.Internal("EC2 ran an instance and gave no id of it")
        return Instance.read(answer["Instances"][0])

    def terminate(self, instance: Instance) -> None:
        """Orders the end of an instance, and of everything that was made with it."""
        if not instance.ending:
            with told(f"terminating instance {instance.id}"):
                self._client.terminate_instances(InstanceIds=[instance.id])

    def stop(self, instance: Instance) -> None:
        """Asks the guest to stop."""
        with told(f"stopping instance {instance.id}"):
            self._client.stop_instances(InstanceIds=[instance.id])

    def console(self, instance: Instance) -> bytes:
        """The serial console's output, as EC2 has it: minutes old, and empty at first."""
        with told(f"reading the console of instance {instance.id}"):
            answer = self._client.get_console_output(InstanceId=instance.id)
        return str(answer.get("Output", "")).encode()

    def set_source_dest_check(self, instance: Instance, on: bool) -> None:
        """Switches the check."""
        with told(f"switching the source/destination check of instance {instance.id}"):
            self._client.modify_instance_attribute(InstanceId=instance.id, SourceDestCheck={"Value": on})

    def tag(self, instance: Instance, tags: Mapping[str, str]) -> None:
        """Sets tags of an instance, its volumes and its network interfaces."""
        with told(f"tagging instance {instance.id}"):
            self._client.create_tags(
                Resources=[instance.id, *instance.parts],
                Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
            )

    def untag(self, instance: Instance, keys: Iterable[str]) -> None:
        """Takes tags away."""
        with told(f"taking tags from instance {instance.id}"):
            self._client.delete_tags(Resources=[instance.id, *instance.parts], Tags=[{"Key": key} for key in keys])

    def _volumes(self, spec: Spec) -> list[dict[str, Any]]:
        """Deletes every volume of the image with its instance, against the image's setting: nothing else deletes it."""
        with told(f"reading image {spec.image}"):
            images = self._client.describe_images(ImageIds=[spec.image])["Images"]
        if not images:
            raise cmi.Invalid("/image", f"there is no image {spec.image}")
        root = images[0].get("RootDeviceName")
        volumes = {
            mapping["DeviceName"]: mapping["Ebs"].get("VolumeSize", 1)
            for mapping in images[0].get("BlockDeviceMappings", ())
            if "Ebs" in mapping
        }
        wanted = spec.root_volume_gib
        if root in volumes and wanted is not None:
            if wanted < volumes[root]:
                raise cmi.OutOfRange("/rootVolumeGiB", f"is {wanted}; image {spec.image} needs {volumes[root]}")
            volumes[root] = wanted
        return [
            {"DeviceName": device, "Ebs": {"DeleteOnTermination": True, "VolumeSize": size}}
            for device, size in volumes.items()
        ]


def _filters(cluster: str) -> list[dict[str, Any]]:
    return [
        {"Name": "instance-state-name", "Values": _ALIVE},
        {"Name": f"tag:{cmi.CLUSTER_TAG}", "Values": [_literal(cluster)]},
    ]


def _literal(value: str) -> str:
    """A filter value that means itself: `*` and `?` are wild cards to EC2."""
    return re.sub(r"([*?\\])", r"\\\1", value)


def _raw(answer: Mapping[str, Any]) -> Iterator[Instance]:
    return (Instance.read(raw) for reservation in answer["Reservations"] for raw in reservation["Instances"])


def _read(answer: Mapping[str, Any], cluster: str) -> list[Instance]:
    """Checks the answer against the filters again: no instance of another cluster may get further than this."""
    return [instance for instance in _raw(answer) if instance.alive and instance.tags.get(cmi.CLUSTER_TAG) == cluster]


def user_data(raw: bytes, data_format: str) -> bytes:
    """Returns bootstrap data in EC2's form. Large data are packed, and cloud-init unpacks them."""
    if len(raw) <= _MOST_USER_DATA:
        return raw
    packed = gzip.compress(raw, mtime=0) if data_format in ("", "cloud-config") else raw
    if len(packed) > _MOST_USER_DATA:
        raise cmi.BadRequest(
            f"the bootstrap data has {len(packed)} bytes; EC2 takes {_MOST_USER_DATA}: let it fetch the rest"
        )
    return packed
