"""Facts that need no VM: zones, sizes, volumes, capabilities."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cloud import REGION, Cloud
from ec2driver.backend import Settings
from faults import Calls
from plugin import Plugin


def test_the_zones_of_a_class_are_those_of_its_subnets(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    spec = cloud.spec(cluster, subnets=[cloud.subnets["eu-central-1a"], cloud.subnets["eu-central-1c"]])
    zones = plugin.ListZones(provider_spec=spec).response.zones
    assert sorted(zone.name for zone in zones) == ["eu-central-1a", "eu-central-1c"]
    assert all(zone.control_plane and zone.attributes["zoneId"] for zone in zones)


def test_before_there_are_machines_the_zones_are_those_of_the_region(
    serve: Callable[[Settings], Plugin], plugin: Plugin, cluster: str
) -> None:
    """An InfraCluster asks with its id alone."""
    bare = json.dumps({"tags": {"kubernetes.io/cluster": cluster}}).encode()
    zones = serve(Settings(region=REGION)).ListZones(provider_spec=bare).response.zones
    assert sorted(zone.name for zone in zones) == ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    assert plugin.ListZones(provider_spec=bare).code == "INVALID_ARGUMENT"


def test_machines_spread_over_the_zones_unless_they_ask_for_one(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    zones: set[str] = set()
    for number in range(60):
        spec = cloud.spec(cluster, identity=f"uid-{number}")
        zones.add(plugin.CreateMachine(MachineName=f"m-{number}", ProviderSpec=spec).machine.failure_domain)
        if len(zones) == 3:
            break
    assert len(zones) == 3
    spec = cloud.spec(cluster, identity="uid-b", failureDomain="eu-central-1b")
    assert plugin.CreateMachine(MachineName="b", ProviderSpec=spec).machine.failure_domain == "eu-central-1b"


def test_a_zone_without_a_subnet_is_refused_with_those_that_there_are(
    plugin: Plugin, cloud: Cloud, cluster: str
) -> None:
    spec = cloud.spec(cluster, failureDomain="us-east-1a")
    answer = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert answer.code == "INVALID_ARGUMENT"
    assert "eu-central-1a" in answer.message


@pytest.mark.parametrize(
    ("instance_type", "capacity", "architecture"),
    [
        ("m5.large", {"cpu": "2", "memory": "8192Mi", "ephemeral-storage": "40Gi"}, "amd64"),
        ("m6g.xlarge", {"cpu": "4", "memory": "16384Mi", "ephemeral-storage": "40Gi"}, "arm64"),
        (
            "g4dn.12xlarge",
            {"cpu": "48", "memory": "196608Mi", "ephemeral-storage": "40Gi", "nvidia.com/gpu": "4"},
            "amd64",
        ),
    ],
)
def test_an_instance_type_is_described_as_capacity(
    plugin: Plugin, cloud: Cloud, cluster: str, instance_type: str, capacity: dict[str, str], architecture: str
) -> None:
    spec = cloud.spec(cluster, instanceType=instance_type, rootVolumeGiB=40)
    described = plugin.DescribeClass(provider_spec=spec).response
    assert dict(described.capacity) == capacity
    assert (described.architecture, described.operating_system) == (architecture, "linux")


def test_an_instance_type_that_there_is_not_is_invalid(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    answer = plugin.DescribeClass(provider_spec=cloud.spec(cluster, instanceType="zz.large"))
    assert answer.code == "INVALID_ARGUMENT"


def test_ebs_volumes_are_named_in_order_and_others_left_out(plugin: Plugin, calls: Calls) -> None:
    """DRV-42, DRV-43, DRV-44, DRV-45: both forms, and nothing is made up."""
    specs = [
        {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-0a1"}},
        {"nfs": {"server": "a", "path": "/"}},
        {"csi": {"driver": "disk.csi.azure.com", "volumeHandle": "vol-0bad"}},
        {"awsElasticBlockStore": {"volumeID": "aws://eu-central-1a/vol-0b2"}},
        {"awsElasticBlockStore": {"volumeID": "vol-0c3"}},
        {"csi": {"driver": "ebs.csi.aws.com"}},
        {},
    ]
    for _ in range(10):
        answer = plugin.GetVolumeIDs(PVSpecList=json.dumps(specs).encode())
        assert list(answer.response.VolumeIDs) == ["vol-0a1", "vol-0b2", "vol-0c3"]
    assert list(plugin.GetVolumeIDs(PVSpecList=b"[]").response.VolumeIDs) == []
    assert not calls.made


@pytest.mark.parametrize("specs", [b"", b"{", b"{}", b'["a"]', b"\xff"])
def test_what_is_no_list_of_volumes_is_refused(plugin: Plugin, specs: bytes) -> None:
    """DRV-GV-03, CMI-150"""
    assert plugin.GetVolumeIDs(PVSpecList=specs).code == "INVALID_ARGUMENT"


def test_every_call_that_is_declared_is_there_and_no_other(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """CMI-07, CMI-60, CMI-114, CMI-126, CMI-136, CMI-146"""
    declared = plugin.GetPluginCapabilities().response.capabilities
    assert sorted(capability.rpc.type for capability in declared) == [1, 2, 3, 4, 5, 6]
    assert plugin.GenerateMachineClassForMigration().code == "UNIMPLEMENTED"
    extended = plugin.GetExtensionCapabilities().response
    assert 3 not in extended.calls
    assert extended.zones
    info = plugin.GetPluginInfo().response
    assert (info.name, bool(info.version)) == ("ec2.capcmi.io", True)
    assert plugin.Probe().response.ready.value is True
