"""Failures between the driver and EC2."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import cmi
from botocore.awsrequest import AWSResponse

from ec2driver.clients import Clients


@dataclass
class Fault:
    """A refusal of EC2's, or an exception on the way to it."""

    operation: str
    reason: str = ""
    message: str = "as the test wants it"
    http_status: int = 400
    error: Exception | None = None
    # A delay instead, before EC2 carries the request out.
    seconds: float = 0
    # Further fields of the answer.
    answer: dict[str, Any] = field(default_factory=dict)
    # How many calls go well before, and how many don't after that.
    after: int = 0
    count: int = 1_000_000


@dataclass
class Calls:
    """The requests to EC2, and the answers in place of EC2's."""

    faults: list[Fault] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    # The client tokens of creates.
    tokens: list[str] = field(default_factory=list)

    def count(self, operation: str) -> int:
        """How often an operation was asked for."""
        return self.made.count(operation)

    def on_call(self, model: Any, params: Any, **_: Any) -> Any:
        """Handles botocore's `before-call`, which uses the returned value as the answer."""
        self.made.append(model.name)
        if model.name == "RunInstances":
            self.tokens.append(params["body"]["ClientToken"])
        for fault in self.faults:
            if fault.operation not in (model.name, "*"):
                continue
            if fault.after:
                fault.after -= 1
            elif fault.count:
                fault.count -= 1
                time.sleep(fault.seconds)
                if fault.seconds:
                    return None
                if fault.error:
                    raise fault.error
                answer = {
                    **fault.answer,
                    "Error": {"Code": fault.reason, "Message": fault.message},
                    "ResponseMetadata": {"HTTPStatusCode": fault.http_status},
                }
                return AWSResponse("", fault.http_status, {}, None), answer
        return None


class WatchedClients(Clients):
    """Clients whose calls a test sees. They are made once for all tests, which takes longer than most tests do."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()
        self._watched: set[int] = set()

    def ec2(self, region: str, secrets: cmi.Secrets) -> Any:
        client = super().ec2(region, secrets)
        if id(client) not in self._watched:
            self._watched.add(id(client))
            client.meta.events.register("before-call.ec2", lambda **call: self.calls.on_call(**call))
        return client
