"""A driver with every optional call, in coroutines. Its VMs are files in a folder."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import cmi

INFO = cmi.Info("everything.example.com", "v0.1.0", manifest={"purpose": "test"}, list_has_state=True)


@dataclass
class Spec:
    size: Literal["small", "large"]
    disk: Annotated[int, cmi.Field(name="diskGB", min=10, max=1000)] = 10
    labels: Annotated[dict[str, str], cmi.Field(hot=True)] = field(default_factory=dict)
    failure_domain: str = ""
    network_addresses: list[cmi.StaticAddress] = field(default_factory=list)


@dataclass
class Instance:
    id: str
    name: str
    spec: dict[str, Any]
    tags: dict[str, str]
    user_data: str
    created_at: str
    power: int = cmi.Power.RUNNING
    is_initialized: bool = False

    def vm(self) -> cmi.VM:
        return cmi.VM(
            self.id,
            self.name,
            self.tags,
            addresses=[
                cmi.Address(cmi.AddressType.INTERNAL_IP, "10.0.0.7"),
                *(
                    cmi.Address(cmi.AddressType.INTERNAL_IP, given["address"])
                    for given in self.spec["network_addresses"]
                ),
                cmi.Address(cmi.AddressType.INTERNAL_DNS, self.name),
            ],
            power=cmi.Power(self.power),
            zone=self.spec["failure_domain"],
            created_at=datetime.fromisoformat(self.created_at),
            uninitialized="" if self.is_initialized else "the source/destination check is on",
            state=f"state of {self.id}".encode(),
            native=self,
        )


def authorized(call: cmi.Call) -> None:
    """Checks the credentials of a call."""
    token = call.secrets.need("token")
    if token == "the-token-without-rights":
        raise cmi.PermissionDenied("the token may do nothing")
    if token != "the-right-token":
        # An error that quotes a credential, as some libraries do. The kit removes it.
        raise cmi.Unauthenticated(f"the token {token} is unknown")


class Everything(cmi.Backend[Spec]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def probe(self, call: cmi.Call) -> None:
        return

    async def find(self, call: cmi.Call, id: cmi.Identity, spec: Spec) -> Iterable[cmi.VM]:
        return [vm async for vm in self.list(call, id.cluster, spec) if vm.name == id.name]

    async def list(self, call: cmi.Call, cluster: str, spec: Spec) -> AsyncIterator[cmi.VM]:
        authorized(call)
        for path in self.folder.glob("*.json"):
            try:
                yield Instance(**json.loads(path.read_text())).vm()
            except FileNotFoundError:
                continue

    async def create(self, call: cmi.Call, id: cmi.Identity, spec: Spec, boot: cmi.Bootstrap) -> cmi.VM:
        authorized(call)
        if spec.disk == 999:
            raise cmi.Exhausted("the pool has no 999 GB", retry_after=60)
        if spec.failure_domain == "full":
            raise cmi.Exhausted("failure domain full has no room")
        made = Instance(
            id=f"everything:///{secrets.token_hex(8)}",
            name=id.name,
            spec=dataclasses.asdict(spec),
            tags=dict(id.tags),
            user_data=boot.user_data.decode("latin-1"),
            created_at=datetime.now(UTC).isoformat(),
        )
        return self._write(made)

    async def delete(self, call: cmi.Call, vm: cmi.VM) -> None:
        self._path(vm.id).unlink(missing_ok=True)
        self._count()

    async def stop(self, call: cmi.Call, vm: cmi.VM) -> None:
        self._write(dataclasses.replace(vm.native, power=cmi.Power.STOPPED))

    async def start(self, call: cmi.Call, vm: cmi.VM) -> None:
        self._write(dataclasses.replace(vm.native, power=cmi.Power.RUNNING))

    restart = start

    async def initialize(self, call: cmi.Call, vm: cmi.VM, spec: Spec) -> None:
        self._write(dataclasses.replace(vm.native, is_initialized=True))

    async def uninitialize(self, call: cmi.Call, vm: cmi.VM) -> None:
        self._write(dataclasses.replace(vm.native, is_initialized=False))

    async def update(self, call: cmi.Call, vm: cmi.VM, change: cmi.Change[Spec]) -> None:
        tags = {**vm.tags, **change.set_tags}
        for name in change.remove_tags:
            del tags[name]
        spec = {**vm.native.spec, "labels": change.spec.labels}
        changed = dataclasses.replace(vm.native, spec=spec, tags=tags)
        if changed != vm.native:
            self._write(changed)

    async def zones(self, call: cmi.Call, spec: Spec | None) -> Iterable[cmi.Zone]:
        authorized(call)
        return [cmi.Zone("a", control_plane=True, attributes={"floor": "1"}), cmi.Zone("b"), cmi.Zone("full")]

    async def size(self, call: cmi.Call, spec: Spec) -> cmi.Size:
        authorized(call)
        return cmi.Size({"cpu": {"small": "1", "large": "4"}[spec.size], "memory": "2Gi"}, "amd64", "linux")

    async def console(self, call: cmi.Call, vm: cmi.VM) -> bytes:
        return f"console of {vm.id}\n".encode()

    async def volume_id(self, call: cmi.Call, volume: cmi.PersistentVolume) -> str:
        return volume.handle if volume.driver == "everything.example.com" else ""

    async def migrate(self, call: cmi.Call, source: cmi.ProviderClass, machine_class: bytes) -> bytes:
        size = json.loads(source.object).get("spec", {}).get("size")
        if source.kind != "EverythingClass" or size not in ("small", "large"):
            raise cmi.Internal(f"cannot convert a {source.kind} of size {size}")
        made = {**json.loads(machine_class), "provider": "everything", "providerSpec": {"size": size}}
        return json.dumps(made).encode()

    async def user_data(self, call: cmi.Call, vm: cmi.VM) -> bytes:
        return bytes(vm.native.user_data.encode("latin-1"))

    async def vm_spec(self, call: cmi.Call, vm: cmi.VM) -> Mapping[str, Any]:
        return {"labels": vm.native.spec["labels"], "tags": dict(vm.tags)}

    async def changes(self, call: cmi.Call) -> int:
        file = self.folder / "changes"
        return file.stat().st_size if file.exists() else 0

    def _path(self, id: str) -> Path:
        return self.folder / f"{id.rpartition('/')[2]}.json"

    def _write(self, instance: Instance) -> cmi.VM:
        path = self._path(instance.id)
        unfinished = path.with_suffix(f".{secrets.token_hex(4)}")
        unfinished.write_text(json.dumps(dataclasses.asdict(instance)))
        unfinished.rename(path)
        self._count()
        return instance.vm()

    def _count(self) -> None:
        with (self.folder / "changes").open("a") as file:
            file.write(".")


if __name__ == "__main__":
    cmi.main(INFO, Everything(Path(os.environ["EVERYTHING_FOLDER"])))
