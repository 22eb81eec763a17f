"""A served back end: codes, cancellation, sockets, TLS, shutdown."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.error
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import cmi
import grpc
import pytest
from cmi.v1 import cmi_pb2 as pb
from cmi.v1 import cmi_pb2_grpc as services
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

SOURCES = str(Path(cmi.__file__).parents[1])
# Seconds, for conditions that come sooner.
PATIENCE = 30.0
INFO = cmi.Info("test.example.com", "v1")


@dataclass
class Spec:
    size: str


class Memory(cmi.Backend[Spec]):
    """VMs in memory. A test replaces its methods."""

    def __init__(self) -> None:
        self.vms: list[cmi.VM] = []

    def find(self, call: cmi.Call, id: cmi.Identity, spec: Spec) -> Iterator[cmi.VM]:
        return (vm for vm in self.vms if vm.name == id.name)

    def create(self, call: cmi.Call, id: cmi.Identity, spec: Spec, boot: cmi.Bootstrap) -> cmi.VM:
        self.vms.append(cmi.VM(f"test:///{len(self.vms)}", id.name, id.tags))
        return self.vms[-1]

    def delete(self, call: cmi.Call, vm: cmi.VM) -> None:
        self.vms.remove(vm)

    def list(self, call: cmi.Call, cluster: str, spec: Spec) -> Iterator[cmi.VM]:
        return iter(self.vms)


def spec(identity: str = "i", **fields: Any) -> bytes:
    tags = {"kubernetes.io/cluster": "c", "capcmi.io/machine": identity}
    return json.dumps({"size": "small", "tags": tags} | fields).encode()


TOKEN = {"token": b"canary-token"}
CREATE = pb.CreateMachineRequest(MachineName="m", ProviderSpec=spec(), Secrets=TOKEN)
STATUS = pb.GetMachineStatusRequest(MachineName="m", ProviderSpec=spec(), Secrets=TOKEN)
DELETE = pb.DeleteMachineRequest(MachineName="m", ProviderSpec=spec(), Secrets=TOKEN)


@asynccontextmanager
async def served(backend: cmi.Backend[Any], folder: Path, **options: Any) -> AsyncIterator[services.MachineStub]:
    endpoint = f"unix://{folder}/driver.sock"
    stop = asyncio.Event()
    server = asyncio.create_task(cmi.serve(INFO, backend, cmi.Options(endpoint, **options), stop))
    async with grpc.aio.insecure_channel(endpoint) as channel:
        ready = asyncio.create_task(channel.channel_ready())
        await asyncio.wait([ready, server], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert ready.done()
        yield services.MachineStub(channel)
        stop.set()
        await asyncio.wait_for(server, PATIENCE)


async def failure(answer: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await answer
    assert "canary" not in failed.value.details()
    return failed.value


class Wrapped(Exception):
    """An error of a library."""


def wrapped(cause: Exception) -> Exception:
    error = Wrapped("http://user:canary-token@host/")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (cmi.Unavailable("the API is away"), "UNAVAILABLE"),
        (cmi.Exhausted("the pool is full"), "RESOURCE_EXHAUSTED"),
        (ConnectionRefusedError("canary-token"), "UNAVAILABLE"),
        (wrapped(ConnectionResetError()), "UNAVAILABLE"),
        (wrapped(socket.gaierror()), "UNAVAILABLE"),
        (urllib.error.URLError("canary-token"), "UNAVAILABLE"),
        (urllib.error.HTTPError("https://canary-token", 400, "canary-token", Message(), None), "UNKNOWN"),
        (wrapped(TimeoutError()), "DEADLINE_EXCEEDED"),
        (FileNotFoundError("canary-token"), "UNKNOWN"),
        (KeyError("canary-token"), "UNKNOWN"),
        (cmi.Gone(), "UNKNOWN"),
    ],
)
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_an_error_of_find_is_never_not_found(
    error: Exception, code: str, is_coroutine: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Memory):
        if is_coroutine:

            async def find(self, *_: Any) -> Any:  # type: ignore[override]
                raise error
        else:

            def find(self, *_: Any) -> Any:  # type: ignore[override]
                raise error

    async def run() -> None:
        async with served(Failing(), tmp_path) as machine:
            for answer in (machine.GetMachineStatus(STATUS), machine.DeleteMachine(DELETE)):
                assert (await failure(answer)).code().name == code
            created = await failure(machine.CreateMachine(CREATE))
            assert created.code().name == code
            assert ("capcmi-nothing-begun", "true") in tuple(created.trailing_metadata())

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    failed = next(each for each in fields if each.get("method") == "CreateMachine")
    assert failed["code"] == code
    assert failed["machine"] == "machine m of cluster c"
    assert "canary" not in str(fields)
    if not isinstance(error, cmi.Error):
        assert "test_serve.py:" in failed["at"]


def test_an_error_of_create_may_have_made_a_vm(tmp_path: Path) -> None:
    class Failing(Memory):
        def create(self, *_: Any) -> Any:  # type: ignore[override]
            raise ConnectionResetError

    async def run() -> None:
        async with served(Failing(), tmp_path) as machine:
            error = await failure(machine.CreateMachine(CREATE))
            assert error.code().name == "UNAVAILABLE"
            assert "capcmi-nothing-begun" not in dict(error.trailing_metadata())

    asyncio.run(run())


def test_the_kit_owns_the_identity_of_a_vm(tmp_path: Path) -> None:
    backend = Memory()

    async def run() -> None:
        async with served(backend, tmp_path) as machine:
            made = await machine.CreateMachine(CREATE)
            assert (await machine.CreateMachine(CREATE)).ProviderID == made.ProviderID
            other = pb.CreateMachineRequest(MachineName="m", ProviderSpec=spec(size="large"))
            assert (await failure(machine.CreateMachine(other))).code().name == "ALREADY_EXISTS"
            foreign = {"MachineName": "m", "ProviderSpec": spec("another")}
            answer = machine.CreateMachine(pb.CreateMachineRequest(**foreign))
            assert (await failure(answer)).code().name == "ALREADY_EXISTS"
            answer = machine.GetMachineStatus(pb.GetMachineStatusRequest(**foreign))
            assert (await failure(answer)).code().name == "NOT_FOUND"
            await machine.DeleteMachine(pb.DeleteMachineRequest(**foreign))
            assert len(backend.vms) == 1
            await machine.DeleteMachine(DELETE)
            assert backend.vms == []

    asyncio.run(run())


def test_a_thread_keeps_its_machine_until_it_ends(tmp_path: Path) -> None:
    """The caller leaves, the thread goes on: a second create must not make a second VM."""
    entered, leave = threading.Event(), threading.Event()
    lefts: list[float] = []

    class Slow(Memory):
        def create(self, call: cmi.Call, *arguments: Any) -> cmi.VM:
            entered.set()
            assert leave.wait(PATIENCE)
            lefts.append(call.time_left())
            return super().create(call, *arguments)

    backend = Slow()

    async def run() -> None:
        async with served(backend, tmp_path) as machine:
            first = machine.CreateMachine(CREATE)
            await asyncio.to_thread(entered.wait, PATIENCE)
            first.cancel()
            # The event loop has to hear of it.
            async with asyncio.timeout(PATIENCE):
                while (await failure(machine.CreateMachine(CREATE))).code().name != "ABORTED":
                    pass
            leave.set()
            async with asyncio.timeout(PATIENCE):
                while not backend.vms:
                    await asyncio.sleep(0.01)
                while True:
                    try:
                        await machine.CreateMachine(CREATE)
                        break
                    except grpc.aio.AioRpcError as error:
                        assert error.code().name == "ABORTED"

    asyncio.run(run())
    assert len(backend.vms) == 1
    assert lefts == [0.0]


def test_a_coroutine_is_cancelled_at_its_deadline(tmp_path: Path) -> None:
    cancelled = threading.Event()

    class Hanging(Memory):
        async def create(self, *_: Any) -> Any:  # type: ignore[override]
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    async def run() -> None:
        async with served(Hanging(), tmp_path) as machine:
            assert (await failure(machine.CreateMachine(CREATE, timeout=0.2))).code().name == "DEADLINE_EXCEEDED"
            assert await asyncio.to_thread(cancelled.wait, PATIENCE)

    asyncio.run(run())


def test_a_synchronous_lock_is_held_during_a_change(tmp_path: Path) -> None:
    events: list[str] = []

    class Locked(Memory):
        @contextmanager
        def lock(self, call: cmi.Call, id: cmi.Identity) -> Iterator[None]:
            events.append(f"locked {id.name}")
            yield
            events.append("unlocked")

        def create(self, call: cmi.Call, *arguments: Any) -> cmi.VM:
            events.append("create")
            return super().create(call, *arguments)

    async def run() -> None:
        async with served(Locked(), tmp_path) as machine:
            await machine.CreateMachine(CREATE)

    asyncio.run(run())
    assert events == ["locked m", "create", "unlocked"]


def test_a_field_with_the_name_of_a_call_declares_nothing(tmp_path: Path) -> None:
    backend = Memory()
    backend.lock = threading.Lock()  # type: ignore[attr-defined]
    backend.stop = print  # type: ignore[attr-defined]

    async def run() -> None:
        async with served(backend, tmp_path) as machine:
            await machine.CreateMachine(CREATE)
            request = pb.ShutDownMachineRequest(MachineName="m", ProviderSpec=spec())
            assert (await failure(machine.ShutDownMachine(request))).code().name == "UNIMPLEMENTED"

    asyncio.run(run())


def test_mistakes_of_an_author_end_the_driver_at_its_start(tmp_path: Path) -> None:
    class WrongArguments(Memory):
        def stop(self, vm: cmi.VM) -> None:
            pass

    class NoSpec(cmi.Backend):  # type: ignore[type-arg]
        find = Memory.find
        create = Memory.create
        delete = Memory.delete
        list = Memory.list

    class ZonesWithoutField(Memory):
        def zones(self, call: cmi.Call, spec: Spec | None) -> list[cmi.Zone]:  # type: ignore[valid-type]
            return []

    mistakes = {
        WrongArguments: r"WrongArguments.stop must take \(call, vm\)",
        NoSpec: "must name its provider spec",
        ZonesWithoutField: "failureDomain",
    }
    for kind, message in mistakes.items():
        options = cmi.Options(f"unix://{tmp_path}/driver.sock")
        with pytest.raises(TypeError, match=message):
            asyncio.run(cmi.serve(INFO, kind(), options, asyncio.Event()))


@pytest.mark.parametrize(
    ("csi", "ids"),
    [(None, []), ({}, []), ({"driver": "d", "volumeHandle": None}, []), ({"driver": "d", "volumeHandle": "v"}, ["v"])],
)
def test_volumes_are_read_from_their_specs(csi: Any, ids: list[str], tmp_path: Path) -> None:
    class Volumes(Memory):
        def volume_id(self, call: cmi.Call, volume: cmi.PersistentVolume) -> str:
            return volume.handle

    async def run() -> None:
        async with served(Volumes(), tmp_path) as machine:
            request = pb.GetVolumeIDsRequest(PVSpecList=json.dumps([{"csi": csi}]).encode())
            assert list((await machine.GetVolumeIDs(request)).VolumeIDs) == ids
            for wrong in (
                b"",
                b"{}",
                b"[7]",
                b'[{"csi":7}]',
                b'[{"csi":{"driver":7}}]',
                b'[{"csi":{"volumeHandle":[]}}]',
            ):
                answer = machine.GetVolumeIDs(pb.GetVolumeIDsRequest(PVSpecList=wrong))
                assert (await failure(answer)).code().name == "INVALID_ARGUMENT"

    asyncio.run(run())


def test_large_requests_are_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(Memory(), tmp_path) as machine:
            secrets = {"userData": b"x" * ((5 << 20) - 1024)}
            await machine.CreateMachine(pb.CreateMachineRequest(MachineName="m", ProviderSpec=spec(), Secrets=secrets))

    asyncio.run(run())


def test_health_and_reflection_are_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(Memory(), tmp_path), grpc.aio.insecure_channel(f"unix:{tmp_path}/driver.sock") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            # A caller that watches the health does not keep the driver from its end.
            watch = health.Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            found = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
            names = {service.name for service in (await found.read()).list_services_response.service}
            assert {"cmi.v1.Identity", "cmi.v1.Machine", "capcmi.v1.MachineExtension"} <= names

    asyncio.run(asyncio.wait_for(run(), 15))


def test_the_socket_is_private_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "driver.sock"

    async def run() -> None:
        async with served(Memory(), tmp_path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(cmi.Misconfigured, match="another process listens"):
                await cmi.serve(INFO, Memory(), cmi.Options(f"unix://{path}"), asyncio.Event())

    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    asyncio.run(run())
    path.unlink(missing_ok=True)
    path.write_text("a file of somebody else")
    with pytest.raises(cmi.Misconfigured, match="is not a socket"):
        asyncio.run(cmi.serve(INFO, Memory(), cmi.Options(f"unix://{path}"), asyncio.Event()))
    assert path.read_text() == "a file of somebody else"


class Authority:
    """A certificate authority with its files in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(name, self.key, is_authority=True)
        (folder / f"{name}.pem").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self.folder / f"{name}.key").write_bytes(key.private_bytes(*form))
        certificate = self._sign(name, key, is_authority=False)
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, is_authority: bool) -> x509.Certificate:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())


