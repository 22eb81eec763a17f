"""The services of cmi.v1 and capcmi.v1: each call unpacks its request, calls the driver and packs its answer."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import grpc
from capcmi.v1 import capcmi_pb2 as ext
from capcmi.v1 import capcmi_pb2_grpc as ext_services
from cmi.v1 import cmi_pb2 as cmi
from cmi.v1 import cmi_pb2_grpc as cmi_services
from google.protobuf.duration_pb2 import Duration
from google.protobuf.wrappers_pb2 import BoolValue

from . import spec as specs
from . import volumes, wire
from .contract import Code, Failure
from .driver import Driver, Request
from .health import Health

NAME, VERSION = "ec2.capcmi.io", "0.1.0"

Context: TypeAlias = grpc.ServicerContext
_Rpc = cmi.PluginCapability.RPC
_Extension = ext.GetExtensionCapabilitiesResponse


class Identity(cmi_services.IdentityServicer):
    """The driver's name, what it can do, and whether it can now."""

    def __init__(self, health: Health) -> None:
        self._health = health

    @wire.call
    def GetPluginInfo(self, request: Any, context: Context) -> cmi.GetPluginInfoResponse:
        return cmi.GetPluginInfoResponse(name=NAME, version=VERSION)

    @wire.call
    def GetPluginCapabilities(self, request: Any, context: Context) -> cmi.GetPluginCapabilitiesResponse:
        calls = (
            _Rpc.CREATE_MACHINE,
            _Rpc.DELETE_MACHINE,
            _Rpc.GET_MACHINE_STATUS,
            _Rpc.LIST_MACHINES,
            _Rpc.SHUTDOWN_MACHINE,
            _Rpc.GET_VOLUME_IDS,
        )
        return cmi.GetPluginCapabilitiesResponse(
            capabilities=[cmi.PluginCapability(rpc=_Rpc(type=call)) for call in calls]
        )

    @wire.call
    def Probe(self, request: Any, context: Context) -> cmi.ProbeResponse:
        # The driver has no credentials of its own: what it could ask EC2 now says
        # nothing about the next call.
        return cmi.ProbeResponse(ready=BoolValue(value=self._health.is_ready()))


