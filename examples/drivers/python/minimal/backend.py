"""The back end of the minimal driver, where the SDK of yours will stand: a folder with a file for each VM.

It outlives the driver, and several drivers on one computer may use it. ../../hook.py makes it fail.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# What its ids begin with.
_ID = "minimal:///"


class Away(Exception):
    """The back end can't be reached, or its answer was lost: whether it has done what it was asked is not known."""


class Full(Exception):
    """There is no room for another VM."""


class Broken(Exception):
    """What the back end says contradicts itself."""


class Busy(Exception):
    """Another call works on the same machine."""


class Unfit(Exception):
    """The driver lacks what it needs to use the back end at all."""


class Vm(NamedTuple):
    """A VM, with the tags in its spec that say whose it is. A locked one can't be changed."""

    id: str
    machine: str
    spec: dict[str, Any]
    locked: bool


class Folder:
    """Each call takes how many seconds its caller still waits, or None, and ends in TimeoutError after that."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        for name in ("vms", "locks", "faults"):
            # For this user alone: VMs have bootstrap data.
            (self._folder / name).mkdir(0o700, parents=True, exist_ok=True)

    def is_ready(self) -> bool:
        """Whether the driver may begin. It is Unfit when waiting does not help."""
        if self._has("unhealthy"):
            raise Unfit(f"the folder {self._folder} can't be used")
        return not self._has("starting")

    @contextmanager
    def held(self, *machine: str) -> Iterator[None]:
        """Keeps all others from a machine, other processes too. They are Busy meanwhile."""
        name = hashlib.sha256(json.dumps(machine).encode()).hexdigest()
        # The lock ends with the file, and the file with the process.
        with open(self._folder / "locks" / name, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy("another call works on the same machine") from None
            yield

    def vms(self, cluster: str, timeout: float | None) -> list[Vm]:
        """The VMs of a cluster."""
        self._call(timeout)
        every = (_read(path) for path in (self._folder / "vms").glob("*.json"))
        return [vm for vm in every if vm and vm.spec["tags"]["kubernetes.io/cluster"] == cluster]

    def create(self, machine: str, spec: dict[str, Any], user_data: bytes, timeout: float | None) -> Vm:
        """Makes a VM, which nothing but a lock keeps from being made twice."""
        if self._has("exhaust"):
            raise Full("the back end has no room for another VM")
        self._call(timeout)
        made = {"machine": machine, "spec": spec, "userData": base64.b64encode(user_data).decode()}
        path = self._folder / "vms" / f"{uuid.uuid4().hex}.json"
        # In its place whole, or not at all.
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(made))
        unfinished.rename(path)
        self._changed("loseCreate")
        return Vm(_ID + path.stem, machine, spec, locked=False)

    def delete(self, vm: Vm, timeout: float | None) -> None:
        """Deletes a VM; it is gone at once."""
        self._call(timeout)
        (self._folder / "vms" / f"{vm.id.removeprefix(_ID)}.json").unlink(missing_ok=True)
        self._changed("loseDelete")

    def _has(self, fault: str) -> bool:
        return (self._folder / "faults" / fault).exists()

    def _call(self, timeout: float | None) -> None:
        """What stands before every use of the back end."""
        if self._has("slow"):
            seconds = int((self._folder / "faults/slow").read_text()) / 1000
            time.sleep(seconds if timeout is None else min(seconds, timeout))
            if timeout is not None and seconds >= timeout:
                raise TimeoutError("the back end did not answer in time")
        if self._has("unavailable"):
            raise Away("the back end can't be reached")
        if self._has("internal"):
            raise Broken("the back end contradicts itself")
        if self._has("unknown"):
            raise RuntimeError("the back end answered something that has no name here")

    def _changed(self, losing: str) -> None:
        """Counts a change that was made, and may lose the answer to it."""
        with open(self._folder / "changes", "a") as file:
            file.write(".")
        if self._has(losing):
            (self._folder / "faults" / losing).unlink()
            raise Away("the answer of the back end was lost")


def _read(path: Path) -> Vm | None:
    """The VM of a file; none when it was deleted meanwhile."""
    try:
        found = json.loads(path.read_text())
        return Vm(_ID + path.stem, found["machine"], found["spec"], found.get("locked", False))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise Broken(f"the file {path.name} of a VM can't be read") from error
