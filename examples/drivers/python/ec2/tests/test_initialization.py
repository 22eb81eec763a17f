"""A step that needs an existing instance: the source/destination check."""

from __future__ import annotations

import pytest

from cloud import Cloud
from faults import Calls, Fault
from plugin import Answer, Plugin


def waits(answer: Answer, provider_id: str) -> None:
    """Machine code 17 beside a canonical one, and the machine that exists anyway."""
    assert answer.code == "FAILED_PRECONDITION"
    assert answer.trailers["capcmi-machine-code"] == "Uninitialized"
    assert answer.machine.provider_id == provider_id
    assert answer.machine.node_name


def test_a_nat_instance_waits_until_its_check_is_off(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """INI-03, INI-18, INI-23: and it waits again when the check is switched back on."""
    spec = cloud.spec(cluster, sourceDestCheck=False)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert made.code == "OK"
    provider_id = made.response.ProviderID
    for _ in range(2):
        waits(plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec), provider_id)
        waits(plugin.GetMachine(machine_name="m-1", provider_spec=spec), provider_id)
        initialized = plugin.InitializeMachine(machine_name="m-1", provider_spec=spec, provider_id=provider_id)
        assert initialized.response.provider_id == provider_id
        assert plugin.GetMachine(machine_name="m-1", provider_spec=spec).code == "OK"
        instance = cloud.alive(cluster)[0]
        assert instance["SourceDestCheck"] is False
        cloud.ec2.modify_instance_attribute(InstanceId=instance["InstanceId"], SourceDestCheck={"Value": True})


def test_an_ordinary_instance_has_nothing_to_wait_for(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    spec = cloud.spec(cluster)
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec).code == "OK"


def test_a_step_that_is_done_is_not_done_again(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    """INI-22"""
    spec = cloud.spec(cluster, sourceDestCheck=False)
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    for _ in range(10):
        assert plugin.InitializeMachine(machine_name="m-1", provider_spec=spec).code == "OK"
    assert calls.count("ModifyInstanceAttribute") == 1


@pytest.mark.parametrize("reason", ["UnauthorizedOperation", "InternalError", "IncorrectInstanceState"])
def test_a_step_that_fails_leaves_the_vm_uninitialized(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, reason: str
) -> None:
    """INI-12, INI-21: not Internal, and the message has EC2's reason."""
    spec = cloud.spec(cluster, sourceDestCheck=False)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    calls.faults.append(Fault("ModifyInstanceAttribute", reason, count=1))
    failed = plugin.InitializeMachine(machine_name="m-1", provider_spec=spec)
    waits(failed, made.response.ProviderID)
    assert reason in failed.message
    assert plugin.InitializeMachine(machine_name="m-1", provider_spec=spec).code == "OK"
    assert len(cloud.instances(cluster)) == 1


def test_a_vm_that_is_gone_is_not_initialized(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """INI-24"""
    answer = plugin.InitializeMachine(machine_name="m-1", provider_spec=cloud.spec(cluster))
    assert answer.code == "NOT_FOUND"
