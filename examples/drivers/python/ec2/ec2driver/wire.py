"""The driver contract on gRPC: what a call carries besides its message, and how it ends."""

from __future__ import annotations

import base64
import logging
import re
import time
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import grpc
from capcmi.v1 import capcmi_pb2 as ext
from google.protobuf.timestamp_pb2 import Timestamp

from .contract import CLUSTER_TAG, IDENTITY_TAG, USER_DATA_FORMAT, Code, Failure, Machine, Secrets
from .instances import Instance

# Trailing metadata, as capcmi/v1/capcmi.proto has it.
_MACHINE_CODE = "capcmi-machine-code"
_LAST_KNOWN_STATE = "capcmi-last-known-state-bin"
_RESPONSE = "capcmi-response-bin"
_RETRY_AFTER = "capcmi-retry-after-ms"

# A status message travels in a header: a sentence fits, a stack trace does not.
_LONGEST_MESSAGE = 1000
# What is shorter is no secret, and a message without it would not be read any more.
_SHORTEST_SECRET = 6
_MOST_STATE = 4 * 1024
_MOST_SPEC = 1024 * 1024
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ADDRESS_TYPES = {
    "Hostname": ext.MachineAddress.HOSTNAME,
    "ExternalIP": ext.MachineAddress.EXTERNAL_IP,
    "InternalIP": ext.MachineAddress.INTERNAL_IP,
    "ExternalDNS": ext.MachineAddress.EXTERNAL_DNS,
    "InternalDNS": ext.MachineAddress.INTERNAL_DNS,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_log = logging.getLogger("ec2driver")


def call(
    method: Callable[[Any, Any, grpc.ServicerContext], Any],
) -> Callable[[Any, Any, grpc.ServicerContext], Any]:
    """A method of a servicer that may raise a Failure.

    It logs what was called for which machine and how it ended; never a request or a response.
    """

    @wraps(method)
    def answered(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        start = time.monotonic()
        name = getattr(request, "MachineName", "") or getattr(request, "machine_name", "")
        try:
            response = method(self, request, context)
        except Failure as failure:
            # Cut last: half a secret would not be found.
            message = _without_secrets(failure.message, _secrets_of(request))[:_LONGEST_MESSAGE]
            _log.info("%s %s: %s after %.1f s: %s", method.__name__, name, failure.code.name, _since(start), message)
            context.set_trailing_metadata(_trailers(failure))
            context.abort(_CODES.get(failure.code, grpc.StatusCode.FAILED_PRECONDITION), message)
        except Exception as error:
            # A fault of this driver. What the exception says may hold anything, so only its
            # kind and place are told.
            places = "".join(traceback.format_tb(error.__traceback__))
            _log.error("%s %s: %s\n%s", method.__name__, name, type(error).__name__, places)
            context.abort(grpc.StatusCode.UNKNOWN, f"the driver failed with a {type(error).__name__}; see its log")
        _log.info("%s %s: OK after %.1f s", method.__name__, name, _since(start))
        return response

    return answered


def secrets(request: Any) -> Secrets:
    """The secrets of a request."""
    values = dict(_secrets_of(request))
    for key in values:
        if not _SECRET_KEY.fullmatch(key):
            raise Failure(Code.INVALID_ARGUMENT, "a key of Secrets has characters that no key has")
    return Secrets(values)


def provider_spec(raw: bytes, field: str = "ProviderSpec") -> bytes:
    """A provider spec that is there, and not too large to be one."""
    if not raw:
        raise Failure(Code.INVALID_ARGUMENT, f"{field} is required")
    if len(raw) > _MOST_SPEC:
        raise Failure(Code.INVALID_ARGUMENT, f"{field} has {len(raw)} bytes; at most {_MOST_SPEC} are allowed")
    return raw


def time_left(context: grpc.ServicerContext) -> Callable[[], float]:
    """How many seconds the caller still waits; 0 when it has gone."""

    def left() -> float:
        if not context.is_active():
            return 0.0
        remaining = context.time_remaining()
        return float("inf") if remaining is None else max(0.0, remaining)

    return left


def machine(found: Machine) -> ext.Machine:
    """A VM as the extension writes it."""
    return ext.Machine(
        provider_id=found.provider_id,
        node_name=found.node_name,
        addresses=[ext.MachineAddress(type=_ADDRESS_TYPES[kind], address=address) for kind, address in found.addresses],
        power_state=found.power_state.name if found.power_state else None,
        failure_domain=found.failure_domain,
        last_known_state=found.last_known_state,
    )


def listed(found: Instance) -> ext.ListMachinesPagedResponse.ListedMachine:
    """A VM in a list of the extension: whose it is, by its own tags, and since when it is there."""
    created_at = Timestamp()
    created_at.FromDatetime(found.launched)
    return ext.ListMachinesPagedResponse.ListedMachine(
        provider_id=found.provider_id,
        machine_name=found.name,
        cluster_id=found.tags.get(CLUSTER_TAG, ""),
        machine_id=found.tags.get(IDENTITY_TAG, ""),
        created_at=created_at,
    )


def add_machine(context: grpc.ServicerContext, found: Machine) -> None:
    """What the answers of cmi.v1 have no room for."""
    context.set_trailing_metadata(((_RESPONSE, machine(found).SerializeToString()),))


def _trailers(failure: Failure) -> tuple[tuple[str, str | bytes], ...]:
    trailers: list[tuple[str, str | bytes]] = []
    if failure.code == Code.UNINITIALIZED:
        trailers.append((_MACHINE_CODE, "Uninitialized"))
    if failure.machine:
        trailers.append((_RESPONSE, machine(failure.machine).SerializeToString()))
    if 0 < len(failure.last_known_state) <= _MOST_STATE:
        trailers.append((_LAST_KNOWN_STATE, failure.last_known_state))
    if failure.retry_after_seconds:
        trailers.append((_RETRY_AFTER, str(round(failure.retry_after_seconds * 1000))))
    return tuple(trailers)


def _secrets_of(request: Any) -> Mapping[str, bytes]:
    return getattr(request, "Secrets", None) or getattr(request, "secrets", None) or {}


def _without_secrets(message: str, values: Mapping[str, bytes]) -> str:
    """EC2 is not known to echo a secret; should it, as it is, a line of it, or in base64, it stays here."""
    wanted = set()
    for key, value in values.items():
        if key != USER_DATA_FORMAT:
            text = value.decode(errors="replace")
            wanted.update((text, base64.b64encode(value).decode(), *text.splitlines()))
    # The longest first: a line is a part of the whole.
    for secret in sorted(map(str.strip, wanted), key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            message = message.replace(secret, "[redacted]")
    return message


def _since(start: float) -> float:
    return time.monotonic() - start