class Machine(cmi_services.MachineServicer):
    """The calls of cmi.v1."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @wire.call
    def CreateMachine(self, request: cmi.CreateMachineRequest, context: Context) -> cmi.CreateMachineResponse:
        made = self._driver.create(_request(request, context))
        wire.add_machine(context, made)
        return cmi.CreateMachineResponse(
            ProviderID=made.provider_id, NodeName=made.node_name, LastKnownState=made.last_known_state
        )

    @wire.call
    def DeleteMachine(self, request: cmi.DeleteMachineRequest, context: Context) -> cmi.DeleteMachineResponse:
        self._driver.delete(_request(request, context))
        return cmi.DeleteMachineResponse()

    @wire.call
    def GetMachineStatus(self, request: cmi.GetMachineStatusRequest, context: Context) -> cmi.GetMachineStatusResponse:
        found = self._driver.status(_request(request, context))
        wire.add_machine(context, found)
        return cmi.GetMachineStatusResponse(ProviderID=found.provider_id, NodeName=found.node_name)

    @wire.call
    def ListMachines(self, request: cmi.ListMachinesRequest, context: Context) -> cmi.ListMachinesResponse:
        found = self._driver.list_all(wire.provider_spec(request.ProviderSpec), wire.secrets(request))
        return cmi.ListMachinesResponse(MachineList={each.provider_id: each.name for each in found})

    @wire.call
    def ShutDownMachine(self, request: cmi.ShutDownMachineRequest, context: Context) -> cmi.ShutDownMachineResponse:
        self._driver.shut_down(_request(request, context))
        return cmi.ShutDownMachineResponse()

    @wire.call
    def GetVolumeIDs(self, request: cmi.GetVolumeIDsRequest, context: Context) -> cmi.GetVolumeIDsResponse:
        return cmi.GetVolumeIDsResponse(VolumeIDs=volumes.ids(request.PVSpecList))


class Extension(ext_services.MachineExtensionServicer):
    """The calls of capcmi.v1."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @wire.call
    def GetExtensionCapabilities(self, request: Any, context: Context) -> ext.GetExtensionCapabilitiesResponse:
        window = Duration()
        window.FromMilliseconds(round(self._driver.settings.consistency_window * 1000))
        return _Extension(
            calls=[
                _Extension.INITIALIZE_MACHINE,
                _Extension.UPDATE_MACHINE,
                _Extension.GET_MACHINE,
                _Extension.LIST_MACHINES_PAGED,
                _Extension.LIST_ZONES,
                _Extension.DESCRIBE_CLASS,
            ],
            zones=True,
            consistency_window=window,
            tag_path=specs.TAG_PATH,
            hot_updatable=specs.HOT_UPDATABLE,
            provider_spec_schema=json.dumps(specs.SCHEMA).encode(),
        )

    @wire.call
    def InitializeMachine(self, request: ext.InitializeMachineRequest, context: Context) -> ext.Machine:
        return wire.machine(self._driver.initialize(_extension_request(request, context)))

    @wire.call
    def UpdateMachine(self, request: ext.UpdateMachineRequest, context: Context) -> ext.UpdateMachineResponse:
        if not request.provider_id:
            raise Failure(Code.INVALID_ARGUMENT, "provider_id is required")
        last_applied = wire.provider_spec(request.last_applied_provider_spec, "last_applied_provider_spec")
        self._driver.update(_extension_request(request, context), last_applied)
        return ext.UpdateMachineResponse()

    @wire.call
    def GetMachine(self, request: ext.GetMachineRequest, context: Context) -> ext.Machine:
        return wire.machine(self._driver.status(_extension_request(request, context)))

    @wire.call
    def ListMachinesPaged(
        self, request: ext.ListMachinesPagedRequest, context: Context
    ) -> ext.ListMachinesPagedResponse:
        found, following = self._driver.list_page(
            wire.provider_spec(request.provider_spec, "provider_spec"),
            wire.secrets(request),
            request.page_size,
            request.page_token,
        )
        machines = [wire.listed(each) for each in found]
        return ext.ListMachinesPagedResponse(machines=machines, next_page_token=following)

    @wire.call
    def ListZones(self, request: ext.ListZonesRequest, context: Context) -> ext.ListZonesResponse:
        zones = self._driver.zones(wire.provider_spec(request.provider_spec, "provider_spec"), wire.secrets(request))
        return ext.ListZonesResponse(
            zones=[
                ext.ListZonesResponse.Zone(name=zone.name, control_plane=True, attributes=zone.attributes)
                for zone in zones
            ]
        )

    @wire.call
    def DescribeClass(self, request: ext.DescribeClassRequest, context: Context) -> ext.DescribeClassResponse:
        described = self._driver.describe_class(
            wire.provider_spec(request.provider_spec, "provider_spec"), wire.secrets(request)
        )
        return ext.DescribeClassResponse(
            capacity=described.capacity, architecture=described.architecture, operating_system="linux"
        )


def add_to(server: grpc.Server, driver: Driver, health: Health) -> None:
    """Puts the services on a server."""
    cmi_services.add_IdentityServicer_to_server(Identity(health), server)
    cmi_services.add_MachineServicer_to_server(Machine(driver), server)
    ext_services.add_MachineExtensionServicer_to_server(Extension(driver), server)


def _request(request: Any, context: Context) -> Request:
    return Request(
        name=request.MachineName,
        provider_spec=wire.provider_spec(request.ProviderSpec),
        secrets=wire.secrets(request),
        provider_id=getattr(request, "ProviderID", ""),
        last_known_state=getattr(request, "LastKnownState", b""),
        time_left=wire.time_left(context),
    )


def _extension_request(request: Any, context: Context) -> Request:
    return Request(
        name=request.machine_name,
        provider_spec=wire.provider_spec(request.provider_spec, "provider_spec"),
        secrets=wire.secrets(request),
        provider_id=request.provider_id,
        last_known_state=getattr(request, "last_known_state", b""),
        time_left=wire.time_left(context),
    )
