"""A driver for a REST API, in threads, as an author writes it after the quickstart."""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import cmi

INFO = cmi.Info("rest.example.com", "v0.1.0", consistency_window=0.15)
POWER = {"running": cmi.Power.RUNNING, "stopped": cmi.Power.STOPPED, "deleting": cmi.Power.STOPPING}


@dataclass
class Spec:
    size: Literal["small", "large", "xlarge"]
    disk: Annotated[int, cmi.Field(name="diskGB", min=10, max=1000)] = 10


class Rest(cmi.Backend[Spec]):
    def __init__(self, api: str) -> None:
        self.api = api

    def request(self, call: cmi.Call, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Makes a request and maps its status."""
        headers = {"Authorization": f"Bearer {call.secrets.need('token')}", "Idempotency-Key": key}
        request = urllib.request.Request(self.api + path, json.dumps(body).encode(), headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=call.time_left()) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                match error.code:
                    case 401:
                        raise cmi.Unauthenticated("the API does not know the token") from None
                    case 403:
                        raise cmi.PermissionDenied("the token may not do this") from None
                    case 404:
                        raise cmi.Gone from None
                    case 429:
                        raise cmi.Exhausted("the quota is used up", retry_after=60) from None
            raise cmi.Unknown(f"the API answered {error.code}") from None

    def find(self, call: cmi.Call, id: cmi.Identity, spec: Spec) -> Iterator[cmi.VM]:
        return (vm for vm in self.list(call, id.cluster, spec) if vm.name == id.name)

    def list(self, call: cmi.Call, cluster: str, spec: Spec) -> Iterator[cmi.VM]:
        query = {"cluster": cluster}
        while True:
            page = self.request(call, "GET", f"/vms?{urlencode(query)}")
            yield from map(vm, page["vms"])
            if not page["next"]:
                return
            query["page"] = page["next"]

    def create(self, call: cmi.Call, id: cmi.Identity, spec: Spec, boot: cmi.Bootstrap) -> cmi.VM:
        data = base64.b64encode(boot.user_data).decode()
        labels = {**id.tags, "cluster": id.cluster}
        body = {"name": id.name, "size": spec.size, "labels": labels, "userData": data}
        return vm(self.request(call, "POST", "/vms", body, id.token()))

    def delete(self, call: cmi.Call, vm: cmi.VM) -> None:
        self.request(call, "DELETE", f"/vms/{vm.native['id']}")

    def stop(self, call: cmi.Call, vm: cmi.VM) -> None:
        self.request(call, "POST", f"/vms/{vm.native['id']}/stop")

    def user_data(self, call: cmi.Call, vm: cmi.VM) -> bytes:
        return base64.b64decode(vm.native["userData"])


def vm(found: dict[str, Any]) -> cmi.VM:
    return cmi.VM(f"rest:///{found['id']}", found["name"], found["labels"], power=POWER[found["state"]], native=found)


if __name__ == "__main__":
    cmi.main(INFO, Rest(os.environ["REST_API"]))
