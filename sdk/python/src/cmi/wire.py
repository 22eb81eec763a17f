"""Trailing metadata and messages of the extension."""

from __future__ import annotations

from typing import Any

from capcmi.v1 import capcmi_pb2 as ext

from .errors import Error, Uninitialized
from .vm import MOST_ID, MOST_NAME, MOST_STATE, VM

# Keys of the trailing metadata.
_MACHINE_CODE = "capcmi-machine-code"
_STATE = "capcmi-last-known-state-bin"
_RESPONSE = "capcmi-response-bin"
_RETRY_AFTER = "capcmi-retry-after-ms"
_NOTHING_BEGUN = "capcmi-nothing-begun"

# The default limit of many clients for all headers of an answer, and the share of gRPC and proxies.
_MOST_HEADERS = 8 << 10
_OTHER_HEADERS = 384
# The overhead that HTTP/2 counts for each header.
_PER_HEADER = 32
# The size of a machine with its names alone.
_NAMES = len(_RESPONSE) + _PER_HEADER + (MOST_ID + MOST_NAME + 16) * 4 // 3
_MOST_MESSAGE = 2 << 10
_CUT = " [...]"


def to_wire(vm: VM) -> ext.Machine:
    """Returns a VM in the form of the extension."""
    return ext.Machine(
        provider_id=vm.id,
        node_name=vm.shown_name,
        power_state=ext.PowerState.Name(vm.power),
        failure_domain=vm.zone,
        last_known_state=vm.state,
        addresses=[ext.MachineAddress(type=int(kind), address=text) for kind, text in vm.addresses],  # type: ignore[arg-type]
    )


class Trailers:
    """Metadata that leave room for other headers."""

    def __init__(self) -> None:
        self.metadata: list[tuple[str, str | bytes]] = []
        self.room = _MOST_HEADERS - _OTHER_HEADERS

    def text(self, key: str, value: str) -> None:
        """Adds a text."""
        self.room -= len(key) + _PER_HEADER + len(value)
        self.metadata.append((key, value))

    def binary(self, key: str, value: bytes) -> None:
        """Adds bytes, which gRPC encodes."""
        self.room -= len(key) + _PER_HEADER + (len(value) * 4 + 2) // 3
        self.metadata.append((key, value))

    def machine(self, machine: ext.Machine) -> None:
        """Adds a VM, without addresses and then without its failure domain where they find no room."""
        most = max(0, self.room - len(_RESPONSE) - _PER_HEADER) // 4 * 3
        addresses = list(machine.addresses)
        machine.ClearField("addresses")
        size = machine.ByteSize()
        for address in addresses:
            size += field_size(address)
            if size > most:
                break
            machine.addresses.append(address)
        if machine.ByteSize() > most:
            machine.failure_domain = ""
        if machine.ByteSize() <= most:
            self.binary(_RESPONSE, machine.SerializeToString())


def field_size(address: ext.MachineAddress) -> int:
    """Returns the bytes of an address in a message: its key in a byte, its length in bytes of 7 bits, and itself."""
    size = address.ByteSize()
    return 1 + max(1, (size.bit_length() + 6) // 7) + size


def beside(context: Any, vm: VM) -> None:
    """Sends the fields of a VM that a response of cmi.v1 lacks."""
    sent = Trailers()
    sent.machine(to_wire(vm))
    context.set_trailing_metadata(tuple(sent.metadata))


def answer(error: Error, message: str) -> tuple[str, tuple[tuple[str, str | bytes], ...]]:
    """Returns the message and the metadata of an error, whose message has no secrets."""
    sent = Trailers()
    if isinstance(error, Uninitialized):
        sent.text(_MACHINE_CODE, "Uninitialized")
    if error.retry_after > 0:
        sent.text(_RETRY_AFTER, str(round(error.retry_after * 1000)))
    if error.nothing_begun and error.vm is None:
        sent.text(_NOTHING_BEGUN, "true")
    state = error.state if error.state is not None or error.vm is None else error.vm.state
    if state and len(state) <= MOST_STATE:
        sent.binary(_STATE, state)
    message = cut(message, min(max(0, sent.room - _NAMES), _MOST_MESSAGE))
    sent.room -= header_size(message)
    if error.vm is not None:
        machine = to_wire(error.vm)
        machine.last_known_state = b""
        sent.machine(machine)
    return message, tuple(sent.metadata)


def cut(message: str, most: int) -> str:
    """Shortens a message between words: the caller searches it for secrets and would not find half of one."""
    message = message.encode(errors="replace").decode()
    if header_size(message) <= most:
        return message
    kept = message[:most]
    while kept:
        kept = kept.rstrip()
        kept = kept[: max(kept.rfind(space) for space in " \n\t") + 1].rstrip()
        if kept and header_size(kept) + header_size(_CUT) <= most:
            return kept + _CUT
    return _CUT


def header_size(message: str) -> int:
    """Returns the most bytes of a message in its header, which is percent-encoded."""
    return sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message.encode())
