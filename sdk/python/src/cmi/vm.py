"""Machines, VMs and their fields."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple

from . import faults
from .call import REDACTED, Secret
from .errors import Internal

CLUSTER_TAG = "kubernetes.io/cluster"
"""The tag with the id of the cluster."""
ROLE_TAG = "kubernetes.io/role"
"""The tag with `control-plane` or `node`."""
MACHINE_TAG = "capcmi.io/machine"
"""The tag with the id of the machine object. A new object with the same name has another id."""
SPEC_TAG = "capcmi.io/spec"
"""The tag with a digest of the provider spec that a VM was made from. This package sets it."""

# The longest lengths of fields, in bytes.
MOST_ID = 512
MOST_NAME = 253
MOST_STATE = 4 << 10


@dataclass(frozen=True)
class Identity:
    """The machine that a call is about."""

    cluster: str
    """The id of the cluster."""
    name: str
    """The machine's name, unique within its cluster: a DNS subdomain of at most 253 bytes."""
    machine: str = ""
    """The id of the machine object. It is empty for an adopted VM that lacks MACHINE_TAG."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """The tags that the VM must have: the owner's, the user's and SPEC_TAG."""

    def __str__(self) -> str:
        return f"machine {self.name} of cluster {self.cluster}"

    def token(self) -> str:
        """Returns a client token for platforms that accept one: requests with the same token make at most one VM."""
        text = "\0".join((self.cluster, self.name, self.machine)) + faults.salt
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class AddressPool:
    """A pool of addresses."""

    api_group: str
    kind: str
    name: str


@dataclass(frozen=True)
class StaticAddress:
    """An address that a VM must have from its creation.

    A provider spec gets them if it has the optional field `network_addresses`, a list of this type. The caller sets it;
    users cannot.
    """

    address: str
    prefix: int
    """The length of the prefix of the address's network."""
    pool: AddressPool
    """The pool that the address is from."""
    gateway: str | None = None
    """The gateway of the address's network, if it has one."""
    network: str | None = None
    """The network of the VM, as users of the driver name it. None: the first one."""


class AddressType(IntEnum):
    """The type of an address, as in a Node's status."""

    HOST_NAME = 1
    EXTERNAL_IP = 2
    INTERNAL_IP = 3
    EXTERNAL_DNS = 4
    INTERNAL_DNS = 5


class Address(NamedTuple):
    """An address of a VM."""

    type: AddressType
    text: str


class Power(IntEnum):
    """The power state of a VM. FAILED: the VM will not run again."""

    UNKNOWN = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    STOPPED = 4
    FAILED = 5


@dataclass
class VM:
    """A virtual machine that exists."""

    id: str
    """The ProviderID, equal to Node.spec.providerID: at most 512 bytes, unique and stable."""
    name: str = ""
    """The machine's name that `create` was called with."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """The VM's tags, as the platform has them. They include those that `create` stored."""
    node_name: str = ""
    """The name that the Node will have. Empty: `name`."""
    addresses: Iterable[Address] = ()
    """The known addresses."""
    power: Power = Power.UNKNOWN
    """The power state."""
    zone: str = ""
    """The failure domain of the VM."""
    created_at: datetime | None = None
    """When the platform made the VM, with its time zone."""
    uninitialized: str = ""
    """The reason why the VM needs `initialize`. Empty: it does not."""
    locked: str = ""
    """The reason why the platform forbids every operation on the VM. Empty: it does not."""
    state: bytes = b""
    """The next call about this machine returns it in Call.state: at most 4 KiB, and it can be lost."""
    native: Any = None
    """For the back end, which gets its own value back from `find`."""

    def check(self) -> None:
        """Refuses values that the caller would not accept."""
        problems = {
            f"a ProviderID of {_size(self.id)} bytes, which must be 1 to {MOST_ID}": 0 < _size(self.id) <= MOST_ID,
            f"a node name of {_size(self.shown_name)} bytes, which must be 1 to {MOST_NAME}": (
                0 < _size(self.shown_name) <= MOST_NAME
            ),
            f"a state of {len(self.state)} bytes, which may be {MOST_STATE}": len(self.state) <= MOST_STATE,
        }
        for problem, is_fine in problems.items():
            if not is_fine:
                raise Internal(f"the driver reports the VM {self.id[:MOST_ID]} with {problem}")

    @property
    def shown_name(self) -> str:
        """The name of the Node."""
        return self.node_name or self.name


def _size(text: str) -> int:
    return len(text.encode())


def ids(vms: Iterable[VM]) -> str:
    """Returns the ids of VMs for a message."""
    return ", ".join(sorted(vm.id for vm in vms))


@dataclass(frozen=True)
class Bootstrap:
    """The first-boot data of a VM. It is a secret: it contains a token that lets a Node join."""

    user_data: Secret = field(default_factory=Secret)
    """The data, byte for byte."""
    format: str = ""
    """`cloud-config` or `ignition`. Empty: unknown."""

    def __repr__(self) -> str:
        return f"Bootstrap({REDACTED}, format={self.format!r})"
