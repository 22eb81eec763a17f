"""The services of cmi.v1."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from cmi.v1 import cmi_pb2 as pb

from . import faults
from .backend import Matcher, PersistentVolume, Prober, Stopper, VolumeFinder, implements
from .call import USER_DATA_FORMAT_KEY, USER_DATA_KEY, Call, Secret
from .driver import Driver, Machine, counted, unlocked
from .errors import (
    BadRequest,
    Busy,
    Error,
    Exhausted,
    Forbidden,
    Gone,
    Internal,
    Starting,
    Taken,
    Unavailable,
    Unimplemented,
    Uninitialized,
    nothing_begun,
)
from .guard import Running, rpc
from .spec import require_tags
from .vm import CLUSTER_TAG, SPEC_TAG, VM, Bootstrap, Power, ids
from .wire import beside

Spec = TypeVar("Spec")


class IdentityService:
    """cmi.v1.Identity."""

    def __init__(self, driver: Driver[Any], running: Running) -> None:
        self.driver = driver
        self.running = running

    @rpc
    async def GetPluginInfo(self, call: Call, request: Any, context: Any) -> pb.GetPluginInfoResponse:
        """Returns the driver's name and version."""
        info = self.driver.info
        return pb.GetPluginInfoResponse(name=info.name, version=info.version, manifest=info.manifest)

    @rpc
    async def GetPluginCapabilities(self, call: Call, request: Any, context: Any) -> pb.GetPluginCapabilitiesResponse:
        """Declares the calls whose protocols the back end implements."""
        kinds = pb.PluginCapability.RPC
        calls = [kinds.CREATE_MACHINE, kinds.DELETE_MACHINE, kinds.GET_MACHINE_STATUS, kinds.LIST_MACHINES]
        if implements(self.driver.backend, Stopper):
            calls.append(kinds.SHUTDOWN_MACHINE)
        if implements(self.driver.backend, VolumeFinder):
            calls.append(kinds.GET_VOLUME_IDS)
        capabilities = [pb.PluginCapability(rpc=pb.PluginCapability.RPC(type=kind)) for kind in calls]
        return pb.GetPluginCapabilitiesResponse(capabilities=capabilities)

    @rpc
    async def Probe(self, call: Call, request: Any, context: Any) -> pb.ProbeResponse:
        """Says whether the driver can serve. Without a Prober it can.

        A back end that is away is UNAVAILABLE in each call.
        """
        response = pb.ProbeResponse()
        try:
            response.ready.value = await self._is_ready(call)
        except Error as error:
            # The one code that Probe may answer. Every namespace sees its message.
            raise Forbidden(error.message) from error.__cause__
        except Exception as error:
            raise Forbidden("the driver cannot serve; its log has the reason") from error
        return response

    async def _is_ready(self, call: Call) -> bool:
        if faults.active and faults.active.has("unhealthy"):
            raise Forbidden("the driver lacks something that it needs")
        if faults.active and faults.active.has("starting"):
            return False
        if implements(self.driver.backend, Prober):
            try:
                await self.driver.invoke(self.driver.backend.probe, call)
            except Starting:
                return False
        return True


