"""A VM from its creation to its end, and its owner."""

from __future__ import annotations

from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from moto.ec2.models.instances import InstanceState
from moto.ec2.responses.general import SAMPLE_CONSOLE_OUTPUT

from cloud import Cloud
from faults import Calls
from plugin import SECRETS, Plugin


def test_a_vm_is_made_found_listed_and_gone(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-13, DRV-14, DRV-19, DRV-23, DRV-27, DRV-36: one VM, one name, one id, until it is gone."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    assert made.code == "OK", made.message
    found = plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec, ProviderID=made.response.ProviderID)
    assert found.response.ProviderID == made.response.ProviderID
    assert found.response.NodeName == made.response.NodeName == cloud.alive(cluster)[0]["PrivateDnsName"]
    listed = plugin.ListMachines(ProviderSpec=spec).response.MachineList
    assert dict(listed) == {made.response.ProviderID: "m-1"}
    for _ in range(3):
        assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
        assert plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec).code == "NOT_FOUND"
    assert not cloud.alive(cluster)
    assert not plugin.ListMachines(ProviderSpec=spec).response.MachineList


def test_the_answer_of_a_create_has_addresses_zone_and_power_state(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """The trailing metadata has the fields that cmi.v1 lacks, and GetMachine has them in its answer."""
    spec = cloud.spec(cluster, failureDomain="eu-central-1b")
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    raw = cloud.alive(cluster)[0]
    got = plugin.GetMachine(machine_name="m-1", provider_spec=spec).response
    for machine in (made.machine, got):
        assert machine.provider_id == made.response.ProviderID == f"aws:///eu-central-1b/{raw['InstanceId']}"
        assert machine.node_name == made.response.NodeName
        assert machine.failure_domain == "eu-central-1b"
        assert raw["PrivateIpAddress"] in [address.address for address in machine.addresses]
    assert got.power_state == got.DESCRIPTOR.fields_by_name["power_state"].enum_type.values_by_name["RUNNING"].number


def test_the_console_of_a_vm_is_that_of_ec2(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response
    answer = plugin.GetConsole(machine_name="m-1", provider_spec=spec, provider_id=made.ProviderID)
    assert answer.code == "OK", answer.message
    assert answer.response.output.decode() == SAMPLE_CONSOLE_OUTPUT


def test_a_create_that_is_repeated_makes_no_second_vm(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-10, DRV-12, CMI-84"""
    spec = cloud.spec(cluster)
    answers = [plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec) for _ in range(10)]
    assert {(answer.code, answer.response.ProviderID) for answer in answers} == {("OK", answers[0].response.ProviderID)}
    assert len(cloud.instances(cluster)) == 1


def test_creates_at_the_same_time_make_one_vm(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """CMI-10, DRV-CR-10: the others get the same VM, or are told to come back."""
    spec = cloud.spec(cluster)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec), range(8)))
    assert {answer.code for answer in answers} <= {"OK", "ABORTED"}
    assert len({answer.response.ProviderID for answer in answers if answer.response}) == 1
    assert len(cloud.instances(cluster)) == 1


def test_a_create_after_the_end_of_the_vm_makes_a_new_one(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """EC2 shows terminated instances for an hour; they are neither adopted nor in the way."""
    spec = cloud.spec(cluster)
    first = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response.ProviderID
    plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec)
    second = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response.ProviderID
    assert first != second
    assert len(cloud.alive(cluster)) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"instanceType": "m5.xlarge"}, "instanceType"),
        ({"image": "ami-12c6146b"}, "image"),
        ({"subnets": ["subnet-0123456789abcdef0"]}, "subnets"),
    ],
)
def test_a_vm_of_other_parameters_is_not_adopted(
    plugin: Plugin, cloud: Cloud, cluster: str, change: dict[str, object], field: str
) -> None:
    """DRV-CR-06"""
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    other = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster, **change))
    assert other.code == "ALREADY_EXISTS"
    assert field in other.message
    found = plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    assert found.response.ProviderID == made.response.ProviderID


@pytest.fixture
def access(cloud: Cloud) -> dict[str, object]:
    """A VM has its rights and the ways into it: two security groups, a key pair and an instance profile."""
    name = f"test-{uuid4().hex}"
    groups = [cloud.ec2.create_security_group(GroupName=f"{name}-{n}", Description="test") for n in range(2)]
    cloud.ec2.create_key_pair(KeyName=name)
    cloud.iam.create_instance_profile(InstanceProfileName=name, Path="/nodes/")
    ids = [group["GroupId"] for group in groups]
    return {"securityGroups": ids, "keyName": name, "instanceProfile": name}


@pytest.mark.parametrize("field", ["securityGroups", "keyName", "instanceProfile"])
def test_a_vm_of_other_access_is_not_adopted(
    plugin: Plugin, cloud: Cloud, cluster: str, access: dict[str, Any], field: str
) -> None:
    """DRV-CR-06: neither one that may do more than is asked for, nor one that may do less."""
    with_all, without = cloud.spec(cluster, **access), cloud.spec(cluster, **{**access, field: None})
    for name, mine, theirs in (("m-1", with_all, without), ("m-2", without, with_all)):
        assert plugin.CreateMachine(MachineName=name, ProviderSpec=mine).code == "OK"
        other = plugin.CreateMachine(MachineName=name, ProviderSpec=theirs)
        assert (other.code, field in other.message) == ("ALREADY_EXISTS", True), other.message
        assert plugin.CreateMachine(MachineName=name, ProviderSpec=mine).code == "OK"
    shuffled = cloud.spec(cluster, **{**access, "securityGroups": access["securityGroups"][::-1]})
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=shuffled).code == "OK"


def test_a_vm_that_gets_its_profile_later_is_adopted(
    plugin: Plugin, cloud: Cloud, cluster: str, access: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 may attach it after it made the VM; one that runs without has none."""
    from moto.ec2.models.instances import Instance

    plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster))
    spec = cloud.spec(cluster, instanceProfile=access["instanceProfile"])
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "ALREADY_EXISTS"
    monkeypatch.setattr(Instance, "state", "pending")
    monkeypatch.setattr(Instance, "instance_state", InstanceState("pending", 0))
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"


def test_groups_changed_by_the_owner_do_not_prevent_an_update(
    plugin: Plugin, cloud: Cloud, cluster: str, access: dict[str, Any]
) -> None:
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster)).response
    instance = cloud.alive(cluster)[0]["InstanceId"]
    cloud.ec2.modify_instance_attribute(InstanceId=instance, Groups=access["securityGroups"])
    updated = plugin.UpdateMachine(
        machine_name="m-1",
        provider_id=made.ProviderID,
        last_applied_provider_spec=cloud.spec(cluster),
        provider_spec=cloud.spec(cluster, tags={"team": "a"}),
    )
    assert updated.code == "OK", updated.message


