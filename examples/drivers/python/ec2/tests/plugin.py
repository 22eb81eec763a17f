"""A client of the plugin, as the provider is one: raw gRPC over a real socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from capcmi.v1 import capcmi_pb2 as ext
from capcmi.v1 import capcmi_pb2_grpc as ext_services
from cmi.v1 import cmi_pb2 as cmi
from cmi.v1 import cmi_pb2_grpc as cmi_services

SECRETS = {"accessKeyId": b"AKIAIOSFODNN7EXAMPLE", "secretAccessKey": b"canary-secret-0123456789"}


@dataclass(frozen=True)
class Answer:
    """How a call ended."""

    code: str
    message: str
    response: Any
    trailers: Mapping[str, str | bytes]

    @property
    def state(self) -> bytes:
        """The last known state that came in the trailing metadata."""
        raw = self.trailers.get("capcmi-last-known-state-bin", b"")
        return raw if isinstance(raw, bytes) else b""

    @property
    def machine(self) -> ext.Machine:
        """The machine that came in the trailing metadata."""
        raw = self.trailers.get("capcmi-response-bin", b"")
        return ext.Machine.FromString(raw if isinstance(raw, bytes) else b"")


class Plugin:
    """Every call of the plugin, by its name: `plugin.CreateMachine(MachineName="a")`."""

    def __init__(self, channel: grpc.Channel) -> None:
        identity = cmi_services.IdentityStub(channel)
        machine = cmi_services.MachineStub(channel)
        extension = ext_services.MachineExtensionStub(channel)
        self._stubs = {
            **{name: (stub, ext) for name, stub in vars(extension).items()},
            **{name: (stub, cmi) for stubs in (identity, machine) for name, stub in vars(stubs).items()},
        }

    def __getattr__(self, call: str) -> Any:
        stub, messages = self._stubs[call]
        request_type = getattr(messages, f"{call}Request")

        def made(deadline: float = 60, **fields: Any) -> Answer:
            response, code, message = None, "OK", ""
            secrets = "Secrets" if messages is cmi else "secrets"
            if secrets in request_type.DESCRIPTOR.fields_by_name:
                fields.setdefault(secrets, SECRETS)
            future = stub.future(request_type(**fields), timeout=deadline)
            try:
                response = future.result()
            except grpc.RpcError as error:
                code, message = error.code().name, error.details()
            assert code == "OK" or message.strip(), f"{call} answers {code} without a message"
            for secret in SECRETS.values():
                assert secret.decode() not in message
            return Answer(code, message, response, {key: value for key, value in future.trailing_metadata() or ()})

        return made
