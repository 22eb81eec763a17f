import datetime

from cmi.v1 import cmi_pb2 as _cmi_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PowerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POWER_STATE_UNSPECIFIED: _ClassVar[PowerState]
    STARTING: _ClassVar[PowerState]
    RUNNING: _ClassVar[PowerState]
    STOPPING: _ClassVar[PowerState]
    STOPPED: _ClassVar[PowerState]
    FAILED: _ClassVar[PowerState]
POWER_STATE_UNSPECIFIED: PowerState
STARTING: PowerState
RUNNING: PowerState
STOPPING: PowerState
STOPPED: PowerState
FAILED: PowerState

class GetExtensionCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetExtensionCapabilitiesResponse(_message.Message):
    __slots__ = ("calls", "zones", "consistency_window", "tag_path", "hot_updatable", "provider_spec_schema", "list_has_state", "address_path")
    class Call(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CALL_UNSPECIFIED: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        INITIALIZE_MACHINE: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        UPDATE_MACHINE: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        GENERATE_MACHINE_CLASS_FOR_MIGRATION: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        GET_MACHINE: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        LIST_MACHINES_PAGED: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        LIST_ZONES: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        DESCRIBE_CLASS: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        RESTART_MACHINE: _ClassVar[GetExtensionCapabilitiesResponse.Call]
        GET_CONSOLE: _ClassVar[GetExtensionCapabilitiesResponse.Call]
    CALL_UNSPECIFIED: GetExtensionCapabilitiesResponse.Call
    INITIALIZE_MACHINE: GetExtensionCapabilitiesResponse.Call
    UPDATE_MACHINE: GetExtensionCapabilitiesResponse.Call
    GENERATE_MACHINE_CLASS_FOR_MIGRATION: GetExtensionCapabilitiesResponse.Call
    GET_MACHINE: GetExtensionCapabilitiesResponse.Call
    LIST_MACHINES_PAGED: GetExtensionCapabilitiesResponse.Call
    LIST_ZONES: GetExtensionCapabilitiesResponse.Call
    DESCRIBE_CLASS: GetExtensionCapabilitiesResponse.Call
    RESTART_MACHINE: GetExtensionCapabilitiesResponse.Call
    GET_CONSOLE: GetExtensionCapabilitiesResponse.Call
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ZONES_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_WINDOW_FIELD_NUMBER: _ClassVar[int]
    TAG_PATH_FIELD_NUMBER: _ClassVar[int]
    HOT_UPDATABLE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_SPEC_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LIST_HAS_STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_PATH_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedScalarFieldContainer[GetExtensionCapabilitiesResponse.Call]
    zones: bool
    consistency_window: _duration_pb2.Duration
    tag_path: str
    hot_updatable: _containers.RepeatedScalarFieldContainer[str]
    provider_spec_schema: bytes
    list_has_state: bool
    address_path: str
    def __init__(self, calls: _Optional[_Iterable[_Union[GetExtensionCapabilitiesResponse.Call, str]]] = ..., zones: _Optional[bool] = ..., consistency_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tag_path: _Optional[str] = ..., hot_updatable: _Optional[_Iterable[str]] = ..., provider_spec_schema: _Optional[bytes] = ..., list_has_state: _Optional[bool] = ..., address_path: _Optional[str] = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("provider_id", "node_name", "addresses", "power_state", "failure_domain", "last_known_state")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    POWER_STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_STATE_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    node_name: str
    addresses: _containers.RepeatedCompositeFieldContainer[MachineAddress]
    power_state: PowerState
    failure_domain: str
    last_known_state: bytes
    def __init__(self, provider_id: _Optional[str] = ..., node_name: _Optional[str] = ..., addresses: _Optional[_Iterable[_Union[MachineAddress, _Mapping]]] = ..., power_state: _Optional[_Union[PowerState, str]] = ..., failure_domain: _Optional[str] = ..., last_known_state: _Optional[bytes] = ...) -> None: ...

class MachineAddress(_message.Message):
    __slots__ = ("type", "address")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TYPE_UNSPECIFIED: _ClassVar[MachineAddress.Type]
        HOSTNAME: _ClassVar[MachineAddress.Type]
        EXTERNAL_IP: _ClassVar[MachineAddress.Type]
        INTERNAL_IP: _ClassVar[MachineAddress.Type]
        EXTERNAL_DNS: _ClassVar[MachineAddress.Type]
        INTERNAL_DNS: _ClassVar[MachineAddress.Type]
    TYPE_UNSPECIFIED: MachineAddress.Type
    HOSTNAME: MachineAddress.Type
    EXTERNAL_IP: MachineAddress.Type
    INTERNAL_IP: MachineAddress.Type
    EXTERNAL_DNS: MachineAddress.Type
    INTERNAL_DNS: MachineAddress.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    type: MachineAddress.Type
    address: str
    def __init__(self, type: _Optional[_Union[MachineAddress.Type, str]] = ..., address: _Optional[str] = ...) -> None: ...

class InitializeMachineRequest(_message.Message):
    __slots__ = ("machine_name", "provider_spec", "secrets", "provider_id", "last_known_state")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINE_NAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_STATE_FIELD_NUMBER: _ClassVar[int]
    machine_name: str
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    provider_id: str
    last_known_state: bytes
    def __init__(self, machine_name: _Optional[str] = ..., provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ..., provider_id: _Optional[str] = ..., last_known_state: _Optional[bytes] = ...) -> None: ...

class UpdateMachineRequest(_message.Message):
    __slots__ = ("machine_name", "provider_id", "last_applied_provider_spec", "provider_spec", "secrets", "last_known_state")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINE_NAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_STATE_FIELD_NUMBER: _ClassVar[int]
    machine_name: str
    provider_id: str
    last_applied_provider_spec: bytes
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    last_known_state: bytes
    def __init__(self, machine_name: _Optional[str] = ..., provider_id: _Optional[str] = ..., last_applied_provider_spec: _Optional[bytes] = ..., provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ..., last_known_state: _Optional[bytes] = ...) -> None: ...

class UpdateMachineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GenerateMachineClassForMigrationRequest(_message.Message):
    __slots__ = ("provider_specific_machine_class", "machine_class", "class_api_group", "class_kind")
    PROVIDER_SPECIFIC_MACHINE_CLASS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_CLASS_FIELD_NUMBER: _ClassVar[int]
    CLASS_API_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLASS_KIND_FIELD_NUMBER: _ClassVar[int]
    provider_specific_machine_class: bytes
    machine_class: bytes
    class_api_group: str
    class_kind: str
    def __init__(self, provider_specific_machine_class: _Optional[bytes] = ..., machine_class: _Optional[bytes] = ..., class_api_group: _Optional[str] = ..., class_kind: _Optional[str] = ...) -> None: ...

class GenerateMachineClassForMigrationResponse(_message.Message):
    __slots__ = ("machine_class",)
    MACHINE_CLASS_FIELD_NUMBER: _ClassVar[int]
    machine_class: bytes
    def __init__(self, machine_class: _Optional[bytes] = ...) -> None: ...

class GetMachineRequest(_message.Message):
    __slots__ = ("machine_name", "provider_spec", "secrets", "provider_id")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINE_NAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    machine_name: str
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    provider_id: str
    def __init__(self, machine_name: _Optional[str] = ..., provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ..., provider_id: _Optional[str] = ...) -> None: ...

class ListMachinesPagedRequest(_message.Message):
    __slots__ = ("provider_spec", "secrets", "page_size", "page_token")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    page_size: int
    page_token: str
    def __init__(self, provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListMachinesPagedResponse(_message.Message):
    __slots__ = ("machines", "next_page_token")
    class ListedMachine(_message.Message):
        __slots__ = ("provider_id", "machine_name", "cluster_id", "machine_id", "created_at", "addresses", "power_state")
        PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
        MACHINE_NAME_FIELD_NUMBER: _ClassVar[int]
        CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
        MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
        CREATED_AT_FIELD_NUMBER: _ClassVar[int]
        ADDRESSES_FIELD_NUMBER: _ClassVar[int]
        POWER_STATE_FIELD_NUMBER: _ClassVar[int]
        provider_id: str
        machine_name: str
        cluster_id: str
        machine_id: str
        created_at: _timestamp_pb2.Timestamp
        addresses: _containers.RepeatedCompositeFieldContainer[MachineAddress]
        power_state: PowerState
        def __init__(self, provider_id: _Optional[str] = ..., machine_name: _Optional[str] = ..., cluster_id: _Optional[str] = ..., machine_id: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., addresses: _Optional[_Iterable[_Union[MachineAddress, _Mapping]]] = ..., power_state: _Optional[_Union[PowerState, str]] = ...) -> None: ...
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    machines: _containers.RepeatedCompositeFieldContainer[ListMachinesPagedResponse.ListedMachine]
    next_page_token: str
    def __init__(self, machines: _Optional[_Iterable[_Union[ListMachinesPagedResponse.ListedMachine, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListZonesRequest(_message.Message):
    __slots__ = ("provider_spec", "secrets")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    def __init__(self, provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class ListZonesResponse(_message.Message):
    __slots__ = ("zones",)
    class Zone(_message.Message):
        __slots__ = ("name", "control_plane", "attributes")
        class AttributesEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        CONTROL_PLANE_FIELD_NUMBER: _ClassVar[int]
        ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
        name: str
        control_plane: bool
        attributes: _containers.ScalarMap[str, str]
        def __init__(self, name: _Optional[str] = ..., control_plane: _Optional[bool] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...
    ZONES_FIELD_NUMBER: _ClassVar[int]
    zones: _containers.RepeatedCompositeFieldContainer[ListZonesResponse.Zone]
    def __init__(self, zones: _Optional[_Iterable[_Union[ListZonesResponse.Zone, _Mapping]]] = ...) -> None: ...

class DescribeClassRequest(_message.Message):
    __slots__ = ("provider_spec", "secrets")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    def __init__(self, provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class DescribeClassResponse(_message.Message):
    __slots__ = ("capacity", "architecture", "operating_system")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    OPERATING_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    capacity: _containers.ScalarMap[str, str]
    architecture: str
    operating_system: str
    def __init__(self, capacity: _Optional[_Mapping[str, str]] = ..., architecture: _Optional[str] = ..., operating_system: _Optional[str] = ...) -> None: ...

class RestartMachineRequest(_message.Message):
    __slots__ = ("machine_name", "provider_spec", "secrets", "provider_id", "last_known_state")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINE_NAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_STATE_FIELD_NUMBER: _ClassVar[int]
    machine_name: str
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    provider_id: str
    last_known_state: bytes
    def __init__(self, machine_name: _Optional[str] = ..., provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ..., provider_id: _Optional[str] = ..., last_known_state: _Optional[bytes] = ...) -> None: ...

class RestartMachineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConsoleRequest(_message.Message):
    __slots__ = ("machine_name", "provider_spec", "secrets", "provider_id")
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MACHINE_NAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_SPEC_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    machine_name: str
    provider_spec: bytes
    secrets: _containers.ScalarMap[str, bytes]
    provider_id: str
    def __init__(self, machine_name: _Optional[str] = ..., provider_spec: _Optional[bytes] = ..., secrets: _Optional[_Mapping[str, bytes]] = ..., provider_id: _Optional[str] = ...) -> None: ...

class GetConsoleResponse(_message.Message):
    __slots__ = ("output",)
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    output: bytes
    def __init__(self, output: _Optional[bytes] = ...) -> None: ...