def test_a_vm_of_another_machine_object_is_never_touched(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-20, DRV-28: the same name and cluster, and another identity."""
    theirs = cloud.plant(cluster, "m-1", "uid-of-another-machine")
    spec = cloud.spec(cluster)
    provider_id = f"aws:///eu-central-1a/{theirs}"
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "ALREADY_EXISTS"
    for named in ("", provider_id):
        assert plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec, ProviderID=named).code == "NOT_FOUND"
        assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec, ProviderID=named).code == "OK"
        assert plugin.ShutDownMachine(MachineName="m-1", ProviderSpec=spec, ProviderID=named).code == "NOT_FOUND"
    assert [raw["State"]["Name"] for raw in cloud.alive(cluster)] == ["running"]


def test_a_vm_of_another_cluster_is_never_touched(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-03, DRV-08, DRV-20: also when the id of the cluster looks like a pattern that fits."""
    for foreign in (cluster + "-2", "prefix-" + cluster):
        cloud.plant(foreign, "m-1", "uid-1")
    pattern = "*" + cluster + "*"
    for mine in (cluster, pattern):
        spec = cloud.spec(mine)
        assert plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec).code == "NOT_FOUND"
        assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
        assert not plugin.ListMachines(ProviderSpec=spec).response.MachineList
    for foreign in (cluster + "-2", "prefix-" + cluster):
        assert len(cloud.alive(foreign)) == 1


