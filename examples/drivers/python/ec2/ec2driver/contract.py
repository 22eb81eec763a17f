"""The nouns of the driver contract. Nothing here knows gRPC or EC2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

# Tags that the provider puts into every spec: which cluster a VM belongs to, and which machine object.
CLUSTER_TAG = "kubernetes.io/cluster"
IDENTITY_TAG = "capcmi.io/machine"

# Keys of secrets: bootstrap data, and what format it has.
USER_DATA, USER_DATA_FORMAT = "userData", "userDataFormat"

# A DNS subdomain, as the names of Kubernetes objects are.
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_MACHINE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_NAME = 253


class Code(IntEnum):
    """The machine codes that this driver answers with; numbers up to 16 are gRPC's."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16
    UNINITIALIZED = 17


class PowerState(IntEnum):
    """Whether a VM runs."""

    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    STOPPED = 4


@dataclass(frozen=True)
class Machine:
    """A VM that exists."""

    provider_id: str
    node_name: str
    # Cluster API's address types and their values: ("InternalIP", "10.0.0.7").
    addresses: tuple[tuple[str, str], ...] = ()
    power_state: PowerState | None = None
    failure_domain: str = ""
    last_known_state: bytes = b""


@dataclass(eq=False)
class Failure(Exception):
    """A call that did not do what was asked of it: a code of the call's error table, and a sentence for an operator."""

    code: Code
    message: str
    # The VM that exists in spite of the error.
    machine: Machine | None = None
    # What the driver wants back with the next call on this machine.
    last_known_state: bytes = b""
    retry_after_seconds: float = 0.0
    # The back end's own word for it.
    reason: str = ""
    # Whether another zone may do what this one could not.
    elsewhere: bool = False

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Secrets:
    """Credentials and bootstrap data by key. Never printed."""

    values: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self.values))})"

    def text(self, key: str) -> str | None:
        """A value as text; none when it is missing, empty or no text."""
        try:
            return self.values.get(key, b"").decode().strip() or None
        except UnicodeDecodeError:
            return None


def check_machine_name(name: str) -> None:
    """Refuses what can't be the name of a machine (DRV-CR-03)."""
    if not name:
        raise Failure(Code.INVALID_ARGUMENT, "MachineName is required")
    if len(name) > _LONGEST_NAME or not _MACHINE_NAME.fullmatch(name):
        raise Failure(
            Code.INVALID_ARGUMENT,
            f"MachineName is {name[:_LONGEST_NAME]!r}: it has to be a DNS subdomain of at most {_LONGEST_NAME} bytes",
        )
