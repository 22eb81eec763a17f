"""The interface of a back end, and the optional ones."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, get_args, get_origin

from .call import Call
from .vm import VM, Bootstrap, Identity

Spec = TypeVar("Spec")
_In = TypeVar("_In", contravariant=True)
_T = TypeVar("_T")

Answer: TypeAlias = _T | Awaitable[_T]
VMs: TypeAlias = Iterable[VM] | Awaitable[Iterable[VM]] | AsyncIterable[VM]


class Backend(ABC, Generic[Spec]):
    """The VM platform of a driver. Spec is a dataclass with the fields of the provider spec; see `main`.

    Each method is a function or a coroutine. Functions run in threads; coroutines share one event loop and must not
    block. Calls arrive in parallel, at most one of `create`, `delete` and other changes for each machine. When the
    caller leaves, coroutines are cancelled. A function cannot be cancelled: pass Call.time_left() to every request.

    Errors of this package, such as Unavailable, choose the code of the answer. Any other error becomes UNKNOWN, or
    UNAVAILABLE when the platform could not be reached.
    """

    @abstractmethod
    def find(self, call: Call, id: Identity, spec: Spec) -> VMs:
        """Returns every VM with the cluster and the name of `id`, whoever owns it.

        The result is empty only when the platform confirmed that no VM exists: the caller then creates one.
        """

    @abstractmethod
    def create(self, call: Call, id: Identity, spec: Spec, boot: Bootstrap) -> Answer[VM]:
        """Makes a VM and stores `id.tags` and the name with it, in the request that makes it.

        `find` has returned no VM of this name.
        """

    @abstractmethod
    def delete(self, call: Call, vm: VM) -> Answer[None]:
        """Deletes a VM that `find` has returned, with its disks and addresses.

        It may return while the platform is still busy: the package looks the VM up again, and answers OK only when it
        is gone.
        """

    @abstractmethod
    def list(self, call: Call, cluster: str, spec: Spec) -> VMs:
        """Returns all VMs of a cluster."""


class Prober(Protocol):
    """A back end that checks its own health. The check runs every few seconds and should not call the platform."""

    def probe(self, call: Call) -> Answer[None]:
        """Raises Starting, or another error with the reason why the driver cannot serve."""


class Matcher(Protocol[_In]):
    """A back end that compares a VM with a spec. Without it, the package compares a digest in the tag SPEC_TAG."""

    def match(self, call: Call, vm: VM, spec: _In) -> Answer[str]:
        """Returns a difference for the operator, or the empty string. Fields that `update` changes do not count."""


class Locker(Protocol):
    """A back end that several driver processes use, and that has a lock for a machine.

    The package holds the lock during each changing call, beside its own lock in memory.
    """

    def lock(self, call: Call, id: Identity) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Returns the lock as a context manager. It raises Busy when another process holds the lock.

        A synchronous one may be left in another thread.
        """


class Stopper(Protocol):
    """A back end that can ask a guest to stop."""

    def stop(self, call: Call, vm: VM) -> Answer[None]:
        """Asks the guest to stop and does not wait for it."""


class Starter(Protocol):
    """A back end that can start a VM that is off. A restart of such a VM calls `start`."""

    def start(self, call: Call, vm: VM) -> Answer[None]:
        """Starts the VM and does not wait for the guest."""


class Restarter(Protocol):
    """A back end that can reset a VM whose guest may hang."""

    def restart(self, call: Call, vm: VM) -> Answer[None]:
        """Resets the VM and does not wait for the guest. A repeat may restart the VM once more."""


class Initializer(Protocol[_In]):
    """A back end with steps that need an existing VM.

    Its VMs have a reason in VM.uninitialized until they are initialized.
    """

    def initialize(self, call: Call, vm: VM, spec: _In) -> Answer[None]:
        """Does the missing steps. A repeat does no step again."""


@dataclass(frozen=True)
class Change(Generic[Spec]):
    """The work of an Updater."""

    spec: Spec
    """The wanted spec."""
    last_applied: Spec
    """The spec of the last successful create or update."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """All tags that the VM must have."""
    set_tags: Mapping[str, str] = field(default_factory=dict)
    """The tags that the VM lacks or has with another value."""
    remove_tags: tuple[str, ...] = ()
    """The names of tags that the last applied spec has and the wanted spec lacks."""


class Updater(Protocol[Spec]):
    """A back end that can change a running VM. Fields with `hot` and all tags are updatable."""

    def update(self, call: Call, vm: VM, change: Change[Spec]) -> Answer[None]:
        """Compares the VM with `change.spec` and changes the rest. A repeat changes nothing."""


@dataclass(frozen=True)
class Zone:
    """A failure domain."""

    name: str
    control_plane: bool = False
    """Whether control-plane machines may be placed there."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Facts for users."""


