"""What EC2 refuses is in the codes of the contract, and nothing is made twice because of it."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterator

import pytest
import requests
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from cloud import Cloud
from ec2driver.backend import Settings
from faults import Calls, Fault
from plugin import SECRETS, Answer, Plugin

MACHINE_CALLS = ("CreateMachine", "DeleteMachine", "GetMachineStatus", "ShutDownMachine")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("AuthFailure", "UNAUTHENTICATED"),
        ("RequestExpired", "UNAUTHENTICATED"),
        ("UnauthorizedOperation", "PERMISSION_DENIED"),
        ("InsufficientInstanceCapacity", "RESOURCE_EXHAUSTED"),
        ("VcpuLimitExceeded", "RESOURCE_EXHAUSTED"),
        ("InstanceLimitExceeded", "RESOURCE_EXHAUSTED"),
        ("InvalidParameterValue", "INVALID_ARGUMENT"),
        ("InvalidGroup.NotFound", "INVALID_ARGUMENT"),
        ("InvalidKeyPair.NotFound", "INVALID_ARGUMENT"),
        ("Unsupported", "INVALID_ARGUMENT"),
        ("IncorrectInstanceState", "FAILED_PRECONDITION"),
        ("IdempotentParameterMismatch", "ABORTED"),
        ("IdempotentInstanceTerminated", "ABORTED"),
        ("RequestLimitExceeded", "UNAVAILABLE"),
        ("InternalError", "UNAVAILABLE"),
        ("AnUnheardOfError", "UNKNOWN"),
    ],
)
def test_what_ec2_says_to_a_create_has_its_code(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, reason: str, code: str
) -> None:
    """DRV-CR-02, -03, -07, -08, -09, -10, -14, -16, DRV-15: and the create works once EC2 does."""
    calls.faults.append(Fault("RunInstances", reason))
    refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    assert refused.code == code
    assert reason in refused.message
    assert not cloud.instances(cluster)
    calls.faults.clear()
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster)).code == "OK"
    assert len(cloud.instances(cluster)) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault("DescribeInstances", "ServiceUnavailable", http_status=503),
        Fault("DescribeInstances", "NoCodeOfEc2s", http_status=502),
        Fault("DescribeInstances", error=EndpointConnectionError(endpoint_url="https://ec2")),
        Fault("DescribeInstances", error=ConnectTimeoutError(endpoint_url="https://ec2")),
        Fault("DescribeInstances", error=ReadTimeoutError(endpoint_url="https://ec2")),
        Fault("DescribeInstances", error=ResponseParserError("a page of a proxy")),
    ],
    ids=lambda fault: fault.reason or type(fault.error).__name__,
)
def test_a_cloud_that_is_down_is_unavailable_to_every_call(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, fault: Fault
) -> None:
    """DRV-30, DRV-CR-14, DRV-DE-14, DRV-GS-14: never NOT_FOUND, which would lead to a second VM, and never OK."""
    spec = cloud.spec(cluster)
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    calls.faults.append(fault)
    for call in MACHINE_CALLS:
        assert getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec).code == "UNAVAILABLE"
    assert plugin.ListMachines(ProviderSpec=spec).code == "UNAVAILABLE"
    assert len(cloud.alive(cluster)) == 1


def test_a_throttled_driver_says_for_how_long(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    calls.faults.append(Fault("DescribeInstances", "RequestLimitExceeded", http_status=503))
    answer = plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    assert answer.code == "UNAVAILABLE"
    assert int(answer.trailers["capcmi-retry-after-ms"]) >= 1000


def test_what_an_administrator_has_to_decode_is_in_no_message(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    blob = "You are not authorized. Encoded authorization failure message: " + "x" * 3000
    calls.faults.append(Fault("RunInstances", "UnauthorizedOperation", blob, http_status=403))
    refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    assert refused.code == "PERMISSION_DENIED"
    assert "not authorized" in refused.message
    assert len(refused.message) < 200


def test_a_secret_that_ec2_echoes_is_in_no_message(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    """DRV-17, OPS-11. The client of the tests looks for the secrets in every message."""
    secret = SECRETS["secretAccessKey"].decode()
    calls.faults.append(Fault("RunInstances", "AuthFailure", f"the key {secret} is wrong"))
    refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    assert refused.code == "UNAUTHENTICATED"
    assert "[redacted]" in refused.message


def test_user_data_that_ec2_echoes_is_in_no_message_and_no_log(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """DRV-17, OPS-11: longer than a message, as a line and in base64."""
    caplog.set_level("INFO", "cmi")
    lines = [f"canary-line-{number}" for number in range(200)]
    data = "\n".join(lines).encode()
    echoes = (data.decode(), f"line 7 is {lines[7]}", b64encode(data).decode())
    for echo in echoes:
        calls.faults[:] = [Fault("RunInstances", "InvalidParameterValue", f"bad user data: {echo}", count=1)]
        secrets = {**SECRETS, "userData": data}
        refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster), Secrets=secrets)
        assert refused.code == "INVALID_ARGUMENT"
        assert refused.message.endswith("[redacted]")
    logged = str([getattr(record, "fields", {}) for record in caplog.records])
    assert "INVALID_ARGUMENT" in logged
    assert "canary" not in logged
    assert echoes[2][:100] not in logged


def test_a_message_is_no_longer_than_a_header_may_be(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    calls.faults.append(Fault("RunInstances", "InvalidParameterValue", "word " * 3000))
    assert len(plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster)).message) <= 2048


def test_a_fault_of_the_driver_is_unknown_and_tells_nothing(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """DRV-CR-02, CMI-23: the text of an exception may hold anything."""
    calls.faults.append(Fault("RunInstances", error=RuntimeError(SECRETS["secretAccessKey"].decode())))
    refused = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    assert refused.code == "UNKNOWN"
    assert "RuntimeError" in refused.message


class Zones:
    """A machine with two subnets in the order of its tries. Each create gets the last known state."""

    def __init__(self, plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
        subnets = list(cloud.subnets.values())[:2]
        self.plugin, self.calls, self.state = plugin, calls, b""
        self.spec = cloud.spec(cluster, subnets=subnets)

    def create(self, *reasons: str) -> Answer:
        """Creates; the subnets that are asked refuse it for these reasons."""
        self.calls.faults[:] = [Fault("RunInstances", reason, count=1) for reason in reasons]
        answer = self.plugin.CreateMachine(MachineName="m-1", ProviderSpec=self.spec, LastKnownState=self.state)
        self.state = answer.state or self.state
        return answer


@pytest.fixture
def zones(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> Zones:
    return Zones(plugin, cloud, cluster, calls)


FULL, NOT_OFFERED = "InsufficientInstanceCapacity", "Unsupported"


def test_a_full_zone_leads_to_another_one(zones: Zones, cloud: Cloud, cluster: str) -> None:
    """One zone a call; the short wait keeps the creates of other machines from being held back for long."""
    refused = zones.create(FULL)
    assert refused.code == "RESOURCE_EXHAUSTED"
    assert refused.trailers["capcmi-retry-after-ms"] == "1"
    assert zones.calls.count("RunInstances") == 1
    assert not cloud.instances(cluster)
    made = zones.create()
    assert made.code == "OK"
    assert cloud.instances(cluster)[0]["SubnetId"] in refused.message.split(" is tried next")[0]


def test_when_all_zones_are_full_the_class_is(zones: Zones) -> None:
    """DRV-CR-08: the wait is not short, and the next try starts with the first zone."""
    zones.create(FULL)
    refused = zones.create(FULL)
    assert refused.code == "RESOURCE_EXHAUSTED"
    assert "capcmi-retry-after-ms" not in refused.trailers
    again = zones.create(FULL)
    assert again.trailers["capcmi-retry-after-ms"] == "1"
    assert zones.create().code == "OK"


def test_a_full_zone_before_a_zone_without_the_type_is_exhausted(zones: Zones) -> None:
    """DRV-CR-08: INVALID_ARGUMENT would give the machine up, and room comes back."""
    zones.create(FULL)
    refused = zones.create(NOT_OFFERED)
    assert refused.code == "RESOURCE_EXHAUSTED"
    assert "capcmi-retry-after-ms" not in refused.trailers
    assert zones.create().code == "OK"


def test_a_full_zone_after_a_zone_without_the_type_is_exhausted(zones: Zones) -> None:
    """The zone that will never do is passed over in the same call."""
    refused = zones.create(NOT_OFFERED, FULL)
    assert refused.code == "RESOURCE_EXHAUSTED"
    assert zones.calls.count("RunInstances") == 2
    assert zones.create(NOT_OFFERED).code == "OK"


def test_a_type_that_no_zone_offers_is_invalid(zones: Zones) -> None:
    """DRV-CR-03"""
    assert zones.create(NOT_OFFERED, NOT_OFFERED).code == "INVALID_ARGUMENT"


def test_a_full_zone_that_a_machine_asks_for_leads_nowhere_else(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    calls.faults.append(Fault("RunInstances", "InsufficientInstanceCapacity", count=1))
    spec = cloud.spec(cluster, failureDomain="eu-central-1c")
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "RESOURCE_EXHAUSTED"
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).machine.failure_domain == "eu-central-1c"


@pytest.mark.parametrize(
    "secrets",
    [
        {},
        {"accessKeyId": b"AKIAIOSFODNN7EXAMPLE"},
        {"accessKeyId": b"AKIAIOSFODNN7EXAMPLE", "secretAccessKey": b""},
        {"accessKeyId": b"AKIAIOSFODNN7EXAMPLE", "secretAccessKey": b"\xff\xfe"},
    ],
)
def test_without_credentials_nothing_is_asked_of_ec2(
    plugin: Plugin,
    cloud: Cloud,
    cluster: str,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    secrets: dict[str, bytes],
) -> None:
    """CMI-38: the credentials of the process are not used instead."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7PROCESS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-process")
    spec = cloud.spec(cluster)
    for call in MACHINE_CALLS:
        answer = getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec, Secrets=secrets)
        assert answer.code == "UNAUTHENTICATED"
    assert plugin.ListMachines(ProviderSpec=spec, Secrets=secrets).code == "UNAUTHENTICATED"
    assert not calls.made


