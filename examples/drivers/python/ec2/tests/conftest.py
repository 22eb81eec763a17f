"""One cloud for all tests; a driver of its own for each, and a cluster that no other test uses."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from moto.server import ThreadedMotoServer

from client_tokens import Tokens
from cloud import Cloud
from ec2driver import services
from ec2driver.driver import Driver, Settings
from ec2driver.health import Health
from faults import Calls, WatchedClients
from plugin import Plugin


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    """EC2."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    Tokens().install()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Cloud.at(f"http://{host}:{port}")
    server.stop()


@pytest.fixture
def cluster() -> str:
    """The id of a cluster without machines."""
    return f"cluster-{uuid.uuid4()}"


@pytest.fixture(scope="session")
def clients() -> WatchedClients:
    """Clients of EC2, whatever driver uses them."""
    return WatchedClients()


@pytest.fixture
def calls(clients: WatchedClients) -> Calls:
    """What the driver of this test asks of EC2."""
    clients.calls = Calls()
    return clients.calls


@pytest.fixture
def serve(
    cloud: Cloud, calls: Calls, clients: WatchedClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Settings], Plugin]]:
    """Starts a driver with these settings."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", cloud.url)
    with ExitStack() as stack:

        def start(settings: Settings) -> Plugin:
            server = grpc.server(ThreadPoolExecutor(16))
            services.add_to(server, Driver(settings, clients), Health())
            address = f"unix:{tmp_path}/{uuid.uuid4().hex[:8]}.sock"
            server.add_insecure_port(address)
            server.start()
            stack.callback(lambda: server.stop(0).wait())
            return Plugin(stack.enter_context(grpc.insecure_channel(address)))

        yield start


@pytest.fixture
def plugin(serve: Callable[[Settings], Plugin]) -> Plugin:
    """A driver that does not wait for long."""
    return serve(Settings(consistency_window=0, wait_timeout=0.5))
