"""Pages of any size, from a back end whose pages have a least one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from .contract import Code, Failure
from .instances import Instance

_LARGEST = 1000
_SMALLEST = 5

# A page of EC2's, by its size and token, and the token of the one after it.
Read = Callable[[int, str], tuple[list[Instance], str]]


@dataclass(frozen=True)
class Mark:
    """A place in the list of a cluster: a page of EC2's, but for what was given out of it before.

    By ids, not by a number: what vanishes meanwhile would shift the others, and one would be in no page.
    """

    cluster: str
    token: str = ""
    given: tuple[str, ...] = ()

    @classmethod
    def read(cls, cluster: str, text: str) -> Mark:
        """From a page token."""
        if not text:
            return cls(cluster)
        parts = text.split(".", 2)
        if len(parts) != 3 or parts[0] != _digest(cluster):
            raise Failure(Code.INVALID_ARGUMENT, "page_token is none that this driver gave for this cluster")
        return cls(cluster, parts[2], tuple(filter(None, parts[1].split(","))))

    def write(self) -> str:
        """As a page token."""
        return f"{_digest(self.cluster)}.{','.join(self.given)}.{self.token}"


def page(cluster: str, size: int, token: str, read: Read) -> tuple[list[Instance], str]:
    """At most so many of a cluster's instances, all that there can be for 0; and the token of the next page."""
    if size < 0:
        raise Failure(Code.INVALID_ARGUMENT, f"page_size is {size}; it can't be negative")
    mark = Mark.read(cluster, token)
    size = min(size, _LARGEST) or _LARGEST
    found, following = read(max(size, _SMALLEST), mark.token)
    left = [instance for instance in found if instance.id not in mark.given]
    now, later = left[:size], left[size:]
    if later:
        return now, Mark(cluster, mark.token, (*mark.given, *(instance.id for instance in now))).write()
    return now, Mark(cluster, following).write() if following else ""


def _digest(cluster: str) -> str:
    return hashlib.sha256(cluster.encode()).hexdigest()[:16]
