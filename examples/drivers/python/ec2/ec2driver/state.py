"""The driver's last known state of a machine, which the next call brings back."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """Never needed to find a VM that EC2 shows: it bridges the time until EC2 does."""

    # EC2 finds an instance by its id before it finds it by its tags.
    instance: str | None = None
    # The subnet of the VM, or before its creation the subnet to make it in.
    subnet: str | None = None
    # The number of used client tokens. EC2 remembers a token that was refused for lack of room, or whose VM is gone.
    generation: int = 0
    # Tags that may be there although the last applied spec has them not.
    tag_keys: tuple[str, ...] = ()

    @classmethod
    def read(cls, raw: bytes) -> State:
        """Reads the state that a call brings back. State of another driver counts as empty (CMI-91)."""
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
