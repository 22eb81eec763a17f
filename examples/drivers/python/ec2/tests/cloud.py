"""EC2 as moto serves it, from its console."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

REGION = "eu-central-1"
# One of the images that moto comes with.
IMAGE = "ami-03cf127a"


@dataclass(frozen=True)
class Cloud:
    """The console of the cloud."""

    url: str
    ec2: Any
    iam: Any
    # Subnet by zone.
    subnets: dict[str, str]

    @classmethod
    def at(cls, url: str, user_agent: str = "") -> Cloud:
        """The cloud behind an endpoint."""
        session = boto3.Session("AKIAIOSFODNN7EXAMPLE", "console", region_name=REGION)
        ec2 = session.client("ec2", endpoint_url=url, config=Config(user_agent_extra=user_agent))
        iam = session.client("iam", endpoint_url=url)
        subnets = {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]}
        return cls(url, ec2, iam, subnets)

    def spec(self, cluster: str, identity: str = "uid-1", **changes: Any) -> bytes:
        """A provider spec. A change to None takes the field away."""
        tags = {"kubernetes.io/cluster": cluster, "kubernetes.io/role": "node", "capcmi.io/machine": identity}
        spec = {
            "region": REGION,
            "image": IMAGE,
            "instanceType": "m5.large",
            "subnets": list(self.subnets.values()),
            "tags": {**tags, **changes.pop("tags", {})},
            **changes,
        }
        return json.dumps({key: value for key, value in spec.items() if value is not None}).encode()

    def instances(self, cluster: str) -> list[dict[str, Any]]:
        """All instances of a cluster, terminated ones too."""
        return self._found(**{"tag:kubernetes.io/cluster": [cluster]})

    def alive(self, cluster: str) -> list[dict[str, Any]]:
        """Those that are not terminated."""
        states = ["pending", "running", "stopping", "stopped", "shutting-down"]
        return self._found(**{"instance-state-name": states, "tag:kubernetes.io/cluster": [cluster]})

    def running(self) -> list[dict[str, Any]]:
        """The instances that run, of all clusters."""
        return self._found(**{"instance-state-name": ["running"]})

    def _found(self, **filters: list[str]) -> list[dict[str, Any]]:
        wanted = [{"Name": name, "Values": values} for name, values in filters.items()]
        pages = self.ec2.get_paginator("describe_instances").paginate(Filters=wanted)
        return [raw for page in pages for each in page["Reservations"] for raw in each["Instances"]]

    def user_data(self, instance: str) -> str:
        """The user data of an instance, in base64."""
        attribute = self.ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")
        return str(attribute["UserData"].get("Value", ""))

    def unname(self, instance: str) -> None:
        """Takes from an instance the tag with the machine's name."""
        self.ec2.delete_tags(Resources=[instance], Tags=[{"Key": "capcmi.io/machine-name"}])

    def protect(self, instance: str, on: bool) -> None:
        """Has EC2 refuse to stop or to terminate an instance, or lets it again."""
        for protection in ("DisableApiStop", "DisableApiTermination"):
            self.ec2.modify_instance_attribute(InstanceId=instance, **{protection: {"Value": on}})

    def plant(self, cluster: str, name: str, identity: str) -> str:
        """An instance that the driver has not made."""
        tags = {"kubernetes.io/cluster": cluster, "capcmi.io/machine-name": name, "capcmi.io/machine": identity}
        answer = self.ec2.run_instances(
            ImageId=IMAGE,
            InstanceType="m5.large",
            SubnetId=next(iter(self.subnets.values())),
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            ],
        )
        return str(answer["Instances"][0]["InstanceId"])
