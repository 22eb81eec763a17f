"""The minimal driver, over a real socket, as a process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cmi as kit
import grpc
import pytest
from cmi.v1 import cmi_pb2 as cmi
from cmi.v1 import cmi_pb2_grpc as services

DRIVER = Path(__file__).with_name("driver.py")
KIT = str(Path(kit.__file__).parents[1])
HOOK = DRIVER.parents[2] / "hook.py"


def run(**environment: str) -> subprocess.Popen[str]:
    """Starts the driver, with the fault layer of its kit where its folder is set."""
    faults = ["-m", "cmitest"] if "CAPCMI_FAULTS" in environment else []
    return subprocess.Popen(
        [sys.executable, *faults, str(DRIVER)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": KIT, **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The back end."""
    return tmp_path_factory.mktemp("cloud")


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[grpc.Channel]:
    """A driver that runs, and ends well when it is asked to."""
    endpoint = f"unix://{tmp_path_factory.mktemp('minimal')}/driver.sock"
    with run(CMI_ENDPOINT=endpoint, MINIMAL_CLOUD=str(folder), CAPCMI_FAULTS=f"{folder}/faults") as process:
        try:
            with grpc.insecure_channel(endpoint) as channel:
                grpc.channel_ready_future(channel).result(timeout=60)
                yield channel
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "canary" not in said


@pytest.fixture
def machine(channel: grpc.Channel) -> services.MachineStub:
    return services.MachineStub(channel)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """A cluster that no other test has."""
    return str(request.node.name)


def spec(cluster: str, identity: str = "uid-1", **changes: Any) -> bytes:
    tags = {"kubernetes.io/cluster": cluster, "capcmi.io/machine": identity, **changes.pop("tags", {})}
    fields = {"vmPool": "default", "size": "small", "tags": tags, **changes}
    return json.dumps({key: value for key, value in fields.items() if value is not None}).encode()


def code(call: Any, request: Any) -> str:
    """How a call ends; an error has a sentence that has no secret in it."""
    try:
        call(request)
    except grpc.RpcError as error:
        assert len(error.details().split()) >= 3, error.details()
        assert "canary" not in error.details()
        return str(error.code().name)
    return "OK"


