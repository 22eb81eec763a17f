"""Lets the conformance suite cause faults in a driver. Files in a folder cause them: a hook creates and removes them.

A driver in production never sets `active`: only the package cmitest does.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from .errors import Internal, Unavailable

salt = ""
"""Makes other client tokens, so that a hook can make a second VM of a machine."""


class InjectedError(Exception):
    """An error that the driver does not know."""


class Folder:
    """A folder with a file for each fault, which has the name of its hook. `loseResponse` has two."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # For the files that `clear` keeps.
        self._lasting = path.with_name(path.name + ".lasting")

    def make(self) -> None:
        """Creates the folders."""
        for folder in (self._path, self._lasting):
            folder.mkdir(0o700, parents=True, exist_ok=True)

    def set(self, fault: str, content: str = "") -> None:
        """Causes a fault. The content is a number, or empty."""
        (self._path / fault).write_text(content)

    def clear(self) -> None:
        """Ends all faults."""
        for file in self._path.iterdir():
            file.unlink(missing_ok=True)

    def has(self, fault: str) -> bool:
        """Says whether a fault is set."""
        return (self._path / fault).exists()

    def take(self, fault: str) -> bool:
        """Says whether a fault is set, and ends it."""
        try:
            (self._path / fault).unlink()
        except FileNotFoundError:
            return False
        return True

    def count(self, fault: str) -> bool:
        """Takes one from the number of a fault, and says whether any was left."""
        left = self._number(fault)
        if left < 1:
            return False
        self.set(fault, str(left - 1))
        return True

    def changed(self) -> None:
        """Counts a change of the back end."""
        with (self._lasting / "changes").open("a") as file:
            file.write(".")

    def changes(self) -> int:
        """Returns the number of changes so far."""
        file = self._lasting / "changes"
        return file.stat().st_size if file.exists() else 0

    def lock(self, cluster: str, machine: str, on: bool) -> None:
        """Forbids every operation on the VMs of a machine, or allows them again."""
        file = self._lock(cluster, machine)
        file.touch() if on else file.unlink()

    def locked(self, cluster: str, machine: str) -> bool:
        """Says whether the VMs of a machine are locked."""
        return self._lock(cluster, machine).exists()

    async def reach(self) -> None:
        """Stands before each call to the back end."""
        if milliseconds := self._number("slow"):
            await asyncio.sleep(milliseconds / 1000)
        self.fail()

    def fail(self) -> None:
        """Raises the error of a back end that fails."""
        if self.has("unavailable"):
            raise Unavailable("the back end cannot be reached")
        if self.has("unknown"):
            raise InjectedError("an injected fault")
        if self.has("internal"):
            raise Internal("the back end contradicts itself")

    def _lock(self, cluster: str, machine: str) -> Path:
        return self._lasting / hashlib.sha256(f"{cluster}\0{machine}".encode()).hexdigest()

    def _number(self, fault: str) -> int:
        try:
            return int((self._path / fault).read_text() or 0)
        except FileNotFoundError:
            return 0


active: Folder | None = None
"""The faults of this process."""
