"""EC2's rules about client tokens, which moto lacks.

A repeated token is answered with the instance that it made. It is refused with another request, and when that instance
is terminated. Zones know nothing of each other's tokens.
"""

from __future__ import annotations

import threading
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.utils import filter_dict_attribute_mapping

_run_instances = InstanceBackend.run_instances


class Tokens:
    """Stands in for moto's way to run instances."""

    def __init__(self) -> None:
        # The request and the instances of each token and zone, also terminated instances.
        self.made: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def run_instances(self, backend: InstanceBackend, *args: Any, **kwargs: Any) -> Any:
        """Makes instances once for each token."""
        place = kwargs["client_token"], backend.get_subnet(kwargs["subnet_id"]).availability_zone
        image, count, user_data, groups = args
        asked = image, count, user_data and user_data.as_bytes(), groups, dict(kwargs)
        with self._lock:
            if place not in self.made:
                self.made[place] = asked, _run_instances(backend, *args, **kwargs)
                return self.made[place][1]
        before, reservation = self.made[place]
        if before != asked:
            raise EC2ClientError(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
            )
        if all(instance.state == "terminated" for instance in reservation.instances):
            raise EC2ClientError(
                "IdempotentInstanceTerminated",
                "The client token you have provided is associated with a terminated instance.",
            )
        return reservation

    def install(self) -> None:
        """For the life of the process."""
        filter_dict_attribute_mapping["client-token"] = "client_token"
        InstanceBackend.run_instances = lambda backend, *args, **kwargs: self.run_instances(backend, *args, **kwargs)
