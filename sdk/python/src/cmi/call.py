"""The part of a request that every method may need, and its secrets."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import Unauthenticated

USER_DATA_KEY = "userData"
USER_DATA_FORMAT_KEY = "userDataFormat"
REDACTED = "[redacted]"

# Seconds. A caller without a deadline may not hold a machine's lock for longer.
LONGEST_CALL = 30 * 60.0

# Shorter values and lines occur in texts by chance.
_SHORTEST_SECRET = 4
_SHORTEST_LINE = 12


class Secret(bytes):
    """A value that formatting never shows. `bytes(secret)` and `secret.decode()` return it."""

    def __repr__(self) -> str:
        return REDACTED

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return REDACTED


class Secrets(dict[str, Secret]):
    """The credentials of a call by key."""

    def need(self, key: str) -> str:
        """Returns the secret of a key, without line ends behind it.

        Raises:
            Unauthenticated: The secret is missing. The message names the key.
        """
        value = self.get(key, Secret()).decode(errors="replace").rstrip("\r\n")
        if value.strip():
            return value
        if key in self:
            raise Unauthenticated(f"the key {key} of the Secret is empty")
        keys = f": {', '.join(sorted(self))}" if self else " no keys"
        raise Unauthenticated(f"the Secret needs the key {key}; it has{keys}")


@dataclass
class Call:
    """A call of the driver. Tests of a back end make their own: `Call(secrets=Secrets(token=Secret(b"…")))`."""

    secrets: Secrets = field(default_factory=Secrets)
    """The credentials of the call, without the bootstrap data."""
    provider_id: str = ""
    """The ProviderID of the request. It is empty while the caller knows none."""
    state: bytes = b""
    """The state that an earlier call about the machine has left in VM.state. It may be lost."""
    deadline: float = float("inf")
    """When the caller stops waiting, on the clock time.monotonic."""
    cancelled: bool = False
    """Whether the caller has left."""
    machine: str = ""
    """The machine and its cluster, for the log."""

    def time_left(self) -> float:
        """Returns for how many seconds the caller still waits. Pass it to every request of a synchronous back end."""
        return 0.0 if self.cancelled else max(0.0, min(LONGEST_CALL, self.deadline - time.monotonic()))


def secrets_in(request: Any) -> Mapping[str, bytes]:
    """Returns the secrets of a request of any service."""
    found: Mapping[str, bytes] = getattr(request, "Secrets", None) or getattr(request, "secrets", None) or {}
    return found


def new_call(request: Any, seconds: float) -> Call:
    """Returns the call of a request whose caller waits for some seconds."""
    own = {USER_DATA_KEY, USER_DATA_FORMAT_KEY}
    return Call(
        secrets=Secrets({key: Secret(value) for key, value in secrets_in(request).items() if key not in own}),
        provider_id=getattr(request, "ProviderID", "") or getattr(request, "provider_id", ""),
        state=getattr(request, "LastKnownState", b"") or getattr(request, "last_known_state", b""),
        deadline=time.monotonic() + seconds,
    )


def scrubbed(text: str, request: Any) -> str:
    """Returns a text without the secrets of a request, also where a library has encoded them."""
    found = {
        form
        for key, value in secrets_in(request).items()
        if key != USER_DATA_FORMAT_KEY and len(value) >= _SHORTEST_SECRET
        for form in _forms(value)
        if _SHORTEST_SECRET <= len(form) <= len(text) and form in text
    }
    if not found:
        return text
    # The longest first: a secret may contain another one.
    pattern = "|".join(re.escape(form) for form in sorted(found, key=len, reverse=True))
    return re.sub(pattern, REDACTED, text)


def _forms(value: bytes) -> Iterator[str]:
    text = value.decode(errors="replace")
    yield from (text, text.strip(), json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    yield from (repr(text)[1:-1], repr(bytes(value))[2:-1], value.hex())
    yield from (urllib.parse.quote(value, safe=""), urllib.parse.quote(value), urllib.parse.quote_plus(value))
    for encoded in (base64.b64encode(value), base64.urlsafe_b64encode(value)):
        yield encoded.decode()
        yield encoded.rstrip(b"=").decode()
    # A library may quote one line of a text.
    for line in text.splitlines():
        if len(line.strip()) >= _SHORTEST_LINE:
            yield line.strip()