class MachineService(Generic[Spec]):
    """cmi.v1.Machine."""

    def __init__(self, driver: Driver[Spec], running: Running) -> None:
        self.driver = driver
        self.running = running

    @rpc
    async def CreateMachine(self, call: Call, request: Any, context: Any) -> pb.CreateMachineResponse:
        """Creates the VM, or adopts it after an earlier call."""
        driver = self.driver
        async with AsyncExitStack() as locked:
            with nothing_begun():
                machine = driver.machine(call, request.MachineName, request.ProviderSpec, "", driver.specs.decode_new)
                await locked.enter_async_context(driver.lock(call, machine.id))
                vm = await self._adopted(call, machine)
            if vm is None:
                data = Secret(request.Secrets.get(USER_DATA_KEY, b""))
                form = request.Secrets.get(USER_DATA_FORMAT_KEY, b"").decode(errors="replace")
                vm = await self._created(call, machine, Bootstrap(data, form))
        refuse_uninitialized(vm)
        beside(context, vm)
        return pb.CreateMachineResponse(ProviderID=vm.id, NodeName=vm.shown_name, LastKnownState=vm.state)

    async def _adopted(self, call: Call, machine: Machine[Spec]) -> VM | None:
        """Returns the VM that the machine already has."""
        found = await self.driver.namesakes(call, machine)
        foreign = [vm for vm in found if not machine.owns(vm)]
        if foreign:
            raise Taken(f"{machine.id} exists as {foreign[0].id} and belongs to another machine object")
        if len(found) > 1:
            raise Forbidden(f"{machine.id} has several VMs: {ids(found)}")
        if not found:
            return None
        vm = unlocked(found[0])
        if difference := await self._difference(call, machine, vm):
            raise Taken(f"{machine.id} exists as {vm.id} and does not fit the ProviderSpec: {difference}")
        return vm

    async def _difference(self, call: Call, machine: Machine[Spec], vm: VM) -> str:
        if implements(self.driver.backend, Matcher):
            return str(await self.driver.reach(self.driver.backend.match, call, vm, machine.spec) or "")
        # A VM that was made by hand has no digest.
        is_same = vm.tags.get(SPEC_TAG, machine.read.digest) == machine.read.digest
        return "" if is_same else "it was made from another one"

    async def _created(self, call: Call, machine: Machine[Spec], boot: Bootstrap) -> VM:
        if faults.active and faults.active.has("exhaust"):
            raise Exhausted("the back end has no room for another VM")
        create = counted(self.driver.backend.create)
        vm = await self.driver.reach(create, call, machine.id, machine.spec, boot)
        if not isinstance(vm, VM):
            raise Internal("the driver returned no VM from `create`")
        if faults.active and faults.active.take("loseCreate"):
            raise Unavailable("the answer of the back end was lost")
        vm.name = vm.name or machine.id.name
        vm.check()
        return vm

    @rpc
    async def DeleteMachine(self, call: Call, request: Any, context: Any) -> pb.DeleteMachineResponse:
        """Deletes all VMs of the machine. It answers OK when nothing is left."""
        driver = self.driver
        machine = self._machine(call, request)
        async with driver.lock(call, machine.id):
            found = await driver.owned(call, machine)
            for vm in found:
                await self._delete(call, vm)
            left = await driver.owned(call, machine) if found else []
        if left:
            raise Busy(f"{machine.id} is still being deleted: {ids(left)}")
        return pb.DeleteMachineResponse()

    async def _delete(self, call: Call, vm: VM) -> None:
        unlocked(vm)
        try:
            await self.driver.reach(counted(self.driver.backend.delete), call, vm)
        except Gone:
            return
        if faults.active and faults.active.take("loseDelete"):
            raise Unavailable("the answer of the back end was lost")

    @rpc
    async def GetMachineStatus(self, call: Call, request: Any, context: Any) -> pb.GetMachineStatusResponse:
        """Reads the VM and changes nothing."""
        vm = await look(self.driver, call, self._machine(call, request))
        beside(context, vm)
        return pb.GetMachineStatusResponse(ProviderID=vm.id, NodeName=vm.shown_name)

    @rpc
    async def ListMachines(self, call: Call, request: Any, context: Any) -> pb.ListMachinesResponse:
        """Lists the VMs of one cluster."""
        found = await listed(self.driver, call, request.ProviderSpec)
        return pb.ListMachinesResponse(MachineList={vm.id: vm.name for vm in found})

    @rpc
    async def ShutDownMachine(self, call: Call, request: Any, context: Any) -> pb.ShutDownMachineResponse:
        """Asks the guest to stop."""
        require(self.driver, Stopper, "ShutDownMachine")
        machine = self._machine(call, request)
        async with self.driver.changing(call, machine) as vm:
            if vm.power != Power.STOPPED:
                await self.driver.change(call, machine.id, vm, self.driver.backend.stop)
        return pb.ShutDownMachineResponse()

    @rpc
    async def GetVolumeIDs(self, call: Call, request: Any, context: Any) -> pb.GetVolumeIDsResponse:
        """Returns the ids of the back end's volumes, in their order."""
        require(self.driver, VolumeFinder, "GetVolumeIDs")
        try:
            specs = json.loads(request.PVSpecList)
        except (ValueError, RecursionError) as error:
            raise BadRequest("PVSpecList is not JSON") from error
        if not isinstance(specs, list):
            raise BadRequest("PVSpecList is not a JSON array of PersistentVolumeSpecs")
        volumes = [_volume(position, spec) for position, spec in enumerate(specs)]
        find = self.driver.backend.volume_id
        found = [await self.driver.reach(find, call, volume) for volume in volumes]
        return pb.GetVolumeIDsResponse(VolumeIDs=[id for id in found if id])

    def _machine(self, call: Call, request: Any) -> Machine[Spec]:
        driver = self.driver
        return driver.machine(call, request.MachineName, request.ProviderSpec, request.ProviderID, driver.specs.decode)


def _volume(position: int, spec: Any) -> PersistentVolume:
    csi = spec.get("csi", {}) if isinstance(spec, dict) else 0
    if not isinstance(csi, dict | None):
        raise BadRequest(f"PVSpecList /{position} is not a PersistentVolumeSpec")
    csi = csi or {}
    driver, handle = ("" if csi.get(name) is None else csi[name] for name in ("driver", "volumeHandle"))
    if not isinstance(driver, str) or not isinstance(handle, str):
        raise BadRequest(f"PVSpecList /{position}/csi has a driver or a volumeHandle that is not a text")
    return PersistentVolume(spec, driver, handle)


def require(driver: Driver[Any], protocol: type, name: str) -> None:
    """Refuses a call that the back end does not offer."""
    if not implements(driver.backend, protocol):
        raise Unimplemented(f"the driver does not offer {name}")


def refuse_uninitialized(vm: VM) -> None:
    """Raises an error with the VM while it is not initialized."""
    if vm.uninitialized:
        error = Uninitialized(f"the VM {vm.id} is not initialized: {vm.uninitialized}")
        error.vm = vm
        raise error


async def look(driver: Driver[Spec], call: Call, machine: Machine[Spec]) -> VM:
    """Returns the VM of a request."""
    vm = await driver.one(call, machine)
    refuse_uninitialized(vm)
    return vm


async def listed(driver: Driver[Any], call: Call, text: bytes) -> list[VM]:
    """Returns the VMs of the cluster in a spec."""
    read = driver.specs.decode(text)
    require_tags(read.tags, [CLUSTER_TAG])
    cluster = read.tags[CLUSTER_TAG]
    every = await driver.reach(driver.backend.list, call, cluster, read.spec)
    return [vm for vm in every if vm.tags.get(CLUSTER_TAG) == cluster]
