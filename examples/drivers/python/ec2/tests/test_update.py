"""A living VM follows its provider spec in the fields that are declared to be hot-updatable."""

from __future__ import annotations

from typing import Any

import pytest

from cloud import Cloud
from faults import Calls, Fault
from plugin import Answer, Plugin


def tags(cloud: Cloud, cluster: str) -> dict[str, str]:
    """The tags of the one VM of a cluster."""
    return {tag["Key"]: tag["Value"] for tag in cloud.alive(cluster)[0]["Tags"]}


class Vm:
    """A VM with a provider spec that changes."""

    def __init__(self, plugin: Plugin, cloud: Cloud, cluster: str, **fields: Any) -> None:
        self.plugin = plugin
        self.applied = cloud.spec(cluster, **fields)
        self.id = plugin.CreateMachine(MachineName="m-1", ProviderSpec=self.applied).response.ProviderID

    def update(self, spec: bytes, last_known_state: bytes = b"") -> Answer:
        """Asks for the change from the applied spec. After an OK, the new spec is the applied one."""
        answer = self.plugin.UpdateMachine(
            machine_name="m-1",
            provider_id=self.id,
            last_applied_provider_spec=self.applied,
            provider_spec=spec,
            last_known_state=last_known_state,
        )
        if answer.code == "OK":
            self.applied = spec
        return answer


def test_tags_are_set_changed_and_taken_away(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """UPD-01, UPD-03: and what others have set stays."""
    vm = Vm(plugin, cloud, cluster, tags={"team": "a", "tier": "web"})
    instance = cloud.alive(cluster)[0]["InstanceId"]
    cloud.ec2.create_tags(Resources=[instance], Tags=[{"Key": "backup", "Value": "nightly"}])
    assert vm.update(cloud.spec(cluster, tags={"team": "b", "cost": "7"})).code == "OK"
    now = tags(cloud, cluster)
    assert (now["team"], now["cost"], now["backup"]) == ("b", "7", "nightly")
    assert "tier" not in now
    assert now["capcmi.io/machine-name"] == "m-1"
    volume = cloud.alive(cluster)[0]["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    described = cloud.ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Tags"]
    assert {"Key": "team", "Value": "b"} in described


def test_an_update_that_is_repeated_changes_nothing(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    vm = Vm(plugin, cloud, cluster, tags={"team": "a"})
    before, spec = vm.applied, cloud.spec(cluster, tags={"team": "b"})
    assert vm.update(spec).code == "OK"
    calls.made.clear()
    vm.applied = before
    assert vm.update(spec).code == "OK"
    assert calls.made == ["DescribeInstances"]


def test_an_update_that_was_half_done_can_be_taken_back(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """UPD-03: the error names the tags that may be there, in the last known state."""
    vm = Vm(plugin, cloud, cluster, tags={"team": "a", "tier": "web"})
    calls.faults.append(Fault("DeleteTags", "ServiceUnavailable", http_status=503, count=1))
    failed = vm.update(cloud.spec(cluster, tags={"cost": "7"}))
    assert failed.code == "UNAVAILABLE"
    assert tags(cloud, cluster)["cost"] == "7"
    state = failed.trailers["capcmi-last-known-state-bin"]
    assert isinstance(state, bytes)
    assert vm.update(vm.applied, state).code == "OK"
    now = tags(cloud, cluster)
    assert "cost" not in now
    assert (now["team"], now["tier"]) == ("a", "web")


def test_the_check_can_be_switched_on_a_living_vm(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    vm = Vm(plugin, cloud, cluster)
    spec = cloud.spec(cluster, sourceDestCheck=False)
    assert vm.update(spec).code == "OK"
    assert cloud.alive(cluster)[0]["SourceDestCheck"] is False
    assert plugin.GetMachine(machine_name="m-1", provider_spec=spec).code == "OK"


@pytest.mark.parametrize("change", [{"instanceType": "m5.xlarge"}, {"image": "ami-12c6146b"}])
def test_what_a_living_vm_can_not_change_is_refused(
    plugin: Plugin, cloud: Cloud, cluster: str, change: dict[str, str]
) -> None:
    vm = Vm(plugin, cloud, cluster)
    refused = vm.update(cloud.spec(cluster, **change))
    assert refused.code == "INVALID_ARGUMENT"
    assert next(iter(change)) in refused.message


def test_an_update_of_a_vm_that_is_gone_finds_none(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    vm = Vm(plugin, cloud, cluster)
    cloud.ec2.terminate_instances(InstanceIds=[cloud.alive(cluster)[0]["InstanceId"]])
    assert vm.update(vm.applied).code == "NOT_FOUND"
