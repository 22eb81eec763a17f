"""The driver as a process: its start, its output, and its end."""

from __future__ import annotations

import datetime
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import certifi
import cmi as kit
import grpc
import pytest
from cmi.v1 import cmi_pb2 as cmi
from cmi.v1 import cmi_pb2_grpc as services
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cloud import Cloud
from plugin import SECRETS, Plugin

FOLDER = Path(__file__).parent.parent
KIT = str(Path(kit.__file__).parents[1])
Process = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cloud: Cloud) -> Iterator[Process]:
    """Starts the driver with only the test's variables in its environment."""
    with ExitStack() as stack:

        def started(arguments: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "ec2driver", *arguments],
                cwd=FOLDER,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": KIT, "AWS_ENDPOINT_URL_EC2": cloud.url, **environment},
                stderr=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield started


def free_endpoint() -> str:
    """Returns a port below those that the kernel gives to clients, so that no client takes it before the driver."""
    for port in random.sample(range(20_000, 32_000), 100):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return f"127.0.0.1:{port}"
        except OSError:
            continue
    raise AssertionError("no port is free")


def ready(channel: grpc.Channel) -> Plugin:
    grpc.channel_ready_future(channel).result(timeout=60)
    return Plugin(channel)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "CMI_ENDPOINT"),
        ({"CMI_ENDPOINT": "127.0.0.1:1"}, "CMI_ENDPOINT"),
        ({"CMI_ENDPOINT": "http://127.0.0.1:1"}, "CMI_ENDPOINT"),
        ({"CMI_ENDPOINT": "tcp://"}, "CMI_ENDPOINT"),
        ({"CMI_ENDPOINT": "tcp://192.0.2.1:1"}, "tcp://192.0.2.1:1"),
        ({"CMI_ENDPOINT": "unix:///nowhere/driver.sock"}, "/nowhere/driver.sock"),
        (
            {"CMI_ENDPOINT": "tcp://127.0.0.1:0", "EC2_DRIVER_WAIT_TIMEOUT_SECONDS": "long"},
            "EC2_DRIVER_WAIT_TIMEOUT_SECONDS",
        ),
        ({"CMI_ENDPOINT": "tls://127.0.0.1:0", "CAPCMI_TLS_CERT_FILE": "a"}, "--tls-key-file"),
    ],
)
def test_a_wrong_environment_ends_it_at_once_by_name(start: Process, environment: dict[str, str], named: str) -> None:
    """OPS-03, OPS-13, CMI-179, CMI-181"""
    code, said = ended(start(**environment))
    assert code == 1, said
    assert said.splitlines()[-1].startswith("ec2.capcmi.io: ")
    assert named in said.splitlines()[-1]


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_it_serves_ends_on_sigterm_and_logs_no_secret(
    start: Process, cloud: Cloud, cluster: str, tmp_path: Path, scheme: str
) -> None:
    """CMI-157, CMI-182, OPS-08, OPS-11: at the highest level of logs, with user data and a token in it."""
    address = free_endpoint() if scheme == "tcp" else f"{tmp_path}/driver.sock"
    process = start(CMI_ENDPOINT=f"{scheme}://{address}", arguments=("--log-level=debug",))
    secrets = {**SECRETS, "userData": b"#cloud-config\ncanary-user-data-987654321\n", "sessionToken": b"canary-session"}
    with grpc.insecure_channel(address if scheme == "tcp" else f"unix:{address}") as channel:
        plugin = ready(channel)
        spec = cloud.spec(cluster)
        for call in ("CreateMachine", "GetMachineStatus", "DeleteMachine"):
            assert getattr(plugin, call)(MachineName="m-1", ProviderSpec=spec, Secrets=secrets).code == "OK"
        assert plugin.CreateMachine(MachineName="m-2", ProviderSpec=b"{}", Secrets=secrets).code == "INVALID_ARGUMENT"
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 0, said
    calls = [line for line in said.splitlines() if "method=CreateMachine" in line]
    assert len(calls) == 2
    assert "machine m-1 of cluster" in calls[0]
    assert "code=OK" in calls[0]
    assert "code=INVALID_ARGUMENT" in calls[1]
    assert "canary" not in said
    assert list(tmp_path.iterdir()) == [], "files beside the socket"


def test_a_second_start_takes_the_socket_of_one_that_was_killed(start: Process, tmp_path: Path) -> None:
    address = f"{tmp_path}/driver.sock"
    for _ in range(2):
        process = start(CMI_ENDPOINT=f"unix://{address}")
        with grpc.insecure_channel(f"unix:{address}") as channel:
            assert ready(channel).Probe().code == "OK"
        process.kill()
        process.wait()
        assert Path(address).exists()


def test_it_is_ready_once_its_authorities_are_there(start: Process, cloud: Cloud, tmp_path: Path) -> None:
    """CMI-68, CMI-69, CMI-75: a volume may be filled after the start, and be spoiled later on."""
    file = tmp_path / "authorities.pem"
    start(CMI_ENDPOINT=f"unix://{tmp_path}/driver.sock", AWS_CA_BUNDLE=str(file))
    with grpc.insecure_channel(f"unix:{tmp_path}/driver.sock") as channel:
        plugin = ready(channel)
        assert plugin.Probe().response.ready.value is False
        file.write_text(Path(certifi.where()).read_text())
        assert plugin.Probe().response.ready.value is True
        file.write_text("a page of a proxy")
        refused = plugin.Probe()
        assert refused.code == "FAILED_PRECONDITION"
        assert "AWS_CA_BUNDLE" in refused.message
        file.unlink()
        assert plugin.Probe().response.ready.value is False