@pytest.fixture
def guarded(cloud: Cloud) -> Iterator[Callable[[str | None], dict[str, bytes]]]:
    """Makes users of the account with a policy, and lets moto check every later request."""
    iam = cloud.iam
    users: list[tuple[str, str]] = []

    def user(allowed: str | None) -> dict[str, bytes]:
        name = f"user-{len(users)}-{id(users)}"
        iam.create_user(UserName=name)
        if allowed:
            policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "%s", "Resource": "*"}]}'
            iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy % allowed)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        users.append((name, key["AccessKeyId"]))
        requests.post(f"{cloud.url}/moto-api/reset-auth", data=b"0", timeout=30).raise_for_status()
        return {"accessKeyId": key["AccessKeyId"].encode(), "secretAccessKey": key["SecretAccessKey"].encode()}

    yield user
    requests.post(f"{cloud.url}/moto-api/reset-auth", data=b"inf", timeout=30).raise_for_status()


def test_a_key_that_ec2_does_not_know_is_unauthenticated(
    plugin: Plugin, cloud: Cloud, cluster: str, guarded: Callable[[str | None], dict[str, bytes]]
) -> None:
    """DRV-CR-16, DRV-DE-16, DRV-GS-16: as EC2 says it, not as a test scripts it."""
    guarded(None)
    spec = cloud.spec(cluster)
    unknown = {"accessKeyId": b"AKIAIOSFODNN7UNKNOWN", "secretAccessKey": b"no-such-secret-access-key"}
    for call in MACHINE_CALLS:
        answer = getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec, Secrets=unknown)
        assert answer.code == "UNAUTHENTICATED", answer.message
        assert "no-such-secret" not in answer.message


