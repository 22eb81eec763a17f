"""Client tokens: EC2 makes one instance per token, also for calls that got lost and for several drivers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from moto.ec2.models.instances import InstanceBackend

from client_tokens import Tokens
from cloud import Cloud
from ec2driver.driver import Settings
from faults import Calls, Fault
from plugin import SECRETS, Plugin


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tokens that EC2 has seen in this test."""
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
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, blind: Fault, tokens: dict[str, Any]
) -> None:
    """DRV-10, DRV-12: the driver can't see the VM yet, and still makes no second one."""
    spec = cloud.spec(cluster)
    first = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    second = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert first.response.ProviderID == second.response.ProviderID
    calls.faults.remove(blind)
    assert len(cloud.instances(cluster)) == 1
    assert all(len(token) == 64 for token in tokens)


def test_two_drivers_make_one_vm(serve: Callable[[Settings], Plugin], cloud: Cloud, cluster: str, blind: Fault) -> None:
    """CMI-10: their locks know nothing of each other."""
    spec = cloud.spec(cluster)
    plugins = [serve(Settings(consistency_window=0)) for _ in range(2)]
    answers = [plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec) for plugin in plugins]
    assert len({answer.response.ProviderID for answer in answers}) == 1


def test_machines_have_tokens_of_their_own(plugin: Plugin, cloud: Cloud, cluster: str, tokens: dict[str, Any]) -> None:
    """Another name, another identity or another cluster is another VM."""
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    plugin.CreateMachine(MachineName="m-2", ProviderSpec=cloud.spec(cluster))
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster + "-2"))
    plugin.CreateMachine(MachineName="m-3", ProviderSpec=cloud.spec(cluster, identity="uid-2"))
    assert len(tokens) == 4


def test_a_token_that_made_a_vm_that_is_gone_is_followed_by_another(
    plugin: Plugin, cloud: Cloud, cluster: str, tokens: dict[str, Any]
) -> None:
    """A token lives on after its instance: EC2 answers with what is terminated."""
    spec = cloud.spec(cluster)
    ids = set()
    for _ in range(3):
        ids.add(plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response.ProviderID)
        assert len(cloud.alive(cluster)) == 1
        plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec)
    assert len(ids) == len(tokens) == 3


def test_a_lost_create_with_other_bootstrap_data_waits_until_its_vm_is_seen(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, blind: Fault
) -> None:
    """Bootstrap data has a token of its own that is renewed; EC2 takes that for another request."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets={**SECRETS, "userData": b"token-1"})
    calls.faults.append(Fault("RunInstances", "IdempotentParameterMismatch"))
    secrets = {**SECRETS, "userData": b"token-2"}
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets=secrets).code == "ABORTED"
    calls.faults.remove(blind)
    again = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets=secrets)
    assert again.response.ProviderID == made.response.ProviderID


def test_a_create_that_times_out_at_ec2_is_not_tried_in_another_zone(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """The first zone may have made the VM all the same."""
    calls.faults.append(Fault("RunInstances", error=ReadTimeoutError(endpoint_url="https://ec2"), count=1))
    spec = cloud.spec(cluster)
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "UNAVAILABLE"
    assert calls.count("RunInstances") == 1