def test_probe_is_answered_while_32_calls_wait_for_ec2(
    start: Process, cloud: Cloud, cluster: str, tmp_path: Path
) -> None:
    """CMI-64: 32 calls, the provider's default, at an EC2 that takes connections and says nothing."""
    address = f"unix:{tmp_path}/driver.sock"
    with ExitStack() as open_connections:
        silent = open_connections.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        silent.settimeout(60)
        start(
            CMI_ENDPOINT=f"unix://{tmp_path}/driver.sock",
            AWS_ENDPOINT_URL_EC2=f"http://127.0.0.1:{silent.getsockname()[1]}",
        )
        channel = open_connections.enter_context(grpc.insecure_channel(address))
        plugin, machines, spec = ready(channel), services.MachineStub(channel), cloud.spec(cluster)
        waiting = []
        for n in range(32):
            request = cmi.CreateMachineRequest(MachineName=f"m-{n}", ProviderSpec=spec, Secrets=SECRETS)
            waiting.append(machines.CreateMachine.future(request, timeout=60))
        for _ in waiting:
            open_connections.enter_context(silent.accept()[0])
        assert plugin.Probe(deadline=10).code == "OK"
        assert not any(call.done() for call in waiting)
        for call in waiting:
            call.cancel()


class Authority:
    """Makes certificates."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._issue("authority", self.key.public_key(), is_authority=True)

    def _issue(self, name: str, key: Any, is_authority: bool = False) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def pair(self, name: str) -> tuple[bytes, bytes]:
        """A certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._issue(name, key.public_key()).public_bytes(serialization.Encoding.PEM), private

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def test_with_tls_only_a_client_with_a_certificate_is_served(start: Process, tmp_path: Path) -> None:
    """OPS-17, CMI-160, CMI-164"""
    ours, theirs = Authority(), Authority()
    files = {}
    certificate, key = ours.pair("driver.example.com")
    for name, content in (("TLS_CERT", certificate), ("TLS_KEY", key), ("CLIENT_CA", ours.pem)):
        path = tmp_path / name
        path.write_bytes(content)
        files[f"CAPCMI_{name}_FILE"] = str(path)
    address = free_endpoint()
    start(CMI_ENDPOINT=f"tls://{address}", **files)

    def probe(pair: tuple[bytes, bytes] | None) -> str:
        certificate, key = pair or (None, None)
        credentials = grpc.ssl_channel_credentials(ours.pem, key, certificate)
        named = [("grpc.ssl_target_name_override", "driver.example.com")]
        with grpc.secure_channel(address, credentials, options=named) as channel:
            return Plugin(channel).Probe(deadline=5).code

    deadline = time.monotonic() + 60
    while probe(ours.pair("client")) != "OK":
        assert time.monotonic() < deadline, "no server answers"
    assert probe(None) == "UNAVAILABLE"
    assert probe(theirs.pair("client")) == "UNAVAILABLE"
    with grpc.insecure_channel(address) as channel:
        assert Plugin(channel).Probe(deadline=5).code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    # A renewed certificate is used without a restart: the client refuses the certificate of the other authority.
    for name, content in zip(("TLS_CERT", "TLS_KEY"), theirs.pair("driver.example.com"), strict=True):
        (tmp_path / name).write_bytes(content)
    assert probe(ours.pair("client")) == "UNAVAILABLE"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_documented_certificates_work_for_client_and_server(start: Process, tmp_path: Path) -> None:
    """With a kubectl that writes the Secrets into folders."""
    page = (FOLDER.parents[3] / "docs/drivers/deployment.md").read_text()
    commands = page.split("<!-- tested: certificates -->")[1].split("```sh\n")[1].split("```")[0]
    (tmp_path / "bin").mkdir()
    kubectl = tmp_path / "bin/kubectl"
    kubectl.write_text(
        "#!/bin/sh\nset -e\nname=$6\nmkdir $name\nshift 6\n"
        'for file in "$@"; do pair=${file#--from-file=}; cp "${pair#*=}" "$name/${pair%%=*}"; done\n'
    )
    kubectl.chmod(0o755)
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, env={"PATH": path}, check=True, capture_output=True)
    files = {
        "CAPCMI_TLS_CERT_FILE": "capcmi-driver/tls.crt",
        "CAPCMI_TLS_KEY_FILE": "capcmi-driver/tls.key",
        "CAPCMI_CLIENT_CA_FILE": "capcmi-driver/ca.crt",
    }
    address = free_endpoint()
    start(CMI_ENDPOINT=f"tls://{address}", **{name: str(tmp_path / file) for name, file in files.items()})
    authority, key, certificate = (
        (tmp_path / "capcmi-driver-client" / file).read_bytes() for file in ("ca.crt", "tls.key", "tls.crt")
    )
    named = [("grpc.ssl_target_name_override", "capcmi-driver.capcmi-system.svc")]
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    with grpc.secure_channel(address, credentials, options=named) as channel:
        assert ready(channel).Probe().code == "OK"
