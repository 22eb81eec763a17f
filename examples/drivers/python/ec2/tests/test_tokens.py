"""Client tokens: EC2 makes one instance per token, also for lost calls and for several drivers in parallel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from moto.ec2.models.instances import InstanceBackend

from client_tokens import Tokens
from cloud import Cloud
from ec2driver.backend import Settings
from faults import Calls, Fault
from plugin import SECRETS, Plugin


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    """The tokens that EC2 has seen in this test, with their zones."""
    tokens = Tokens()
    run = lambda backend, *args, **kwargs: tokens.run_instances(backend, *args, **kwargs)  # noqa: E731
    monkeypatch.setattr(InstanceBackend, "run_instances", run)
    return tokens.made


@pytest.fixture
def blind(calls: Calls) -> Fault:
    """As long as it is there, EC2 does not show any instance: it is eventually consistent."""
    fault = Fault("DescribeInstances", answer={"Reservations": []}, http_status=200)
    calls.faults.append(fault)
    return fault


def test_a_create_whose_answer_got_lost_finds_its_vm(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, blind: Fault, tokens: dict[tuple[str, str], Any]
) -> None:
    """DRV-10, DRV-12: the driver can't see the VM yet, and still makes no second one."""
    spec = cloud.spec(cluster)
    first = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    second = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert first.response.ProviderID == second.response.ProviderID
    calls.faults.remove(blind)
    assert len(cloud.instances(cluster)) == 1
    assert all(len(token) == 64 for token, _ in tokens)


def test_two_drivers_make_one_vm(serve: Callable[[Settings], Plugin], cloud: Cloud, cluster: str, blind: Fault) -> None:
    """CMI-10: their locks know nothing of each other."""
    spec = cloud.spec(cluster)
    plugins = [serve(Settings(consistency_window=0)) for _ in range(2)]
    answers = [plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec) for plugin in plugins]
    assert len({answer.response.ProviderID for answer in answers}) == 1


def test_machines_have_tokens_of_their_own(
    plugin: Plugin, cloud: Cloud, cluster: str, tokens: dict[tuple[str, str], Any]
) -> None:
    """Another name, another identity or another cluster is another VM."""
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    plugin.CreateMachine(MachineName="m-2", ProviderSpec=cloud.spec(cluster))
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster + "-2"))
    plugin.CreateMachine(MachineName="m-3", ProviderSpec=cloud.spec(cluster, identity="uid-2"))
    assert len(tokens) == 4


def test_a_token_that_made_a_vm_that_is_gone_is_followed_by_another(
    plugin: Plugin, cloud: Cloud, cluster: str, tokens: dict[tuple[str, str], Any]
) -> None:
    """A token lives on after its instance: EC2 refuses it for a day."""
    spec = cloud.spec(cluster)
    ids = set()
    for _ in range(3):
        ids.add(plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response.ProviderID)
        assert len(cloud.alive(cluster)) == 1
        plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec)
    assert len(ids) == len(tokens) == 3


def test_a_token_that_made_another_vm_that_is_gone_is_followed_by_another(
    plugin: Plugin, cloud: Cloud, cluster: str, tokens: dict[tuple[str, str], Any]
) -> None:
    """Other bootstrap data, or other tags: EC2 does not say of such a token that its instance is terminated."""
    ids = set()
    for number in range(3):
        spec = cloud.spec(cluster, tags={"number": str(number)})
        secrets = {**SECRETS, "userData": f"token-{number}".encode()}
        made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets=secrets)
        ids.add(made.response.ProviderID)
        assert len(cloud.alive(cluster)) == 1
        plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec)
    assert len(ids) == len(tokens) == 3


def test_a_machine_of_many_lives_gets_other_tokens(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    """Without the last known state, the same ones: EC2 forgets them in a day."""
    spec = cloud.spec(cluster)
    used_up = Fault("RunInstances", "IdempotentInstanceTerminated")
    calls.faults.append(used_up)
    refused = [plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec) for _ in range(2)]
    assert [each.code for each in refused] == ["ABORTED"] * 2
    tried = set(calls.tokens)
    assert len(tried) == 8
    calls.faults.clear()
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, LastKnownState=refused[0].state)
    assert made.code == "OK"
    assert calls.tokens[-1] not in tried