def hook(folder: Path, *arguments: str) -> str:
    """Runs a hook of the conformance suite."""
    command = [sys.executable, HOOK, folder, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_it_has_at_most_90_lines() -> None:
    assert len(DRIVER.read_text().splitlines()) <= 90


def test_the_recipe_for_ci_starts_the_driver(tmp_path: Path) -> None:
    """With a curl that fetches from this repository, and a suite that takes a driver that listens for compliant."""
    repository = DRIVER.parents[4]
    recipe = (repository / "docs/drivers/ci.md").read_text().split("```yaml\n")[1].split("```")[0]
    steps = [line.split("- run: ")[1] for line in recipe.splitlines() if "- run: " in line]
    files, archive = (
        next(line.split(f"{name}: ")[1] for line in recipe.splitlines() if f"{name}: " in line)
        for name in ("FILES", "ARCHIVE")
    )
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as released:
        command = f"#!/bin/sh\n[ -S {tmp_path}/driver.sock ]\n".encode()
        entry = tarfile.TarInfo("capcmi")
        entry.mode, entry.size = 0o755, len(command)
        released.addfile(entry, io.BytesIO(command))
    programs = {
        "bin/curl": f"""
            for argument; do url=$argument; done
            [ "$url" != {archive} ] || exec cat {tmp_path}/archive.tar.gz
            file=${{url#{files}/}}
            cp "{repository}/$file" "$(basename "$file")" """,
        "driver": f"exec {sys.executable} {DRIVER}",
    }
    for name, script in programs.items():
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\nset -e\n{script}\n")
        program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PYTHONPATH": KIT,
        "CMI_ENDPOINT": f"unix://{tmp_path}/driver.sock",
        "MINIMAL_CLOUD": f"{tmp_path}/cloud",
        "FILES": files,
        "ARCHIVE": archive,
    }
    for step in steps:
        done = subprocess.run(["sh", "-ec", step], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, step + done.stderr


def test_it_says_its_name_and_what_it_can(channel: grpc.Channel) -> None:
    """CMI-50, CMI-58, CMI-61, CMI-62, CMI-64"""
    identity = services.IdentityStub(channel)
    info = identity.GetPluginInfo(cmi.GetPluginInfoRequest())
    assert (info.name, info.version) == ("minimal.example.com", "0.1.0")
    declared = identity.GetPluginCapabilities(cmi.GetPluginCapabilitiesRequest()).capabilities
    assert [capability.rpc.type for capability in declared] == [1, 2, 3, 4]
    assert identity.Probe(cmi.ProbeRequest()).ready.value is True


def test_a_call_that_is_not_declared_is_not_implemented(machine: services.MachineStub) -> None:
    """CMI-07, CMI-36"""
    assert code(machine.ShutDownMachine, cmi.ShutDownMachineRequest(MachineName="m")) == "UNIMPLEMENTED"
    assert code(machine.GetVolumeIDs, cmi.GetVolumeIDsRequest(PVSpecList=b"[]")) == "UNIMPLEMENTED"


def test_a_vm_is_made_once_found_listed_and_gone(machine: services.MachineStub, folder: Path, cluster: str) -> None:
    """DRV-10, DRV-12, DRV-19, DRV-21, DRV-27, DRV-36, DRV-CR-10"""
    create = cmi.CreateMachineRequest(
        MachineName="m", ProviderSpec=spec(cluster), Secrets={"userData": b"canary\xff"}, LastKnownState=b"\xff"
    )
    before = int(hook(folder, "mutations"))
    with ThreadPoolExecutor(8) as pool:
        ended = set(pool.map(lambda _: code(machine.CreateMachine, create), range(16)))
    assert "OK" in ended <= {"OK", "ABORTED"}
    made = [machine.CreateMachine(create) for _ in range(2)]
    assert int(hook(folder, "mutations")) == before + 1
    assert len({answer.ProviderID for answer in made}) == 1
    assert {answer.NodeName for answer in made} == {"m"}
    status = cmi.GetMachineStatusRequest(MachineName="m", ProviderSpec=spec(cluster), ProviderID=made[0].ProviderID)
    assert machine.GetMachineStatus(status).ProviderID == made[0].ProviderID
    listed = machine.ListMachines(cmi.ListMachinesRequest(ProviderSpec=spec(cluster)))
    assert dict(listed.MachineList) == {made[0].ProviderID: "m"}
    delete = cmi.DeleteMachineRequest(MachineName="m", ProviderSpec=spec(cluster), ProviderID=made[0].ProviderID)
    for _ in range(3):
        assert code(machine.DeleteMachine, delete) == "OK"
        assert code(machine.GetMachineStatus, status) == "NOT_FOUND"


def test_a_vm_that_is_another_is_neither_adopted_nor_touched(machine: services.MachineStub, cluster: str) -> None:
    """DRV-08, DRV-20, DRV-28, DRV-CR-06: another spec, another machine object, another cluster, another id."""
    made = machine.CreateMachine(cmi.CreateMachineRequest(MachineName="m", ProviderSpec=spec(cluster)))
    for other in (spec(cluster, size="large"), spec(cluster, identity="uid-2")):
        create = cmi.CreateMachineRequest(MachineName="m", ProviderSpec=other)
        assert code(machine.CreateMachine, create) == "ALREADY_EXISTS"
    another_id = "minimal:///" + "0" * 32
    for other, provider_id in ((spec(cluster, identity="uid-2"), ""), (spec(cluster + "-2"), made.ProviderID)):
        wanted = {"MachineName": "m", "ProviderSpec": other, "ProviderID": provider_id}
        assert code(machine.GetMachineStatus, cmi.GetMachineStatusRequest(**wanted)) == "NOT_FOUND"
        assert code(machine.DeleteMachine, cmi.DeleteMachineRequest(**wanted)) == "OK"
    wanted = {"MachineName": "m", "ProviderSpec": spec(cluster), "ProviderID": another_id}
    assert code(machine.GetMachineStatus, cmi.GetMachineStatusRequest(**wanted)) == "NOT_FOUND"
    assert code(machine.DeleteMachine, cmi.DeleteMachineRequest(**wanted)) == "OK"
    found = machine.GetMachineStatus(cmi.GetMachineStatusRequest(MachineName="m", ProviderSpec=spec(cluster)))
    assert found.ProviderID == made.ProviderID


@pytest.mark.parametrize(
    ("name", "provider_spec", "wanted"),
    [
        ("", spec("c"), "INVALID_ARGUMENT"),
        ("a" * 254, spec("c"), "INVALID_ARGUMENT"),
        ("A b", spec("c"), "INVALID_ARGUMENT"),
        ("m", b"", "INVALID_ARGUMENT"),
        ("m", b"{", "INVALID_ARGUMENT"),
        ("m", b"\xff", "INVALID_ARGUMENT"),
        ("m", b"[]", "INVALID_ARGUMENT"),
        ("m", spec("c", vmPool=None), "INVALID_ARGUMENT"),
        ("m", spec("c", size=None), "INVALID_ARGUMENT"),
        ("m", b'{"vmPool": "a", "size": "small"}', "INVALID_ARGUMENT"),
        ("m", spec("c", size=1), "INVALID_ARGUMENT"),
        ("m", spec("c", colour="red"), "INVALID_ARGUMENT"),
        ("m", spec("c", rootFsSize="20"), "INVALID_ARGUMENT"),
        ("m", spec("c", rootFsSize=True), "INVALID_ARGUMENT"),
        ("m", spec("c", tags={"a": 1}), "INVALID_ARGUMENT"),
        ("m", spec("c", tags={"capcmi.io/machine": ""}), "INVALID_ARGUMENT"),
        ("m", spec(""), "INVALID_ARGUMENT"),
    ],
)
def test_a_wrong_request_is_refused_and_makes_nothing(
    machine: services.MachineStub, name: str, provider_spec: bytes, wanted: str
) -> None:
    """DRV-04, DRV-CR-03, DRV-CR-11, DRV-DE-03, DRV-GS-03, CMI-28, CMI-30"""
    fields = {"MachineName": name, "ProviderSpec": provider_spec}
    assert code(machine.CreateMachine, cmi.CreateMachineRequest(**fields)) == wanted
    assert code(machine.DeleteMachine, cmi.DeleteMachineRequest(**fields)) == wanted
    assert code(machine.GetMachineStatus, cmi.GetMachineStatusRequest(**fields)) == wanted
    assert not machine.ListMachines(cmi.ListMachinesRequest(ProviderSpec=spec("c"))).MachineList


@pytest.mark.parametrize(
    ("provider_spec", "wanted"),
    [
        (spec("c", size="huge"), "INVALID_ARGUMENT"),
        (spec("c", rootFsSize=-1), "INVALID_ARGUMENT"),
        (spec("c", rootFsSize=101), "OUT_OF_RANGE"),
        (spec("c", rootFsSize=9), "OUT_OF_RANGE"),
    ],
)
def test_an_unknown_size_makes_nothing_and_can_be_deleted(
    machine: services.MachineStub, provider_spec: bytes, wanted: str
) -> None:
    """DRV-CR-03, DRV-CR-11, DRV-19"""
    fields = {"MachineName": "m", "ProviderSpec": provider_spec}
    assert code(machine.CreateMachine, cmi.CreateMachineRequest(**fields)) == wanted
    assert code(machine.GetMachineStatus, cmi.GetMachineStatusRequest(**fields)) == "NOT_FOUND"
    assert code(machine.DeleteMachine, cmi.DeleteMachineRequest(**fields)) == "OK"


def test_a_list_of_no_cluster_is_refused(machine: services.MachineStub) -> None:
    """DRV-LM-03: never all there is."""
    for wrong in (b"", b"{}", spec(""), spec("c", tags={"kubernetes.io/cluster": None})):
        assert code(machine.ListMachines, cmi.ListMachinesRequest(ProviderSpec=wrong)) == "INVALID_ARGUMENT"


def test_a_provider_id_of_another_kind_touches_no_vm(machine: services.MachineStub, cluster: str) -> None:
    """DRV-DE-03"""
    fields = {"MachineName": "m", "ProviderSpec": spec(cluster)}
    assert code(machine.CreateMachine, cmi.CreateMachineRequest(**fields)) == "OK"
    other = cmi.DeleteMachineRequest(**fields, ProviderID="aws:///a/i-1")
    assert code(machine.DeleteMachine, other) == "OK"
    assert code(machine.GetMachineStatus, cmi.GetMachineStatusRequest(**fields)) == "OK"
    too_long = cmi.DeleteMachineRequest(**fields, ProviderID="a" * 513)
    assert code(machine.DeleteMachine, too_long) == "INVALID_ARGUMENT"


def calls(machine: services.MachineStub, **fields: Any) -> dict[str, str]:
    """How each call about a machine ends."""
    listed = cmi.ListMachinesRequest(ProviderSpec=fields["ProviderSpec"])
    return {
        "create": code(machine.CreateMachine, cmi.CreateMachineRequest(**fields)),
        "status": code(machine.GetMachineStatus, cmi.GetMachineStatusRequest(**fields)),
        "list": code(machine.ListMachines, listed),
        "delete": code(machine.DeleteMachine, cmi.DeleteMachineRequest(**fields)),
    }


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        (["unavailable"], "UNAVAILABLE"),
        (["internal"], "INTERNAL"),
        (["unknown"], "UNKNOWN"),
    ],
)
def test_a_back_end_that_fails_is_never_taken_for_one_that_has_no_vm(
    machine: services.MachineStub, folder: Path, cluster: str, fault: list[str], wanted: str
) -> None:
    """DRV-30, DRV-CR-14, DRV-DE-14, DRV-GS-14, DRV-LM-14"""
    made = machine.CreateMachine(cmi.CreateMachineRequest(MachineName="m", ProviderSpec=spec(cluster)))
    hook(folder, *fault)
    try:
        assert set(calls(machine, MachineName="m", ProviderSpec=spec(cluster)).values()) == {wanted}
    finally:
        hook(folder, "restore")
    found = machine.GetMachineStatus(cmi.GetMachineStatusRequest(MachineName="m", ProviderSpec=spec(cluster)))
    assert found.ProviderID == made.ProviderID


