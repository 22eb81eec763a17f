"""What the driver wants back with the next call on a machine: its last known state."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """Never needed to find a VM that EC2 shows: it bridges the time until EC2 does."""

    # EC2 finds an instance by its id before it finds it by its tags.
    instance: str | None = None
    # Where the VM is or, as long as there is none, where it is to be made.
    subnet: str | None = None
    # Of its client tokens. EC2 remembers one that was refused for want of room, or whose
    # VM is gone: it is used up.
    generation: int = 0
    # Tags that may be there although the last applied spec has them not.
    tag_keys: tuple[str, ...] = ()

    @classmethod
    def read(cls, raw: bytes) -> State:
        """From what was given back; what is none of this driver's says nothing (CMI-91)."""
        try:
            value = json.loads(raw or b"{}")
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(value, dict):
            return cls()
        generation = value.get("generation")
        return cls(
            instance=_text(value.get("instance"), "i-"),
            subnet=_text(value.get("subnet"), "subnet-"),
            generation=generation if type(generation) is int and generation > 0 else 0,
            tag_keys=_texts(value.get("tagKeys")),
        )

    def write(self) -> bytes:
        """In the form that is read."""
        value = {
            "instance": self.instance,
            "subnet": self.subnet,
            "generation": self.generation,
            "tagKeys": list(self.tag_keys),
        }
        return json.dumps({key: each for key, each in value.items() if each}).encode()


def _text(value: object, prefix: str) -> str | None:
    return value if isinstance(value, str) and value.startswith(prefix) else None


def _texts(values: object) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()