def test_a_deletion_takes_its_own_vm_and_no_other(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-07, DRV-11"""
    specs = {name: cloud.spec(cluster, identity=f"uid-{name}") for name in ("a", "b", "c")}
    ids = {
        name: plugin.CreateMachine(MachineName=name, ProviderSpec=spec).response.ProviderID
        for name, spec in specs.items()
    }
    assert len(set(ids.values())) == 3
    assert plugin.DeleteMachine(MachineName="b", ProviderSpec=specs["b"], ProviderID=ids["b"]).code == "OK"
    listed = plugin.ListMachines(ProviderSpec=specs["a"]).response.MachineList
    assert dict(listed) == {ids["a"]: "a", ids["c"]: "c"}


def test_a_vm_whose_name_was_removed_is_still_the_machines(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-30, DRV-36: by its id, cluster and identity it is found, adopted and deleted; a second one is not made."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response
    cloud.unname(cloud.alive(cluster)[0]["InstanceId"])
    known = {"MachineName": "m-1", "ProviderSpec": spec, "ProviderID": made.ProviderID}
    assert plugin.GetMachineStatus(**known).response.ProviderID == made.ProviderID
    again = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, LastKnownState=made.LastKnownState)
    assert again.response.ProviderID == made.ProviderID
    assert plugin.DeleteMachine(**known).code == "OK"
    assert not cloud.alive(cluster)


def test_a_vm_without_a_name_that_is_another_identitys_is_not_touched(
    plugin: Plugin, cloud: Cloud, cluster: str
) -> None:
    """DRV-20, DRV-28"""
    theirs = cloud.plant(cluster, "m-1", "uid-of-another-machine")
    cloud.unname(theirs)
    known = {
        "MachineName": "m-1",
        "ProviderSpec": cloud.spec(cluster),
        "ProviderID": f"aws:///eu-central-1a/{theirs}",
    }
    assert plugin.GetMachineStatus(**known).code == "NOT_FOUND"
    assert plugin.DeleteMachine(**known).code == "OK"
    assert len(cloud.alive(cluster)) == 1


def test_a_look_up_by_another_id_finds_nothing(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    spec = cloud.spec(cluster)
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    other = "aws:///eu-central-1a/i-0123456789abcdef0"
    assert plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec, ProviderID=other).code == "NOT_FOUND"


def test_several_vms_of_one_machine_are_said_to_be_and_all_deleted(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-GS-11: the message has both ids."""
    twins = [cloud.plant(cluster, "m-1", "uid-1") for _ in range(2)]
    spec = cloud.spec(cluster)
    found = plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec)
    assert found.code == "OUT_OF_RANGE"
    assert all(twin in found.message for twin in twins)
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "FAILED_PRECONDITION"
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
    assert not cloud.alive(cluster)


def test_a_status_changes_nothing(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    """DRV-29, INI-01: also while the VM waits to be initialized."""
    spec = cloud.spec(cluster, sourceDestCheck=False)
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    calls.made.clear()
    answers = {plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec).code for _ in range(10)}
    assert answers == {"FAILED_PRECONDITION"}
    assert set(calls.made) == {"DescribeInstances"}


def test_the_vm_boots_with_exactly_the_bootstrap_data(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-05"""
    data = b"#cloud-config\n\xc3\xa4\n"
    secrets = {**SECRETS, "userData": data, "userDataFormat": b"cloud-config"}
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster), Secrets=secrets)
    instance = cloud.alive(cluster)[0]["InstanceId"]
    attribute = cloud.ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")
    assert b64decode(attribute["UserData"]["Value"]) == data


def test_volumes_and_interfaces_are_tagged_as_their_vm(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """Tags identify anything that is left behind, and the root volume ends with its VM."""
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=cloud.spec(cluster, rootVolumeGiB=40))
    raw = cloud.alive(cluster)[0]
    root = raw["BlockDeviceMappings"][0]["Ebs"]
    assert root["DeleteOnTermination"] is True
    volume = cloud.ec2.describe_volumes(VolumeIds=[root["VolumeId"]])["Volumes"][0]
    assert volume["Size"] == 40
    tags = {tag["Key"]: tag["Value"] for tag in volume["Tags"]}
    assert tags["kubernetes.io/cluster"] == cluster
    assert tags["capcmi.io/machine-name"] == tags["Name"] == "m-1"


def test_every_volume_of_the_image_ends_with_its_vm(
    plugin: Plugin, cloud: Cloud, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DRV-23: nothing is left to be paid for. moto's images have one volume each."""
    from moto.ec2.models.amis import Ami

    mappings = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 15, "DeleteOnTermination": True}},
        {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 100, "DeleteOnTermination": False}},
        {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"},
    ]
    monkeypatch.setattr(Ami, "block_device_mappings", mappings)
    monkeypatch.setattr(Ami, "root_device_name", "/dev/sda1", raising=False)
    spec = cloud.spec(cluster, rootVolumeGiB=40)
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
    volumes = {each["DeviceName"]: each["Ebs"] for each in cloud.alive(cluster)[0]["BlockDeviceMappings"]}
    assert sorted(volumes) == ["/dev/sda1", "/dev/sdb"]
    assert all(volume["DeleteOnTermination"] for volume in volumes.values())
    ids = [volumes[device]["VolumeId"] for device in sorted(volumes)]
    by_id = {each["VolumeId"]: each["Size"] for each in cloud.ec2.describe_volumes(VolumeIds=ids)["Volumes"]}
    assert [by_id[each] for each in ids] == [40, 100]
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
    left = cloud.ec2.describe_volumes()["Volumes"]
    assert not [each for each in left if each["VolumeId"] in ids]


