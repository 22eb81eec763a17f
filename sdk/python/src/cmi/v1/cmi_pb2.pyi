from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
CMI_SECRET_FIELD_NUMBER: _ClassVar[int]
cmi_secret: _descriptor.FieldDescriptor

class GetPluginInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPluginInfoResponse(_message.Message):
    __slots__ = ("name", "version", "manifest")
    class ManifestEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    manifest: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., manifest: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetPluginCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPluginCapabilitiesResponse(_message.Message):
    __slots__ = ("capabilities",)
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedCompositeFieldContainer[PluginCapability]
    def __init__(self, capabilities: _Optional[_Iterable[_Union[PluginCapability, _Mapping]]] = ...) -> None: ...

class PluginCapability(_message.Message):
    __slots__ = ("rpc",)
    class RPC(_message.Message):
        __slots__ = ("type",)
        class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            UNKNOWN: _ClassVar[PluginCapability.RPC.Type]
            CREATE_MACHINE: _ClassVar[PluginCapability.RPC.Type]
            DELETE_MACHINE: _ClassVar[PluginCapability.RPC.Type]
            GET_MACHINE_STATUS: _ClassVar[PluginCapability.RPC.Type]
            LIST_MACHINES: _ClassVar[PluginCapability.RPC.Type]
            SHUTDOWN_MACHINE: _ClassVar[PluginCapability.RPC.Type]
            GET_VOLUME_IDS: _ClassVar[PluginCapability.RPC.Type]
        UNKNOWN: PluginCapability.RPC.Type
        CREATE_MACHINE: PluginCapability.RPC.Type
        DELETE_MACHINE: PluginCapability.RPC.Type
        GET_MACHINE_STATUS: PluginCapability.RPC.Type
        LIST_MACHINES: PluginCapability.RPC.Type
        SHUTDOWN_MACHINE: PluginCapability.RPC.Type
        GET_VOLUME_IDS: PluginCapability.RPC.Type
        TYPE_FIELD_NUMBER: _ClassVar[int]
        type: PluginCapability.RPC.Type
        def __init__(self, type: _Optional[_Union[PluginCapability.RPC.Type, str]] = ...) -> None: ...
    RPC_FIELD_NUMBER: _ClassVar[int]
    rpc: PluginCapability.RPC
    def __init__(self, rpc: _Optional[_Union[PluginCapability.RPC, _Mapping]] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProbeResponse(_message.Message):
    __slots__ = ("ready",)
    READY_FIELD_NUMBER: _ClassVar[int]
    ready: _wrappers_pb2.BoolValue
    def __init__(self, ready: _Optional[_Union[_wrappers_pb2.BoolValue, _Mapping]] = ...) -> None: ...

class CreateMachineRequest(_message.Message):
    __slots__ = ("MachineName", "ProviderSpec", "Secrets", "LastKnownState")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINENAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDERSPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    LASTKNOWNSTATE_FIELD_NUMBER: _ClassVar[int]
    MachineName: str
    ProviderSpec: bytes
    Secrets: _containers.ScalarMap[str, bytes]
    LastKnownState: bytes
    def __init__(self, MachineName: _Optional[str] = ..., ProviderSpec: _Optional[bytes] = ..., Secrets: _Optional[_Mapping[str, bytes]] = ..., LastKnownState: _Optional[bytes] = ...) -> None: ...

class CreateMachineResponse(_message.Message):
    __slots__ = ("ProviderID", "NodeName", "LastKnownState")
    PROVIDERID_FIELD_NUMBER: _ClassVar[int]
    NODENAME_FIELD_NUMBER: _ClassVar[int]
    LASTKNOWNSTATE_FIELD_NUMBER: _ClassVar[int]
    ProviderID: str
    NodeName: str
    LastKnownState: bytes
    def __init__(self, ProviderID: _Optional[str] = ..., NodeName: _Optional[str] = ..., LastKnownState: _Optional[bytes] = ...) -> None: ...

class DeleteMachineRequest(_message.Message):
    __slots__ = ("MachineName", "ProviderSpec", "Secrets", "ProviderID", "LastKnownState")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINENAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDERSPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERID_FIELD_NUMBER: _ClassVar[int]
    LASTKNOWNSTATE_FIELD_NUMBER: _ClassVar[int]
    MachineName: str
    ProviderSpec: bytes
    Secrets: _containers.ScalarMap[str, bytes]
    ProviderID: str
    LastKnownState: bytes
    def __init__(self, MachineName: _Optional[str] = ..., ProviderSpec: _Optional[bytes] = ..., Secrets: _Optional[_Mapping[str, bytes]] = ..., ProviderID: _Optional[str] = ..., LastKnownState: _Optional[bytes] = ...) -> None: ...

class DeleteMachineResponse(_message.Message):
    __slots__ = ("LastKnownState",)
    LASTKNOWNSTATE_FIELD_NUMBER: _ClassVar[int]
    LastKnownState: bytes
    def __init__(self, LastKnownState: _Optional[bytes] = ...) -> None: ...

class GetMachineStatusRequest(_message.Message):
    __slots__ = ("MachineName", "ProviderSpec", "Secrets", "ProviderID")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINENAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDERSPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERID_FIELD_NUMBER: _ClassVar[int]
    MachineName: str
    ProviderSpec: bytes
    Secrets: _containers.ScalarMap[str, bytes]
    ProviderID: str
    def __init__(self, MachineName: _Optional[str] = ..., ProviderSpec: _Optional[bytes] = ..., Secrets: _Optional[_Mapping[str, bytes]] = ..., ProviderID: _Optional[str] = ...) -> None: ...

class GetMachineStatusResponse(_message.Message):
    __slots__ = ("ProviderID", "NodeName")
    PROVIDERID_FIELD_NUMBER: _ClassVar[int]
    NODENAME_FIELD_NUMBER: _ClassVar[int]
    ProviderID: str
    NodeName: str
    def __init__(self, ProviderID: _Optional[str] = ..., NodeName: _Optional[str] = ...) -> None: ...

class ListMachinesRequest(_message.Message):
    __slots__ = ("ProviderSpec", "Secrets")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    PROVIDERSPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    ProviderSpec: bytes
    Secrets: _containers.ScalarMap[str, bytes]
    def __init__(self, ProviderSpec: _Optional[bytes] = ..., Secrets: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class ListMachinesResponse(_message.Message):
    __slots__ = ("MachineList",)
    class MachineListEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MACHINELIST_FIELD_NUMBER: _ClassVar[int]
    MachineList: _containers.ScalarMap[str, str]
    def __init__(self, MachineList: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ShutDownMachineRequest(_message.Message):
    __slots__ = ("MachineName", "ProviderSpec", "Secrets", "ProviderID", "LastKnownState")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINENAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDERSPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERID_FIELD_NUMBER: _ClassVar[int]
    LASTKNOWNSTATE_FIELD_NUMBER: _ClassVar[int]
    MachineName: str
    ProviderSpec: bytes
    Secrets: _containers.ScalarMap[str, bytes]
    ProviderID: str
    LastKnownState: bytes
    def __init__(self, MachineName: _Optional[str] = ..., ProviderSpec: _Optional[bytes] = ..., Secrets: _Optional[_Mapping[str, bytes]] = ..., ProviderID: _Optional[str] = ..., LastKnownState: _Optional[bytes] = ...) -> None: ...

class ShutDownMachineResponse(_message.Message):
    __slots__ = ("LastKnownState",)
    LASTKNOWNSTATE_FIELD_NUMBER: _ClassVar[int]
    LastKnownState: bytes
    def __init__(self, LastKnownState: _Optional[bytes] = ...) -> None: ...

class GetVolumeIDsRequest(_message.Message):
    __slots__ = ("PVSpecList",)
    PVSPECLIST_FIELD_NUMBER: _ClassVar[int]
    PVSpecList: bytes
    def __init__(self, PVSpecList: _Optional[bytes] = ...) -> None: ...

class GetVolumeIDsResponse(_message.Message):
    __slots__ = ("VolumeIDs",)
    VOLUMEIDS_FIELD_NUMBER: _ClassVar[int]
    VolumeIDs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, VolumeIDs: _Optional[_Iterable[str]] = ...) -> None: ...