def test_a_call_ends_at_its_deadline_and_keeps_its_machine_busy(
    machine: services.MachineStub, folder: Path, cluster: str
) -> None:
    """DRV-CR-04, DRV-CR-10: the call that continues holds the machine until it ends, so there is one VM in the end."""
    create = cmi.CreateMachineRequest(MachineName="m", ProviderSpec=spec(cluster))
    hook(folder, "slow", "3000")
    try:
        first = machine.CreateMachine.future(create)
        with pytest.raises(grpc.RpcError) as late:
            machine.GetMachineStatus(
                cmi.GetMachineStatusRequest(MachineName="m", ProviderSpec=spec(cluster)), timeout=0.3
            )
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert code(machine.CreateMachine, create) == "ABORTED"
    finally:
        hook(folder, "restore")
    made = first.result(timeout=60)
    assert machine.CreateMachine(create).ProviderID == made.ProviderID


def test_a_create_without_an_answer_is_repeated_and_makes_nothing_more(
    machine: services.MachineStub, folder: Path, cluster: str
) -> None:
    """DRV-12, DRV-CR-08"""
    create = cmi.CreateMachineRequest(MachineName="m", ProviderSpec=spec(cluster))
    before = int(hook(folder, "mutations"))
    hook(folder, "exhaust")
    assert code(machine.CreateMachine, create) == "RESOURCE_EXHAUSTED"
    hook(folder, "restore")
    hook(folder, "loseResponse")
    assert code(machine.CreateMachine, create) == "UNAVAILABLE"
    assert code(machine.CreateMachine, create) == "OK"
    hook(folder, "restore")
    assert int(hook(folder, "mutations")) == before + 1


