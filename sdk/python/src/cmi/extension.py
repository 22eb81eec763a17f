"""The service of capcmi.v1."""

from __future__ import annotations

import base64
import binascii
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Generic, TypeVar

from capcmi.v1 import capcmi_pb2 as ext

from . import faults
from .backend import (
    Change,
    Consoler,
    Initializer,
    Migrator,
    ProviderClass,
    Restarter,
    Sizer,
    Starter,
    Updater,
    Zoner,
    implements,
)
from .call import Call
from .driver import Driver, Machine, not_found, unlocked
from .errors import BadRequest, Gone, Internal, Uninitialized, nothing_begun
from .guard import Running, rpc
from .machine import listed, look, require
from .schema import ADDRESSES_FIELD, TAGS_FIELD, ZONE_FIELD, escaped
from .spec import Decoded
from .vm import CLUSTER_TAG, MACHINE_TAG, ROLE_TAG, SPEC_TAG, VM, Power
from .wire import to_wire

Spec = TypeVar("Spec")

# The end of a console's output that a caller keeps.
_MOST_CONSOLE = 64 << 10
# The beginning of every page token.
_PAGE_TOKEN = "cmi1:"
_RESERVED = {CLUSTER_TAG, ROLE_TAG, MACHINE_TAG, SPEC_TAG}


class ExtensionService(Generic[Spec]):
    """capcmi.v1.MachineExtension."""

    def __init__(self, driver: Driver[Spec], running: Running) -> None:
        self.driver = driver
        self.running = running

    @rpc
    async def GetExtensionCapabilities(
        self, call: Call, request: Any, context: Any
    ) -> ext.GetExtensionCapabilitiesResponse:
        """Declares the calls whose protocols the back end implements."""
        info, schemas = self.driver.info, self.driver.specs.schemas
        response = ext.GetExtensionCapabilitiesResponse(
            calls=self._calls(),
            zones=schemas.has(ZONE_FIELD),
            provider_spec_schema=schemas.text,
            list_has_state=info.list_has_state,
            address_path=f"/{ADDRESSES_FIELD}" if schemas.has(ADDRESSES_FIELD) else "",
        )
        if info.consistency_window > 0:
            response.consistency_window.FromTimedelta(timedelta(seconds=info.consistency_window))
        if self.driver.updates:
            tags = f"/{TAGS_FIELD}"
            response.hot_updatable.extend([tags, f"{tags}/{escaped(MACHINE_TAG)}", *schemas.hot])
        return response

    def _calls(self) -> list[Any]:
        kinds = ext.GetExtensionCapabilitiesResponse
        optional = {
            kinds.INITIALIZE_MACHINE: Initializer,
            kinds.UPDATE_MACHINE: Updater,
            kinds.GENERATE_MACHINE_CLASS_FOR_MIGRATION: Migrator,
            kinds.LIST_ZONES: Zoner,
            kinds.DESCRIBE_CLASS: Sizer,
            kinds.RESTART_MACHINE: Restarter,
            kinds.GET_CONSOLE: Consoler,
        }
        offered = [kind for kind, protocol in optional.items() if implements(self.driver.backend, protocol)]
        return [kinds.GET_MACHINE, kinds.LIST_MACHINES_PAGED, *offered]

    @rpc
    async def GetMachine(self, call: Call, request: Any, context: Any) -> ext.Machine:
        """Returns the VM as GetMachineStatus does, with addresses and power state."""
        return to_wire(await look(self.driver, call, self._machine(call, request)))

    @rpc
    async def InitializeMachine(self, call: Call, request: Any, context: Any) -> ext.Machine:
        """Does the missing steps of a VM that exists."""
        require(self.driver, Initializer, "InitializeMachine")
        machine = self._machine(call, request)
        async with self.driver.changing(call, machine) as vm:
            if vm.uninitialized:
                try:
                    await self.driver.change(call, machine.id, vm, self._initialize, machine.spec)
                except Uninitialized as error:
                    error.vm = vm
                    raise
        return to_wire(vm)

    async def _initialize(self, call: Call, vm: VM, spec: Spec) -> None:
        if faults.active and faults.active.count("failInitialize"):
            raise Uninitialized("a step of the initialization failed")
        await self.driver.invoke(self.driver.backend.initialize, call, vm, spec)

    @rpc
    async def UpdateMachine(self, call: Call, request: Any, context: Any) -> ext.UpdateMachineResponse:
        """Brings a VM to a new spec."""
        driver = self.driver
        require(driver, Updater, "UpdateMachine")
        machine = driver.existing(
            call, request.machine_name, request.provider_spec, request.provider_id, driver.specs.decode_new
        )
        last = driver.specs.decode(request.last_applied_provider_spec)
        async with driver.lock(call, machine.id):
            vm = await self._updatable(call, machine)
            change = _change_of(vm, machine, last)
            if driver.specs.schemas.hot or change.set_tags or change.remove_tags:
                await driver.change(call, machine.id, vm, driver.backend.update, change)
        return ext.UpdateMachineResponse()

    async def _updatable(self, call: Call, machine: Machine[Spec]) -> VM:
        """Returns the VM that an update means: also an adopted VM without a machine object."""
        for vm in await self.driver.namesakes(call, machine):
            is_adopted = not vm.tags.get(MACHINE_TAG) and machine.provider_id == vm.id
            if is_adopted or machine.owns(vm):
                return unlocked(vm)
        raise not_found(machine.id)

    @rpc
    async def RestartMachine(self, call: Call, request: Any, context: Any) -> ext.RestartMachineResponse:
        """Resets a VM, or starts one that is off."""
        driver = self.driver
        require(driver, Restarter, "RestartMachine")
        async with AsyncExitStack() as locked:
            with nothing_begun():
                machine = self._existing(call, request)
                vm = await locked.enter_async_context(driver.changing(call, machine))
                if faults.active:
                    faults.active.fail()
            starts = vm.power == Power.STOPPED and implements(driver.backend, Starter)
            restart = driver.backend.start if starts else driver.backend.restart
            await driver.change(call, machine.id, vm, restart)
        return ext.RestartMachineResponse()

    @rpc
    async def GetConsole(self, call: Call, request: Any, context: Any) -> ext.GetConsoleResponse:
        """Returns the end of the console's output."""
        require(self.driver, Consoler, "GetConsole")
        machine = self._existing(call, request)
        vm = await self.driver.one(call, machine)
        try:
            output = bytes(await self.driver.reach(self.driver.backend.console, call, vm))
        except Gone as error:
            raise not_found(machine.id) from error
        return ext.GetConsoleResponse(output=output[-_MOST_CONSOLE:])

    @rpc
    async def ListMachinesPaged(self, call: Call, request: Any, context: Any) -> ext.ListMachinesPagedResponse:
        """Lists VMs with the owner of each. A page begins after the id in its token."""
        after = _read_token(request.page_token)
        size = request.page_size
        if size < 0:
            raise BadRequest("page_size must not be negative")
        every = sorted(await listed(self.driver, call, request.provider_spec), key=lambda vm: vm.id)
        rest = [vm for vm in every if vm.id > after]
        page = rest[:size] if size else rest
        response = ext.ListMachinesPagedResponse(machines=[_listed(vm, self.driver.info.list_has_state) for vm in page])
        if len(page) < len(rest):
            response.next_page_token = base64.urlsafe_b64encode((_PAGE_TOKEN + page[-1].id).encode()).decode()
        return response

    @rpc
    async def ListZones(self, call: Call, request: Any, context: Any) -> ext.ListZonesResponse:
        """Returns the failure domains."""
        require(self.driver, Zoner, "ListZones")
        spec = self.driver.specs.decode_any(request.provider_spec)
        zones = await self.driver.reach(self.driver.backend.zones, call, spec)
        kind = ext.ListZonesResponse.Zone
        return ext.ListZonesResponse(
            zones=[kind(name=z.name, control_plane=z.control_plane, attributes=z.attributes) for z in zones]
        )

    @rpc
    async def DescribeClass(self, call: Call, request: Any, context: Any) -> ext.DescribeClassResponse:
        """Returns the resources of one machine."""
        require(self.driver, Sizer, "DescribeClass")
        spec = self.driver.specs.decode(request.provider_spec).spec
        size = await self.driver.reach(self.driver.backend.size, call, spec)
        return ext.DescribeClassResponse(
            capacity=size.capacity, architecture=size.architecture, operating_system=size.operating_system
        )

    @rpc
    async def GenerateMachineClassForMigration(
        self, call: Call, request: Any, context: Any
    ) -> ext.GenerateMachineClassForMigrationResponse:
        """Converts a machine class. A class that cannot be converted is INTERNAL."""
        require(self.driver, Migrator, "GenerateMachineClassForMigration")
        source = ProviderClass(request.class_api_group, request.class_kind, request.provider_specific_machine_class)
        try:
            made = await self.driver.reach(self.driver.backend.migrate, call, source, request.machine_class)
        except BadRequest as error:
            raise Internal(error.message) from error.__cause__
        return ext.GenerateMachineClassForMigrationResponse(machine_class=made)

    def _machine(self, call: Call, request: Any) -> Machine[Spec]:
        decode = self.driver.specs.decode
        return self.driver.machine(call, request.machine_name, request.provider_spec, request.provider_id, decode)

    def _existing(self, call: Call, request: Any) -> Machine[Spec]:
        decode = self.driver.specs.decode
        return self.driver.existing(call, request.machine_name, request.provider_spec, request.provider_id, decode)


