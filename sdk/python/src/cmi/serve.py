"""Serves a back end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from dataclasses import dataclass, field
from typing import Any

import grpc
from capcmi.v1 import capcmi_pb2, capcmi_pb2_grpc
from cmi.v1 import cmi_pb2, cmi_pb2_grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from .backend import Backend, Info, VolumeFinder, implements
from .driver import Driver
from .endpoint import TLSFiles, listen
from .extension import ExtensionService
from .guard import Running
from .machine import IdentityService, MachineService

log = logging.getLogger("cmi")

# The largest request has two provider specs of 1 MiB and secrets of 2 MiB. gRPC accepts 4 MiB by default.
_MOST_REQUEST = 5 << 20
# A request for volume ids has a list of 16 MiB.
_MOST_VOLUMES_REQUEST = 20 << 20
# The caller pings during long calls.
_SHORTEST_PING_MS = 5000


@dataclass(frozen=True)
class Options:
    """The settings of `serve`."""

    endpoint: str
    """`unix:///PATH`, `tcp://HOST:PORT` or `tls://HOST:PORT`.

    Use TCP in plain text on loopback only: calls carry credentials.
    """
    tls: TLSFiles = field(default_factory=TLSFiles)
    """The files for an endpoint with TLS."""
    shutdown_timeout: float = 20.0
    """For how many seconds running calls may go on after the end was requested."""


async def serve(info: Info, backend: Backend[Any], options: Options, stop: asyncio.Event) -> bool:
    """Serves a back end until the event is set, and then waits up to `shutdown_timeout` for running calls.

    `main` adds flags, the environment and signals. Returns whether all calls ended in time. If not, the server and the
    calls still run: the caller must end the process, as `run` does.

    Raises:
        Misconfigured: The endpoint cannot be used.
        TypeError: The back end or its provider spec cannot be used.
    """
    running = Running()
    driver: Driver[Any] = Driver(info, backend)
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            (
                "grpc.max_receive_message_length",
                _MOST_VOLUMES_REQUEST if implements(backend, VolumeFinder) else _MOST_REQUEST,
            ),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _SHORTEST_PING_MS),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
    )
    cmi_pb2_grpc.add_IdentityServicer_to_server(IdentityService(driver, running), server)  # type: ignore[no-untyped-call]
    cmi_pb2_grpc.add_MachineServicer_to_server(MachineService(driver, running), server)  # type: ignore[no-untyped-call]
    capcmi_pb2_grpc.add_MachineExtensionServicer_to_server(ExtensionService(driver, running), server)  # type: ignore[no-untyped-call]
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    services = [
        *(each.full_name for each in cmi_pb2.DESCRIPTOR.services_by_name.values()),
        *(each.full_name for each in capcmi_pb2.DESCRIPTOR.services_by_name.values()),
    ]
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    listen(server, options.endpoint, options.tls)
    await server.start()
    log.info("serving", extra={"fields": {"driver": info.name, "version": info.version, "endpoint": options.endpoint}})
    await stop.wait()
    log.info("shutting down")
    await healthy.enter_graceful_shutdown()
    # Later than the end of the wait below: gRPC may crash when it cancels calls whose threads hang.
    ending = asyncio.create_task(server.stop(options.shutdown_timeout + 10))
    try:
        # A caller that watches the health would keep the server from its end.
        await asyncio.wait_for(running.idle.wait(), options.shutdown_timeout)
    except TimeoutError:
        # `run` ends the process now, and so its connections.
        return False
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(ending, server.stop(0)), 1)
    return True


def run(info: Info, backend: Backend[Any], options: Options) -> None:
    """Serves a back end until SIGTERM or SIGINT. A second signal ends the process immediately."""

    async def until_signal() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ask() -> None:
            stop.set()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)
        if not await serve(info, backend, options, stop):
            # A thread that hangs would keep the event loop and the process.
            logging.shutdown()
            os._exit(0)

    asyncio.run(until_signal())