class Zoner(Protocol[_In]):
    """A back end with failure domains. Its Spec has a field `failure_domain`, which the caller sets."""

    def zones(self, call: Call, spec: _In | None) -> Answer[Iterable[Zone]]:
        """Returns the failure domains. Without a spec, the result has all of them."""


@dataclass(frozen=True)
class Size:
    """The resources of a machine."""

    capacity: Mapping[str, str]
    """Kubernetes quantities by resource name: `{"cpu": "4", "memory": "16Gi"}`."""
    architecture: str = ""
    """`amd64`, `arm64`, `s390x` or `ppc64le`."""
    operating_system: str = ""
    """`linux` or `windows`."""


class Sizer(Protocol[_In]):
    """A back end that knows the resources of a machine before it exists, for autoscalers."""

    def size(self, call: Call, spec: _In) -> Answer[Size]:
        """Returns the resources of a machine with this spec."""


class Consoler(Protocol):
    """A back end that records the serial console of a VM."""

    def console(self, call: Call, vm: VM) -> Answer[bytes]:
        """Returns the latest output. Forbidden means that the VM has no console."""


@dataclass(frozen=True)
class PersistentVolume:
    """The spec of a PersistentVolume."""

    spec: Mapping[str, Any]
    """The whole PersistentVolumeSpec."""
    driver: str = ""
    """The driver of a CSI volume, and empty for others."""
    handle: str = ""
    """The handle of a CSI volume, and empty for others."""


class VolumeFinder(Protocol):
    """A back end that recognises its volumes in PersistentVolumes."""

    def volume_id(self, call: Call, volume: PersistentVolume) -> Answer[str]:
        """Returns the id of the volume, or the empty string for a volume of somebody else."""


@dataclass(frozen=True)
class ProviderClass:
    """A machine class of a platform's own kind, such as AWSMachineClass."""

    api_group: str
    kind: str
    object: bytes
    """The class as JSON."""


class Migrator(Protocol):
    """A back end that converts machine classes of machine-controller-manager."""

    def migrate(self, call: Call, source: ProviderClass, machine_class: bytes) -> Answer[bytes]:
        """Returns the class, as JSON, filled from the provider's own class. The metadata of the class stays."""


@dataclass(frozen=True)
class Info:
    """Describes a driver."""

    name: str
    """A name in domain name notation, such as `acme.example.com`, with at most 63 bytes."""
    version: str
    """A semantic version by custom."""
    manifest: Mapping[str, str] = field(default_factory=dict)
    """Further facts for `capcmi driver info`."""
    consistency_window: float = 0
    """For how many seconds the platform may return an outdated state.

    The caller believes that a VM is gone only after that time.
    """
    list_has_state: bool = False
    """Whether `list` sets `addresses` and `power` of each VM as `find` does.

    The caller lists every minute, and then sees changes without a call for each VM. Leave it out if that takes `list` a
    remote call for each VM.
    """


def implements(backend: object, protocol: type) -> bool:
    """Says whether a back end's class has the methods of a protocol. A field such as `size` does not count."""
    return all(callable(getattr(type(backend), name, None)) for name in _methods(protocol))


_OPTIONAL: tuple[type, ...] = (
    Prober, Matcher, Locker, Stopper, Starter, Restarter, Initializer,
    Updater, Zoner, Sizer, Consoler, VolumeFinder, Migrator,
)  # fmt: skip


def check_signatures(backend: Backend[Any]) -> None:
    """Refuses a method that cannot take its arguments, before the first call does.

    Raises:
        TypeError: A method takes other arguments.
    """
    for protocol in (Backend, *_OPTIONAL):
        if not implements(backend, protocol):
            continue
        for name in _methods(protocol):
            wanted = list(inspect.signature(getattr(protocol, name)).parameters)[1:]
            try:
                inspect.signature(getattr(backend, name)).bind(*wanted)
            except TypeError as error:
                shown = f"{type(backend).__name__}.{name}"
                raise TypeError(f"{shown} must take ({', '.join(wanted)}), as {protocol.__name__}.{name}") from error


def _methods(protocol: type) -> tuple[str, ...]:
    return tuple(name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_")


def spec_type(backend: Backend[Any]) -> type:
    """Returns the type in `Backend[Spec]`.

    Raises:
        TypeError: The class of the back end does not name it.
    """
    for each in type(backend).__mro__:
        for base in getattr(each, "__orig_bases__", ()):
            if get_origin(base) is Backend and isinstance(get_args(base)[0], type):
                found: type = get_args(base)[0]
                return found
    raise TypeError(
        f"the class {type(backend).__name__} must name its provider spec, as in: class B(cmi.Backend[Spec])"
    )