def _change_of(vm: VM, machine: Machine[Spec], last: Decoded[Spec]) -> Change[Spec]:
    wanted = machine.id.tags
    return Change(
        spec=machine.spec,
        last_applied=last.spec,
        tags=wanted,
        set_tags={name: value for name, value in wanted.items() if vm.tags.get(name) != value},
        remove_tags=tuple(
            name for name in sorted(last.tags) if name in vm.tags and name not in wanted and name not in _RESERVED
        ),
    )


def _read_token(token: str) -> str:
    if not token:
        return ""
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise BadRequest("page_token is not one of this driver") from error
    if not text.startswith(_PAGE_TOKEN):
        raise BadRequest("page_token is not one of this driver")
    return text.removeprefix(_PAGE_TOKEN)


def _listed(vm: VM, has_state: bool) -> ext.ListMachinesPagedResponse.ListedMachine:
    machine = ext.ListMachinesPagedResponse.ListedMachine(
        provider_id=vm.id,
        machine_name=vm.name,
        cluster_id=vm.tags.get(CLUSTER_TAG, ""),
        machine_id=vm.tags.get(MACHINE_TAG, ""),
    )
    if vm.created_at:
        machine.created_at.FromDatetime(vm.created_at)
    if has_state:
        shown = to_wire(vm)
        machine.addresses.extend(shown.addresses)
        machine.power_state = shown.power_state
    return machine