def test_a_key_that_may_only_read_is_denied_to_create(
    plugin: Plugin, cloud: Cloud, cluster: str, guarded: Callable[[str | None], dict[str, bytes]]
) -> None:
    """DRV-CR-07, DRV-GS-07"""
    reader = guarded("ec2:Describe*")
    spec = cloud.spec(cluster)
    assert plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec, Secrets=reader).code == "NOT_FOUND"
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, Secrets=reader).code == "PERMISSION_DENIED"
    requests.post(f"{cloud.url}/moto-api/reset-auth", data=b"inf", timeout=30)
    powerless = guarded("s3:*")
    for call in MACHINE_CALLS:
        answer = getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec, Secrets=powerless)
        assert answer.code == "PERMISSION_DENIED", answer.message


def test_an_answer_without_an_instance_is_internal(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    """DRV-CR-13: an invariant of EC2's that is broken."""
    calls.faults.append(Fault("RunInstances", answer={"Instances": []}, http_status=200))
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster)).code == "INTERNAL"


def test_an_instance_that_is_described_in_part_is_internal_to_every_call(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """DRV-CR-13, DRV-DE-13, DRV-GS-13, DRV-LM-13: the message names the missing field and its instance."""
    described = {"Reservations": [{"Instances": [{"InstanceId": "i-0123456789abcdef0"}]}]}
    calls.faults.append(Fault("DescribeInstances", answer=described, http_status=200))
    spec = cloud.spec(cluster)
    answers = [getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec) for call in MACHINE_CALLS]
    for answer in (*answers, plugin.ListMachines(ProviderSpec=spec)):
        assert answer.code == "INTERNAL", answer.message
        assert "i-0123456789abcdef0 without its Placement" in answer.message
    assert not cloud.instances(cluster)


