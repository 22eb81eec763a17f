"""A driver on the kit of sdk/python. Its back end is a folder with a file for each VM, which outlives the process."""

import base64
import fcntl
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import cmi


@dataclass
class Spec:
    """The provider spec. The kit adds the tags."""

    vm_pool: str
    size: Literal["small", "large"]
    root_fs_size: int = 10

    def validate(self) -> None:
        if self.root_fs_size < 0:
            raise cmi.Invalid("/rootFsSize", "must not be negative")
        most = 100 if self.size == "small" else 1000
        if not 10 <= self.root_fs_size <= most:
            raise cmi.OutOfRange("/rootFsSize", f"must be 10 to {most} GB with this /size")


class Folder(cmi.Backend[Spec]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("vms", "locks"):
            # For this user alone: VMs have bootstrap data.
            (folder / name).mkdir(0o700, parents=True, exist_ok=True)

    def create(self, call: cmi.Call, id: cmi.Identity, spec: Spec, boot: cmi.Bootstrap) -> cmi.VM:
        path = self.folder / "vms" / f"{uuid.uuid4().hex}.json"
        data = base64.b64encode(boot.user_data).decode()
        fields = {**asdict(spec), "tags": id.tags}
        made = {"id": f"minimal:///{path.stem}", "machine": id.name, "spec": fields, "userData": data}
        path.with_suffix(".new").write_text(json.dumps(made))
        path.with_suffix(".new").rename(path)  # in its place whole, or not at all
        return self.changed(vm(made, path))

    def find(self, call: cmi.Call, id: cmi.Identity, spec: Spec) -> Iterator[cmi.VM]:
        return (vm for vm in self.list(call, id.cluster, spec) if vm.name == id.name)

    def list(self, call: cmi.Call, cluster: str, spec: Spec) -> Iterator[cmi.VM]:
        for path in (self.folder / "vms").glob("*.json"):
            try:
                found = vm(json.loads(path.read_text()), path)
            except FileNotFoundError:
                continue  # deleted since
            if found.tags[cmi.CLUSTER_TAG] == cluster:
                yield found

    def delete(self, call: cmi.Call, vm: cmi.VM) -> None:
        vm.native.unlink(missing_ok=True)
        self.changed(vm)

    @contextmanager
    def lock(self, call: cmi.Call, id: cmi.Identity) -> Iterator[None]:
        """Keeps other processes away, too. The lock ends with its file, and the file with the process."""
        with open(self.folder / "locks" / hashlib.sha256(str(id).encode()).hexdigest(), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise cmi.Busy(f"another process works on {id}") from None
            yield

    def changed(self, vm: cmi.VM) -> cmi.VM:
        with open(self.folder / "changes", "a") as file:
            file.write(".")
        return vm


def vm(record: dict[str, Any], path: Path) -> cmi.VM:
    locked = "an operator works on it" if record.get("locked") else ""
    return cmi.VM(record["id"], record["machine"], record["spec"]["tags"], locked=locked, native=path)


if __name__ == "__main__":
    folder = os.environ.get("MINIMAL_CLOUD") or sys.exit("MINIMAL_CLOUD must name the folder with the VMs")
    cmi.main(cmi.Info("minimal.example.com", "0.1.0"), Folder(Path(folder)))
