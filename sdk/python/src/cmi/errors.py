"""Errors with a code and a message for the operator."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grpc import StatusCode

if TYPE_CHECKING:
    from .vm import VM


class Starting(Exception):
    """The answer of a Prober that is healthy and not ready yet."""


class Gone(Exception):
    """The VM of a call no longer exists. DeleteMachine then answers OK, and other calls answer NOT_FOUND.

    Raise it only when the platform confirmed it.
    """


class Error(Exception):
    """An error with a code. Raise its subclasses.

    `raise … from error` adds a cause. The driver's log shows it, and the answer does not: it may contain URLs and
    headers.

    `retry_after` asks the caller to wait for some seconds. `nothing_begun` promises that neither a VM nor a restart
    will result from the call. `state` returns a state to the next call about the machine; see Call.state.
    """

    code = StatusCode.UNKNOWN

    def __init__(
        self, message: str, *, retry_after: float = 0, nothing_begun: bool = False, state: bytes | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.nothing_begun = nothing_begun
        self.state = state
        self.vm: VM | None = None


class Exhausted(Error):
    """A quota or a pool is used up, and nothing was made. Code RESOURCE_EXHAUSTED."""

    code = StatusCode.RESOURCE_EXHAUSTED


class Taken(Error):
    """The platform refused a name or an id that another VM has. Code ALREADY_EXISTS."""

    code = StatusCode.ALREADY_EXISTS


class Busy(Error):
    """An operation on the VM is running. The caller tries again. Code ABORTED."""

    code = StatusCode.ABORTED


class Forbidden(Error):
    """The state of the VM forbids the call until an operator acts. Code FAILED_PRECONDITION."""

    code = StatusCode.FAILED_PRECONDITION


class Uninitialized(Error):
    """A step of `initialize` failed. The caller tries again."""

    code = StatusCode.FAILED_PRECONDITION


class Unavailable(Error):
    """The platform cannot be reached. Code UNAVAILABLE."""

    code = StatusCode.UNAVAILABLE


class Unauthenticated(Error):
    """Credentials are missing or unknown. Code UNAUTHENTICATED."""

    code = StatusCode.UNAUTHENTICATED


class PermissionDenied(Error):
    """The credentials are known and do not allow the call. Code PERMISSION_DENIED."""

    code = StatusCode.PERMISSION_DENIED


class Internal(Error):
    """An invariant of the platform is broken, and an operator must look. Code INTERNAL."""

    code = StatusCode.INTERNAL


class Unknown(Error):
    """The cause is unknown. Code UNKNOWN."""


class BadRequest(Error):
    """A field of the request is missing or wrong. Code INVALID_ARGUMENT."""

    code = StatusCode.INVALID_ARGUMENT


class Invalid(BadRequest):
    """A field of the provider spec is refused, by its JSON pointer such as `/size`. Code INVALID_ARGUMENT."""

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(f"ProviderSpec {pointer}: {message}")


class OutOfRange(Error):
    """A size does not exist: CPUs, memory or disk. The JSON pointer names its field. Code OUT_OF_RANGE."""

    code = StatusCode.OUT_OF_RANGE

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(f"ProviderSpec {pointer}: {message}")


class NotFound(Error):
    """The platform confirmed that the machine has no VM. Only this package raises it."""

    code = StatusCode.NOT_FOUND


class Late(Error):
    """The back end did not answer in time."""

    code = StatusCode.DEADLINE_EXCEEDED


class Unimplemented(Error):
    """The back end does not offer the call."""

    code = StatusCode.UNIMPLEMENTED


def coded(error: Exception) -> Error:
    """Returns the error with a code. The text of a foreign error may hold secrets, so the answer lacks it."""
    if isinstance(error, Error):
        return error
    known: Error
    if any(isinstance(each, TimeoutError | asyncio.TimeoutError) for each in causes(error)):
        known = Late("the back end did not answer in time")
    elif any(_is_unreachable(each) for each in causes(error)):
        known = Unavailable("the back end cannot be reached")
    else:
        kind = type(error).__name__
        known = Unknown(f"the back end failed with an error of type {kind}; the driver's log shows it")
    known.__cause__ = error
    return known


def _is_unreachable(error: BaseException) -> bool:
    """Libraries for HTTP wrap these errors in their own. An HTTPError is an answer of the platform."""
    unreachable = isinstance(error, ConnectionError | socket.gaierror | urllib.error.URLError)
    return unreachable and not isinstance(error, urllib.error.HTTPError)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Returns an error and its causes."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        reason = getattr(found, "reason", None)
        inner = reason if isinstance(reason, BaseException) else None
        found = inner or found.__cause__ or (None if found.__suppress_context__ else found.__context__)


@contextmanager
def nothing_begun() -> Iterator[None]:
    """Marks errors before any work: no VM will result from the call."""
    try:
        yield
    except Exception as error:
        known = coded(error)
        known.nothing_begun = True
        if known is error:
            raise
        raise known from error
