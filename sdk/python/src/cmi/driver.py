"""The rules for every call: who owns a VM, one change at a time, and how the back end is called."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from . import faults
from .backend import Backend, Info, Locker, Matcher, Updater, Zoner, check_signatures, implements, spec_type
from .call import Call
from .errors import BadRequest, Busy, Forbidden, Gone, NotFound, OutOfRange
from .schema import TAGS_FIELD, ZONE_FIELD
from .spec import Decoded, Specs, require_tags
from .vm import CLUSTER_TAG, MACHINE_TAG, MOST_ID, MOST_NAME, VM, Identity, ids

Spec = TypeVar("Spec")

# More than the provider makes, so that Probe does not wait for slow calls.
_THREADS = 64
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True)
class Machine(Generic[Spec]):
    """A checked request about one machine."""

    id: Identity
    provider_id: str
    read: Decoded[Spec]

    @property
    def spec(self) -> Spec:
        """The provider spec."""
        return self.read.spec

    def owns(self, vm: VM) -> bool:
        """Says whether a VM of the same name belongs to the machine.

        A machine that was adopted without MACHINE_TAG is known by its ProviderID, whatever tag its VM has.
        """
        if self.provider_id not in ("", vm.id):
            return False
        is_adopted = self.id.machine == "" and self.provider_id != ""
        return vm.tags.get(MACHINE_TAG, "") == self.id.machine or is_adopted


class Driver(Generic[Spec]):
    """Serves a back end."""

    def __init__(self, info: Info, backend: Backend[Spec]) -> None:
        check_signatures(backend)
        self.info = info
        # Optional methods are looked up with `implements` first.
        self.backend: Any = backend
        self.specs: Specs[Spec] = Specs(spec_type(backend))
        self.updates = implements(backend, Updater)
        self._running: set[tuple[str, str]] = set()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cmi")
        schemas = self.specs.schemas
        if implements(backend, Zoner) and not schemas.has(ZONE_FIELD):
            raise TypeError(f"a back end with zones needs a field {ZONE_FIELD} in its provider spec")
        if schemas.hot and not self.updates:
            raise TypeError(f"the provider spec has the hot field {schemas.hot[0]}, and the back end has no update")

    def machine(
        self, call: Call, name: str, text: bytes, provider_id: str, decode: Callable[[bytes], Decoded[Spec]]
    ) -> Machine[Spec]:
        """Checks a request with one of the functions that decode specs."""
        if len(name) > MOST_NAME or not _SUBDOMAIN.fullmatch(name):
            raise BadRequest(f"MachineName must be a DNS subdomain of 1 to {MOST_NAME} bytes")
        if len(provider_id.encode()) > MOST_ID:
            raise BadRequest(f"ProviderID may have {MOST_ID} bytes, and has {len(provider_id.encode())}")
        read = decode(text)
        # Only an updater adopts VMs without a machine object.
        is_adopted = self.updates and MACHINE_TAG not in read.tags
        require_tags(read.tags, (CLUSTER_TAG,) if is_adopted else (CLUSTER_TAG, MACHINE_TAG))
        tags = read.tags if implements(self.backend, Matcher) else read.with_digest()
        id = Identity(read.tags[CLUSTER_TAG], name, read.tags.get(MACHINE_TAG, ""), dict(tags))
        call.machine = str(id)
        return Machine(id, provider_id, read)

    def existing(
        self, call: Call, name: str, text: bytes, provider_id: str, decode: Callable[[bytes], Decoded[Spec]]
    ) -> Machine[Spec]:
        """Checks a request that must have a ProviderID."""
        if not provider_id:
            raise BadRequest("provider_id is required")
        return self.machine(call, name, text, provider_id, decode)

    async def invoke(self, method: Callable[..., Any], call: Call, *arguments: Any) -> Any:
        """Calls a function in a thread, or a coroutine."""
        if inspect.isasyncgenfunction(method):
            return [each async for each in method(call, *arguments)]
        if inspect.iscoroutinefunction(method):
            return await method(call, *arguments)
        result = await self._in_thread(call, partial(method, call, *arguments))
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(self, call: Call, function: Callable[[], Any]) -> Any:
        """A thread cannot be cancelled. Its machine stays locked until it ends, so its result is awaited first."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, lambda: _drained(function()))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                call.cancelled, cancelled = True, error
        if cancelled:
            future.exception()  # nobody else will see it
            raise cancelled
        return future.result()

    async def reach(self, method: Callable[..., Any], call: Call, *arguments: Any) -> Any:
        """Makes a call to the back end."""
        if faults.active:
            await faults.active.reach()
        return await self.invoke(method, call, *arguments)

    async def change(self, call: Call, id: Identity, vm: VM, method: Callable[..., Any], *arguments: Any) -> None:
        """Changes an existing VM. A VM that no longer exists is NOT_FOUND."""
        unlocked(vm)
        try:
            await self.reach(counted(method), call, vm, *arguments)
        except Gone as error:
            raise not_found(id) from error

    async def namesakes(self, call: Call, machine: Machine[Spec]) -> list[VM]:
        """Returns the VMs with the cluster and the name of a machine, whoever owns them."""
        id = machine.id
        every = await self.reach(self.backend.find, call, id, machine.spec)
        found = [vm for vm in every if vm.tags.get(CLUSTER_TAG) == id.cluster and vm.name == id.name]
        for vm in found:
            vm.check()
            if faults.active and faults.active.locked(id.cluster, id.name):
                vm.locked = "an injected fault"
        return found

    async def owned(self, call: Call, machine: Machine[Spec]) -> list[VM]:
        """Returns the VMs that a request means."""
        return [vm for vm in await self.namesakes(call, machine) if machine.owns(vm)]

    async def one(self, call: Call, machine: Machine[Spec]) -> VM:
        """Returns the VM that a request means.

        NOT_FOUND is a promise: the back end confirmed that no VM exists.
        """
        found = await self.owned(call, machine)
        if len(found) > 1:
            raise OutOfRange(f"/{TAGS_FIELD}", f"{machine.id} has several VMs: {ids(found)}")
        if not found:
            raise not_found(machine.id)
        return unlocked(found[0])

    @asynccontextmanager
    async def lock(self, call: Call, id: Identity) -> AsyncIterator[None]:
        """Keeps other changing calls for the machine away."""
        key = (id.cluster, id.name)
        if key in self._running:
            raise Busy(f"another call for {id} is running")
        self._running.add(key)
        try:
            if not implements(self.backend, Locker):
                yield
                return
            async with self._shared_lock(call, id):
                yield
        finally:
            self._running.remove(key)

    @asynccontextmanager
    async def _shared_lock(self, call: Call, id: Identity) -> AsyncIterator[None]:
        manager = self.backend.lock(call, id)
        if hasattr(manager, "__aenter__"):
            async with manager:
                yield
            return
        await self._entered(call, manager)
        try:
            yield
        finally:
            await self._in_thread(call, partial(manager.__exit__, None, None, None))

    async def _entered(self, call: Call, manager: Any) -> None:
        """Takes a lock, and gives it back when the caller has left since."""
        taken = False

        def enter() -> None:
            nonlocal taken
            manager.__enter__()
            taken = True

        try:
            await self._in_thread(call, enter)
        except asyncio.CancelledError:
            if taken:
                await self._in_thread(call, partial(manager.__exit__, None, None, None))
            raise

    @asynccontextmanager
    async def changing(self, call: Call, machine: Machine[Spec]) -> AsyncIterator[VM]:
        """Locks a machine, and returns its VM."""
        async with self.lock(call, machine.id):
            yield await self.one(call, machine)


def _drained(result: Any) -> Any:
    """Returns a list for a generator, which would otherwise run outside of its thread."""
    return list(result) if isinstance(result, Iterator) else result


def counted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method whose changes the fault layer counts, also for a caller that has left."""
    folder = faults.active
    if folder is None:
        return method
    if inspect.iscoroutinefunction(method):

        async def awaited(*arguments: Any) -> Any:
            result = await method(*arguments)
            folder.changed()
            return result

        return awaited

    def called(*arguments: Any) -> Any:
        result = method(*arguments)
        folder.changed()
        return result

    return called


def unlocked(vm: VM) -> VM:
    """Returns the VM unless it is locked."""
    if vm.locked:
        raise Forbidden(f"the VM {vm.id} is locked: {vm.locked}")
    return vm


def not_found(id: Identity) -> NotFound:
    """Returns the error of a machine without a VM."""
    return NotFound(f"no VM of {id} exists")