def test_a_shut_down_stops_the_vm_and_leaves_it_there(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """CMI-127, CMI-129"""
    spec = cloud.spec(cluster)
    plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
    for _ in range(2):
        assert plugin.ShutDownMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
    assert [raw["State"]["Name"] for raw in cloud.alive(cluster)] == ["stopped"]
    assert plugin.GetMachine(machine_name="m-1", provider_spec=spec).response.power_state == 4
    assert len(plugin.ListMachines(ProviderSpec=spec).response.MachineList) == 1


def test_a_deletion_is_not_done_before_the_vm_is_gone(
    plugin: Plugin, cloud: Cloud, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DRV-23: EC2 takes its time to terminate; moto has to be told to."""
    from moto.ec2.models.instances import Instance

    terminate = Instance.terminate
    with monkeypatch.context() as slow:
        slow.setattr(Instance, "terminate", lambda self: setattr(self._state, "name", "shutting-down"))
        spec = cloud.spec(cluster)
        plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec)
        for _ in range(2):
            deleted = plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec)
            assert deleted.code == "ABORTED"
            assert int(deleted.trailers["capcmi-retry-after-ms"]) > 0
        assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).code == "ABORTED"
        assert plugin.GetMachine(machine_name="m-1", provider_spec=spec).response.power_state == 3
    assert Instance.terminate is terminate
    cloud.ec2.terminate_instances(InstanceIds=[cloud.alive(cluster)[0]["InstanceId"]])
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"


def test_what_a_create_made_is_found_by_its_id_before_it_is_by_its_tags(
    plugin: Plugin, cloud: Cloud, cluster: str
) -> None:
    """CTL-03, DRV-12: the last known state names the instance."""
    spec = cloud.spec(cluster)
    made = plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec).response
    instance = cloud.alive(cluster)[0]["InstanceId"]
    assert instance in made.LastKnownState.decode()
    # As long as EC2 does not know the tag, a search by it finds nothing.
    name_tag = {"Key": "capcmi.io/machine-name"}
    cloud.ec2.delete_tags(Resources=[instance], Tags=[name_tag])
    assert plugin.GetMachineStatus(MachineName="m-1", ProviderSpec=spec).code == "NOT_FOUND"
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec).code == "OK"
    assert len(cloud.alive(cluster)) == 1
    deleted = plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec, LastKnownState=made.LastKnownState)
    assert deleted.code == "OK"


@pytest.mark.parametrize("state", [b"\xff\x00", b"[]", b'{"instance": 7}', b'{"instance": "i-0123456789abcdef0"}'])
def test_a_state_that_is_none_of_ours_does_no_harm(plugin: Plugin, cloud: Cloud, cluster: str, state: bytes) -> None:
    """CMI-91"""
    spec = cloud.spec(cluster)
    assert plugin.CreateMachine(MachineName="m-1", ProviderSpec=spec, LastKnownState=state).code == "OK"
    assert plugin.DeleteMachine(MachineName="m-1", ProviderSpec=spec, LastKnownState=state).code == "OK"
    assert not cloud.alive(cluster)
