"""Stands around every call: deadline, exceptions, codes, secrets and the log."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import grpc

from .call import LONGEST_CALL, Call, new_call, scrubbed
from .errors import Error, Unimplemented, causes, coded
from .wire import answer

log = logging.getLogger("cmi")


class Running:
    """The calls that run."""

    def __init__(self) -> None:
        self.count = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def __enter__(self) -> None:
        self.count += 1
        self.idle.clear()

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self.idle.set()


def rpc(method: Callable[[Any, Call, Any, Any], Awaitable[Any]]) -> Callable[[Any, Any, Any], Awaitable[Any]]:
    """Turns a method of a call, a request and a context into a method of a gRPC service.

    It logs which machine the call is about and how the call ended; never a request or a response.
    """
    name = method.__name__

    @wraps(method)
    async def answered(self: Any, request: Any, context: Any) -> Any:
        begun = time.monotonic()
        left = context.time_remaining()
        call = new_call(request, LONGEST_CALL if left is None else min(left, LONGEST_CALL))

        def report(level: int, code: str, **more: str) -> None:
            about = {"machine": call.machine} if call.machine else {}
            took = f"{time.monotonic() - begun:.6f}s"
            log.log(level, "call", extra={"fields": {"method": name, "took": took, **about, "code": code, **more}})

        with self.running:
            try:
                async with asyncio.timeout(LONGEST_CALL):
                    response = await method(self, call, request, context)
            except asyncio.CancelledError:
                report(logging.WARNING, "CANCELLED")
                raise
            except Exception as error:
                known = coded(error)
                level = logging.INFO if isinstance(known, Unimplemented) else logging.WARNING
                details = {"error": scrubbed(_described(known), request)}
                if foreign := [each for each in causes(known) if not isinstance(each, Error)]:
                    # The place alone: the values in the code may be secret.
                    details["at"] = _places(foreign[0])
                report(level, known.code.name, **details)
                message, metadata = answer(known, scrubbed(known.message, request))
                await context.abort(known.code, message, trailing_metadata=metadata)
            # Probe comes every few seconds.
            report(logging.DEBUG if name == "Probe" else logging.INFO, grpc.StatusCode.OK.name)
            return response

    return answered


def _described(error: Error) -> str:
    return ": ".join([error.message, *(f"{type(each).__name__}: {each}" for each in list(causes(error))[1:])])


def _places(error: BaseException) -> str:
    return " < ".join(
        f"{frame.filename}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__))
    )
