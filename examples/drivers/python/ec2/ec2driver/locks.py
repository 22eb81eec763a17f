"""One call at a time for one machine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from .contract import Code, Failure


class Locks:
    """Locks by key that exist as long as a call wants them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._wanted: Counter[Hashable] = Counter()

    @contextmanager
    def held(self, key: Hashable, wait_timeout: float) -> Iterator[None]:
        """Holds the lock of a key, or answers ABORTED when another call holds it for too many seconds."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
            self._wanted[key] += 1
        try:
            if not lock.acquire(timeout=wait_timeout):
                raise Failure(Code.ABORTED, "another call for this machine is running", retry_after_seconds=1)
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                self._wanted[key] -= 1
                if not self._wanted[key]:
                    del self._wanted[key], self._locks[key]
