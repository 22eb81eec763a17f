"""One cloud for all tests. Each test has a driver and a cluster that no other test uses."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import cmi
import grpc
import pytest
from moto.server import ThreadedMotoServer

from client_tokens import Tokens
from cloud import Cloud
from ec2driver.__main__ import info
from ec2driver.backend import EC2, Settings
from faults import Calls, WatchedClients
from plugin import Plugin

# A driver listens some milliseconds after its thread started. By default a client would try again after a second.
RECONNECT_AT_ONCE = [("grpc.initial_reconnect_backoff_ms", 10), ("grpc.min_reconnect_backoff_ms", 10)]


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
    """The requests of this test's driver to EC2."""
    clients.calls = Calls()
    return clients.calls


@contextmanager
def served(info: cmi.Info, backend: EC2, options: cmi.Options) -> Iterator[None]:
    """Serves a driver from a thread."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(cmi.serve(info, backend, options, stop)))
    thread.start()
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture
def serve(
    cloud: Cloud, calls: Calls, clients: WatchedClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Settings], Plugin]]:
    """Starts a driver with these settings."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", cloud.url)
    with ExitStack() as stack:

        def start(settings: Settings) -> Plugin:
            options = cmi.Options(f"unix://{tmp_path}/{uuid.uuid4().hex[:8]}.sock", shutdown_timeout=5)
            stack.enter_context(served(info(settings), EC2(settings, clients), options))
            channel = stack.enter_context(grpc.insecure_channel(options.endpoint, RECONNECT_AT_ONCE))
            grpc.channel_ready_future(channel).result(timeout=60)
            return Plugin(channel)

        yield start


@pytest.fixture
def plugin(serve: Callable[[Settings], Plugin]) -> Plugin:
    """A driver that does not wait for long."""
    return serve(Settings(consistency_window=0, wait_timeout=0.5))