def test_a_locked_vm_and_several_of_a_machine_are_for_a_person_to_look_at(
    machine: services.MachineStub, folder: Path, cluster: str
) -> None:
    """DRV-CR-09, DRV-DE-09, DRV-GS-11; a deletion leaves none of several."""
    fields = {"MachineName": "m", "ProviderSpec": spec(cluster)}
    assert code(machine.CreateMachine, cmi.CreateMachineRequest(**fields)) == "OK"
    hook(folder, "lock", "m", cluster)
    refused = "FAILED_PRECONDITION"
    assert calls(machine, **fields) == {"create": refused, "status": refused, "list": "OK", "delete": refused}
    hook(folder, "unlock", "m", cluster)
    hook(folder, "plant", "m", cluster, "uid-1")
    assert calls(machine, **fields) == {"create": refused, "status": "OUT_OF_RANGE", "list": "OK", "delete": "OK"}
    assert not machine.ListMachines(cmi.ListMachinesRequest(ProviderSpec=spec(cluster))).MachineList


def test_it_says_whether_it_starts_or_is_broken(channel: grpc.Channel, folder: Path) -> None:
    """CMI-68, CMI-69, CMI-75"""
    identity = services.IdentityStub(channel)
    hook(folder, "starting")
    assert identity.Probe(cmi.ProbeRequest()).ready.value is False
    hook(folder, "restore")
    hook(folder, "unhealthy")
    assert code(identity.Probe, cmi.ProbeRequest()) == "FAILED_PRECONDITION"
    hook(folder, "restore")
    assert identity.Probe(cmi.ProbeRequest()).ready.value is True


def test_its_vms_outlive_it(tmp_path: Path) -> None:
    """CMI-79, CMI-84: also when it is killed, and two may use them at a time."""
    create = cmi.CreateMachineRequest(
        MachineName="m", ProviderSpec=spec("c"), Secrets={"userData": b"canary\xff"}, LastKnownState=b""
    )
    ids = set()
    for name in ("first", "second"):
        endpoint = f"unix://{tmp_path}/{name}.sock"
        with run(CMI_ENDPOINT=endpoint, MINIMAL_CLOUD=f"{tmp_path}/cloud") as process:
            with grpc.insecure_channel(endpoint) as channel:
                grpc.channel_ready_future(channel).result(timeout=60)
                ids.add(services.MachineStub(channel).CreateMachine(create).ProviderID)
            process.kill()
    assert len(ids) == 1
    assert (tmp_path / "cloud/vms").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:1", "unix:///nowhere/driver.sock"])
def test_an_endpoint_that_can_not_be_served_ends_it(endpoint: str, tmp_path: Path) -> None:
    """OPS-13, CMI-181"""
    with run(CMI_ENDPOINT=endpoint, MINIMAL_CLOUD=str(tmp_path)) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.strip()


def test_without_a_folder_it_ends(tmp_path: Path) -> None:
    """OPS-03"""
    with run(CMI_ENDPOINT=f"unix://{tmp_path}/driver.sock") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "MINIMAL_CLOUD" in said
