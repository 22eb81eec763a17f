"""A driver whose VMs are files in a folder."""

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cmi

INFO = cmi.Info("acme.example.com", "v0.1.0")


@dataclass
class Spec:
    """The fields that users write in providerSpec."""

    size: Literal["small", "large"]
    disk: Annotated[int, cmi.Field(name="diskGB", min=10, max=1000, doc="size of the disk")] = 10


class Backend(cmi.Backend[Spec]):
    """A folder with a file for each VM."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def create(self, call: cmi.Call, id: cmi.Identity, spec: Spec, boot: cmi.Bootstrap) -> cmi.VM:
        made = {"id": f"acme:///{uuid.uuid4()}", "name": id.name, "size": spec.size, "diskGB": spec.disk}
        made |= {"tags": dict(id.tags), "userData": boot.user_data.hex()}
        unfinished = self.path(made).with_suffix(".unfinished")
        unfinished.write_text(json.dumps(made))
        unfinished.rename(self.path(made))
        return vm(made)

    def find(self, call: cmi.Call, id: cmi.Identity, spec: Spec) -> Iterator[cmi.VM]:
        return (vm for vm in self.list(call, id.cluster, spec) if vm.name == id.name)

    def list(self, call: cmi.Call, cluster: str, spec: Spec) -> Iterator[cmi.VM]:
        for path in self.folder.glob("*.json"):
            try:
                found = vm(json.loads(path.read_text()))
            except FileNotFoundError:
                continue  # deleted since
            except ValueError as error:
                raise cmi.Internal(f"cannot read the file {path.name}") from error
            if found.tags[cmi.CLUSTER_TAG] == cluster:
                yield found

    def delete(self, call: cmi.Call, vm: cmi.VM) -> None:
        self.path(vm.native).unlink(missing_ok=True)

    def path(self, found: dict[str, Any]) -> Path:
        return self.folder / f"{Path(found['id']).name}.json"


def vm(found: dict[str, Any]) -> cmi.VM:
    return cmi.VM(found["id"], found["name"], found["tags"], power=cmi.Power.RUNNING, native=found)


if __name__ == "__main__":
    cmi.main(INFO, Backend(os.environ.get("ACME_FOLDER", ".")))