def test_tls_takes_known_clients_and_reads_its_files_again(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    first.issue("server")
    first.issue("client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def credentials(authority: str, has_certificate: bool = True) -> grpc.ChannelCredentials:
        roots = (tmp_path / f"{authority}.pem").read_bytes()
        pair = [(tmp_path / f"client.{end}").read_bytes() for end in ("key", "crt")] if has_certificate else [None] * 2
        return grpc.ssl_channel_credentials(roots, *pair)

    async def probe(chosen: grpc.ChannelCredentials, wait: bool = False) -> str:
        # A channel of its own: gRPC shares connections of the same settings.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"localhost:{port}", chosen, options) as channel:
            stub = services.IdentityStub(channel)
            try:
                await stub.Probe(pb.ProbeRequest(), timeout=PATIENCE, wait_for_ready=wait)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

    async def run() -> None:
        stop = asyncio.Event()
        tls = cmi.TLSFiles(*(str(tmp_path / name) for name in ("server.crt", "server.key", "first.pem")))
        options = cmi.Options(f"tls://127.0.0.1:{port}", tls)
        server = asyncio.create_task(cmi.serve(INFO, Memory(), options, stop))
        assert await probe(credentials("first"), wait=True) == "OK"
        assert await probe(credentials("first", has_certificate=False)) == "UNAVAILABLE"
        assert await probe(credentials("second")) == "UNAVAILABLE"
        second.issue("server")
        assert await probe(credentials("second")) == "OK"
        stop.set()
        await server

    asyncio.run(run())


def test_unusable_files_end_a_driver_with_tls(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("no certificate")
    for files in ((), (str(tmp_path / "a.pem"),) * 3, (str(tmp_path / "missing.pem"),) * 3):
        options = cmi.Options("tls://127.0.0.1:0", cmi.TLSFiles(*files))
        with pytest.raises(cmi.Misconfigured, match=r"tls-cert-file|cannot use the files"):
            asyncio.run(cmi.serve(INFO, Memory(), options, asyncio.Event()))


PROGRAM = """
import sys, threading, time
sys.path.insert(0, {here!r})
import cmi
from test_serve import INFO, Memory

class Slow(Memory):
    def create(self, *arguments):
        print("creating", flush=True)
        time.sleep({seconds})
        return super().create(*arguments)

cmi.main(INFO, Slow())
"""


@contextmanager
def program(folder: Path, *arguments: str, seconds: float = 0.0, **environment: str) -> Iterator[subprocess.Popen[str]]:
    code = PROGRAM.format(here=str(Path(__file__).parent), seconds=seconds)
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": SOURCES, **environment}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("seconds", "timeout", "code"),
    [(0.5, "20s", "OK"), (3600, "200ms", "UNAVAILABLE")],
)
def test_a_driver_ends_when_its_calls_have(seconds: float, timeout: str, code: str, tmp_path: Path) -> None:
    """A thread that hangs does not keep the process longer than the timeout."""
    endpoint = f"unix://{tmp_path}/driver.sock"
    arguments = ("--endpoint", endpoint, "--graceful-shutdown-timeout", timeout)
    with program(tmp_path, *arguments, seconds=seconds) as process, grpc.insecure_channel(endpoint) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)
        answer = services.MachineStub(channel).CreateMachine.future(CREATE)
        assert process.stdout
        assert any("creating" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        try:
            answer.result(PATIENCE)
            ended = "OK"
        except grpc.RpcError as error:
            ended = error.code().name
        assert ended in (code, "CANCELLED" if code != "OK" else code)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("", "set CMI_ENDPOINT"),
        ("127.0.0.1:1", "set CMI_ENDPOINT"),
        ("unix://driver.sock", "needs an absolute path"),
        ("unix:///nowhere/driver.sock", "cannot listen"),
        ("tls://127.0.0.1:0", "needs --tls-cert-file"),
    ],
)
def test_an_unusable_endpoint_ends_the_driver_with_one_line(endpoint: str, problem: str, tmp_path: Path) -> None:
    with program(tmp_path, CMI_ENDPOINT=endpoint) as process:
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert problem in said
    assert len(said.splitlines()) == 1, said


def test_the_log_is_json_on_demand_and_has_no_secret(tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/driver.sock"
    with program(tmp_path, "--logging-format=json", CMI_ENDPOINT=endpoint) as process:
        with grpc.insecure_channel(endpoint) as channel:
            grpc.channel_ready_future(channel).result(PATIENCE)
            services.MachineStub(channel).CreateMachine(CREATE, timeout=PATIENCE)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE)
    lines = [json.loads(line) for line in said.splitlines() if line != "creating"]
    call = next(line for line in lines if line["msg"] == "call")
    assert (call["method"], call["machine"], call["code"]) == ("CreateMachine", "machine m of cluster c", "OK")
    assert "canary" not in said
