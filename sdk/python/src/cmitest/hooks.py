"""The hooks of a run: they cause faults in a driver and its back end."""

from __future__ import annotations

import asyncio
import json
import secrets
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import cmi
from cmi import faults
from cmi.backend import Answer, implements
from cmi.driver import Driver
from cmi.vm import VM

from . import hook_client
from .suite import Suite

# Seconds.
_VANISHES_WITHIN = 30


class UserDataReader(Protocol):
    """A back end that returns the user data of a VM, byte for byte. The verdict `full` needs it."""

    def user_data(self, call: cmi.Call, vm: VM) -> Answer[bytes]:
        """Returns the user data."""


class ChangeCounter(Protocol):
    """A back end that counts its changes.

    Without it, the calls that change a VM are counted. An `update` that finds nothing to change needs it.
    """

    def changes(self, call: cmi.Call) -> Answer[int]:
        """Returns the number of changes so far."""


class SpecReader(Protocol):
    """A back end with `update` that returns the values that a VM has."""

    def vm_spec(self, call: cmi.Call, vm: VM) -> Answer[Mapping[str, Any]]:
        """Returns the values in the form of the provider spec."""


class Uninitializer(Protocol):
    """A back end with `initialize` that undoes it."""

    def uninitialize(self, call: cmi.Call, vm: VM) -> Answer[None]:
        """Undoes `initialize`."""


class Hooks:
    """Serves the hooks from this process: a command for each would import gRPC several hundred times."""

    def __init__(
        self, backend: cmi.Backend[Any], suite: Suite, folder: faults.Folder, restart: Callable[[], None]
    ) -> None:
        self._backend: Any = backend
        self._driver: Driver[Any] = Driver(cmi.Info("hooks", "0"), backend)
        self._folder = folder
        self._restart = restart
        self._suite = suite
        self._spec = self._driver.specs.decode(json.dumps(suite.provider_spec).encode()).spec
        self._call = cmi.Call(secrets=cmi.Secrets({key: cmi.Secret(v.encode()) for key, v in suite.secrets.items()}))
        self._loop = asyncio.new_event_loop()

    def start(self, socket: Path) -> Callable[[], None]:
        """Listens on a socket, and returns the function that ends it."""
        hooks = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                name, *arguments = self.rfile.read().decode().split("\0")
                try:
                    answer = b"+" + hooks.serve(name, *arguments)
                except Exception as error:
                    answer = b"-" + f"{type(error).__name__}: {error}".encode()
                self.wfile.write(answer)

        class Server(socketserver.ThreadingUnixStreamServer):
            request_queue_size = 64

        server = Server(str(socket), Handler)
        threads = [threading.Thread(target=server.serve_forever), threading.Thread(target=self._loop.run_forever)]
        for thread in threads:
            thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            for thread in threads:
                thread.join()
            self._loop.close()

        return stop

    def commands(self, socket: Path) -> dict[str, list[str]]:
        """Returns the command of each hook that the back end can serve."""
        machine = ["{machine}", "{cluster}"]
        plain = "unavailable unknown internal exhaust unhealthy starting loseResponse restore restart mutations"
        arguments = {name: list[str]() for name in plain.split()}
        arguments |= {"slow": ["{amount}"], "plant": [*machine, "{identity}"]}
        arguments |= {"lock": machine, "unlock": machine, "vanish": machine}
        for name, protocol, own in (
            ("userData", UserDataReader, machine),
            ("vmSpec", SpecReader, machine),
            ("failInitialize", cmi.Initializer, ["{amount}"]),
            ("uninitialize", Uninitializer, machine),
        ):
            if implements(self._backend, protocol):
                arguments[name] = own
        program = [sys.executable, "-IS", hook_client.__file__, str(socket)]
        return {name: [*program, name, *own] for name, own in arguments.items()}

    def serve(self, name: str, *arguments: str) -> bytes:
        """Serves a hook, and returns its output."""
        match (name, *arguments):
            case ("unavailable" | "unknown" | "internal" | "exhaust" | "unhealthy" | "starting", *_):
                self._folder.set(name)
            case ("slow" | "failInitialize", amount):
                self._folder.set(name, amount)
            case ("loseResponse",):
                self._folder.set("loseCreate")
                self._folder.set("loseDelete")
            case ("restore",):
                self._folder.clear()
            case ("restart",):
                self._restart()
            case ("lock" | "unlock", machine, cluster):
                self._folder.lock(cluster, machine, on=name == "lock")
            case ("mutations",):
                is_counter = implements(self._backend, ChangeCounter)
                count = self._wait(self._backend.changes) if is_counter else self._folder.changes()
                return str(count).encode()
            case ("plant", machine, cluster, identity):
                faults.salt = secrets.token_hex()
                tags = {cmi.CLUSTER_TAG: cluster, cmi.MACHINE_TAG: identity}
                id = cmi.Identity(cluster, machine, identity, tags)
                self._wait(self._backend.create, id, self._spec, cmi.Bootstrap())
            case ("vanish", machine, cluster):
                id = cmi.Identity(cluster, machine)
                for vm in self._vms(id):
                    self._wait(self._backend.delete, vm)
                self._wait_until_vanished(id)
            case ("uninitialize", machine, cluster):
                for vm in self._vms(cmi.Identity(cluster, machine)):
                    self._wait(self._backend.uninitialize, vm)
            case ("userData", machine, cluster):
                vms = self._vms(cmi.Identity(cluster, machine))
                return b"".join(bytes(self._wait(self._backend.user_data, vm)) for vm in vms)
            case ("vmSpec", machine, cluster):
                vms = self._vms(cmi.Identity(cluster, machine))
                return b"".join(json.dumps(self._wait(self._backend.vm_spec, vm)).encode() for vm in vms)
            case _:
                raise ValueError(f"there is no hook {name} with {len(arguments)} arguments")
        return b""

    def _wait(self, method: Callable[..., Any], *arguments: Any) -> Any:
        work = self._driver.invoke(method, self._call, *arguments)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _vms(self, id: cmi.Identity) -> list[VM]:
        found = list(self._wait(self._backend.find, id, self._spec))
        if not found:
            raise LookupError(f"there is no VM of {id}")
        return found

    def _wait_until_vanished(self, id: cmi.Identity) -> None:
        """Waits for a back end whose `delete` returns early."""
        deadline = time.monotonic() + _VANISHES_WITHIN
        while list(self._wait(self._backend.find, id, self._spec)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the VM of {id} has not vanished within {_VANISHES_WITHIN} s")
            time.sleep(0.01)
