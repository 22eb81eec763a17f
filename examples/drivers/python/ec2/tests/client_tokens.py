"""EC2's rule about client tokens, which moto lacks: one that came before is answered with what was made then."""

from __future__ import annotations

import threading
from typing import Any

from moto.ec2.models.instances import InstanceBackend

_run_instances = InstanceBackend.run_instances


class Tokens:
    """Stands in for moto's way to run instances."""

    def __init__(self) -> None:
        # What each token made, terminated or not.
        self.made: dict[str, Any] = {}
        self._lock = threading.Lock()

    def run_instances(self, backend: InstanceBackend, *args: Any, **kwargs: Any) -> Any:
        """Makes instances once for each token."""
        token = kwargs["client_token"]
        with self._lock:
            if token not in self.made:
                self.made[token] = _run_instances(backend, *args, **kwargs)
            return self.made[token]

    def install(self) -> None:
        """For the life of the process."""
        InstanceBackend.run_instances = lambda backend, *args, **kwargs: self.run_instances(backend, *args, **kwargs)
