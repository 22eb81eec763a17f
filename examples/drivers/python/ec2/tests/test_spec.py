"""A wrong request is refused before any request to EC2."""

from __future__ import annotations

import json
from typing import Any

import cmi
import pytest
from jsonschema import Draft202012Validator

from cloud import Cloud
from ec2driver.backend import Settings
from ec2driver.spec import Spec
from faults import Calls
from plugin import SECRETS, Plugin

MACHINE_CALLS = ("CreateMachine", "DeleteMachine", "GetMachineStatus", "ShutDownMachine")


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"image": None}, "INVALID_ARGUMENT", "image"),
        ({"instanceType": None}, "INVALID_ARGUMENT", "instanceType"),
        ({"subnets": None}, "INVALID_ARGUMENT", "subnets"),
        ({"subnets": []}, "INVALID_ARGUMENT", "/subnets"),
        ({"subnets": "subnet-12345678"}, "INVALID_ARGUMENT", "/subnets"),
        ({"region": None}, "INVALID_ARGUMENT", "/region"),
        ({"region": "a/b"}, "INVALID_ARGUMENT", "/region"),
        ({"image": "ubuntu"}, "INVALID_ARGUMENT", "/image"),
        ({"instanceType": 7}, "INVALID_ARGUMENT", "/instanceType"),
        ({"rootVolumeGiB": -1}, "INVALID_ARGUMENT", "/rootVolumeGiB"),
        ({"rootVolumeGiB": "20"}, "INVALID_ARGUMENT", "/rootVolumeGiB"),
        ({"sourceDestCheck": "no"}, "INVALID_ARGUMENT", "/sourceDestCheck"),
        ({"colour": "red"}, "INVALID_ARGUMENT", "colour"),
        ({"tags": {"team": 7}}, "INVALID_ARGUMENT", "/tags/team"),
        ({"tags": {"Name": "mine"}}, "INVALID_ARGUMENT", "Name"),
        ({"tags": {"aws:mine": "a"}}, "INVALID_ARGUMENT", "aws:mine"),
        ({"tags": {"kubernetes.io/cluster": ""}}, "INVALID_ARGUMENT", "kubernetes.io~1cluster"),
        ({"tags": {"capcmi.io/machine": " "}}, "INVALID_ARGUMENT", "capcmi.io~1machine"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_a_wrong_spec_is_refused_by_its_field_in_every_call(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, change: dict[str, Any], code: str, field: str
) -> None:
    """DRV-04, DRV-CR-03, DRV-CR-11, DRV-DE-03, DRV-GS-03, CMI-30"""
    spec = cloud.spec(cluster, **change)
    for call in MACHINE_CALLS:
        answer = getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec)
        assert (answer.code, field in answer.message) == (code, True), answer.message
    assert not calls.made


@pytest.mark.parametrize("spec", [b"", b"{", b"[]", b'"a"', b"\xff", b"{}"])
def test_what_is_no_spec_is_refused(plugin: Plugin, calls: Calls, spec: bytes) -> None:
    """CMI-88, CMI-89, CMI-106: a delete without a filter must not delete everything."""
    for call in MACHINE_CALLS:
        assert getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec).code == "INVALID_ARGUMENT"
    assert plugin.ListMachines(ProviderSpec=spec).code == "INVALID_ARGUMENT"
    assert plugin.ListMachinesPaged(provider_spec=spec).code == "INVALID_ARGUMENT"
    assert not calls.made


@pytest.mark.parametrize("name", ["", " ", "A", "a_b", "-a", "a..b", "ä", "a" * 254])
def test_what_is_no_machine_name_is_refused(plugin: Plugin, cloud: Cloud, cluster: str, name: str) -> None:
    """CMI-87, CMI-105, CMI-118, CMI-130"""
    for call in MACHINE_CALLS:
        answer = getattr(plugin, call)(MachineName=name, ProviderSpec=cloud.spec(cluster))
        assert answer.code == "INVALID_ARGUMENT"
        assert "MachineName" in answer.message


def test_the_longest_name_that_there_is_is_taken(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    name = "a" * 253
    assert plugin.CreateMachine(MachineName=name, ProviderSpec=cloud.spec(cluster)).code == "OK"
    assert list(plugin.ListMachines(ProviderSpec=cloud.spec(cluster)).response.MachineList.values()) == [name]


@pytest.mark.parametrize("provider_id", ["x", "aws:///eu-central-1a/", "gce:///a/i-0123456789abcdef0", "aws:///a/i-*"])
def test_what_is_no_provider_id_of_ours_is_refused(
    plugin: Plugin, cloud: Cloud, cluster: str, provider_id: str
) -> None:
    """DRV-DE-03"""
    answer = plugin.DeleteMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster), ProviderID=provider_id)
    assert answer.code == "INVALID_ARGUMENT"


def test_an_image_or_subnet_that_there_is_not_is_invalid(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    for change in ({"image": "ami-0123456789abcdef0"}, {"subnets": ["subnet-0123456789abcdef0"]}):
        answer = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster, **change))
        assert answer.code == "INVALID_ARGUMENT"
        assert "0123456789abcdef0" in answer.message
    assert not cloud.instances(cluster)


@pytest.mark.parametrize("size", [1, 99999])
def test_an_impossible_root_volume_is_out_of_range_and_deletable(
    plugin: Plugin, cloud: Cloud, cluster: str, size: int
) -> None:
    """DRV-CR-11, DRV-19: smaller than the image, and larger than any volume."""
    spec = cloud.spec(cluster, rootVolumeGiB=size)
    refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert (refused.code, "/rootVolumeGiB" in refused.message) == ("OUT_OF_RANGE", True)
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
    assert not cloud.instances(cluster)


def test_the_driver_may_have_a_region_for_all(serve: Any, cloud: Cloud, cluster: str) -> None:
    plugin = serve(Settings(region="eu-central-1", consistency_window=0))
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster, region=None)).code == "OK"


def test_bootstrap_data_that_is_too_large_is_packed_or_refused(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """EC2 takes 16 KiB; cloud-init unpacks, Ignition does not."""
    spec = cloud.spec(cluster)
    data = b"#cloud-config\n" + b"# a line\n" * 10_000
    for data_format, code in ((b"ignition", "INVALID_ARGUMENT"), (b"cloud-config", "OK")):
        secrets = {**SECRETS, "userData": data, "userDataFormat": data_format}
        assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets=secrets).code == code


def test_the_published_schema_is_the_one_that_is_checked(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """The provider refuses by it before any call, without the tags that it adds later."""
    answer = plugin.GetExtensionCapabilities().response
    schema = json.loads(answer.provider_spec_schema)
    assert schema == cmi.schema(Spec)
    Draft202012Validator.check_schema(schema)
    user = json.loads(cloud.spec(cluster))
    del user["tags"]
    Draft202012Validator(schema).validate(user)
    assert not Draft202012Validator(schema).is_valid({**user, "colour": "red"})
    assert list(answer.hot_updatable) == ["/tags", "/tags/capcmi.io~1machine", "/sourceDestCheck"]