def test_a_lost_create_with_new_bootstrap_data_waits_for_its_vm(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, blind: Fault
) -> None:
    """A renewed token in the bootstrap data makes another request for EC2."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets={**SECRETS, "userData": b"token-1"})
    secrets = {**SECRETS, "userData": b"token-2"}
    waits = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets=secrets)
    assert (waits.code, "IdempotentParameterMismatch" in waits.message) == ("ABORTED", True), waits.message
    calls.faults.remove(blind)
    again = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets=secrets)
    assert again.response.ProviderID == made.response.ProviderID
    assert len(cloud.instances(cluster)) == 1


def test_a_vm_seen_after_its_token_was_refused_is_adopted_if_it_fits(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """DRV-CR-06, DRV-12: by its token, before it is found by its tags."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets={**SECRETS, "userData": b"token-1"})
    unseen = Fault("DescribeInstances", answer={"Reservations": []}, http_status=200)
    secrets = {**SECRETS, "userData": b"token-2"}
    other_type = cloud.spec(cluster, instanceType="m5.xlarge")
    for asked, code in ((spec, "OK"), (other_type, "ALREADY_EXISTS")):
        calls.faults[:] = [replace(unseen, count=1)]
        answer = plugin.CreateMachine(MachineName="m-1", ProviderSpec=asked, Secrets=secrets)
        assert answer.code == code, answer.message
    assert [raw["InstanceId"] for raw in cloud.instances(cluster)] == [made.response.ProviderID.rsplit("/", 1)[1]]


@pytest.fixture
def full_once(calls: Calls) -> None:
    """The first zone that is tried has no room for a moment."""
    calls.faults.append(Fault("RunInstances", "InsufficientInstanceCapacity", count=1))


@pytest.mark.usefixtures("full_once", "blind")
def test_a_zone_that_has_room_again_gets_no_second_vm(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    """DRV-12: the first was full, the second made the VM, whose answer got lost and which is not to be seen yet."""
    spec = cloud.spec(cluster)
    refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert refused.code == "RESOURCE_EXHAUSTED"
    known = {"MachineName": "m-1", "ProviderSpec": spec, "LastKnownState": refused.state}
    made = {plugin.CreateMachine(**known).response.ProviderID for _ in range(3)}
    calls.faults.clear()
    assert len(made) == len(cloud.instances(cluster)) == 1


@pytest.mark.usefixtures("full_once", "blind")
def test_a_caller_that_gives_no_state_back_gets_one_vm(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """DRV-12: it stays in the first zone, also with another driver."""
    spec = cloud.spec(cluster)
    codes = [plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code for _ in range(3)]
    calls.faults.clear()
    assert codes == ["RESOURCE_EXHAUSTED", "OK", "OK"]
    assert len(cloud.instances(cluster)) == 1


def test_a_vm_in_a_later_zone_is_found_there_by_what_its_create_answered(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, full_once: None, blind: Fault
) -> None:
    """DRV-12: the state of the OK names the zone too, and EC2 may not know the id yet."""
    spec = cloud.spec(cluster)
    refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, LastKnownState=refused.state).response
    again = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, LastKnownState=made.LastKnownState).response
    assert again.ProviderID == made.ProviderID
    calls.faults.remove(blind)
    assert len(cloud.instances(cluster)) == 1


def test_a_token_whose_create_was_refused_is_not_used_again(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """EC2 remembers the parameters of a create that failed, too; bootstrap data may be others by then."""
    for reason, zones in (("VcpuLimitExceeded", 1), ("InsufficientInstanceCapacity", 3)):
        calls.faults.append(Fault("RunInstances", reason, count=zones))
        state, asked = b"", len(calls.tokens)
        for _ in range(zones):
            refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster), LastKnownState=state)
            assert refused.code == "RESOURCE_EXHAUSTED"
            state = refused.state
        assert (
            plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster), LastKnownState=state).code == "OK"
        )
        assert len(set(calls.tokens[asked:])) == zones + 1
        plugin.DeleteMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))


def test_a_create_that_times_out_at_ec2_is_not_tried_in_another_zone(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """The first zone may have made the VM anyway."""
    calls.faults.append(Fault("RunInstances", error=ReadTimeoutError(endpoint_url="https://ec2"), count=1))
    spec = cloud.spec(cluster)
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "UNAVAILABLE"
    assert calls.count("RunInstances") == 1