def test_a_protected_vm_is_readable_and_neither_stopped_nor_deleted(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-DE-09, PLG-SD-09: until the protection is taken back."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response
    instance = cloud.alive(cluster)[0]["InstanceId"]
    cloud.protect(instance, True)
    for call in ("DeleteMachine", "ShutDownMachine"):
        refused = getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec)
        assert refused.code == "FAILED_PRECONDITION"
        assert instance in refused.message
    assert [raw["State"]["Name"] for raw in cloud.alive(cluster)] == ["running"]
    for call in ("GetMachineStatus", "CreateMachine"):
        assert getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec).response.ProviderID == made.ProviderID
    cloud.protect(instance, False)
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
    assert not cloud.alive(cluster)


def test_a_call_whose_caller_has_gone_does_not_go_on_waiting(
    serve: Callable[[Settings], Plugin], cloud: Cloud, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DRV-DE-04: and its lock is free again for the next one."""
    from moto.ec2.models.instances import Instance

    plugin = serve(Settings(consistency_window=0, wait_timeout=60))
    spec = cloud.spec(cluster)
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    with monkeypatch.context() as slow:
        slow.setattr(Instance, "terminate", lambda self: setattr(self._state, "name", "shutting-down"))
        assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec, deadline=3).code in (
            "ABORTED",
            "DEADLINE_EXCEEDED",
        )
    cloud.ec2.terminate_instances(InstanceIds=[cloud.alive(cluster)[0]["InstanceId"]])
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec, deadline=30).code == "OK"


def test_a_deletion_whose_caller_has_gone_deletes_nothing_afterwards(
    plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls
) -> None:
    """DRV-DE-04, DRV-12: a late deletion would also delete a VM that was created since."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response
    calls.faults.append(slow := Fault("DescribeInstances", seconds=2, count=1))
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec, deadline=1).code == "DEADLINE_EXCEEDED"
    assert not slow.count
    # The machine is busy until EC2 has answered.
    while (again := plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)).code == "ABORTED":
        time.sleep(0.1)
    assert again.response.ProviderID == made.ProviderID
    assert calls.count("TerminateInstances") == 0
