"""Whether a VM is as its spec describes it."""

from __future__ import annotations

from .instances import Instance
from .spec import Spec

# The group that EC2 puts a VM into that asks for none; no other group can have this name.
_DEFAULT_GROUP = "default"


def difference(instance: Instance, spec: Spec) -> str:
    """The first field in which a VM differs from its spec, among those that cannot be changed."""
    same = {
        "image": instance.image == spec.image,
        "instanceType": instance.instance_type == spec.instance_type,
        "subnets": instance.subnet in spec.subnets,
        "failureDomain": spec.failure_domain in (None, instance.zone),
        "keyName": instance.key_name == spec.key_name,
    }
    return _first(same)


def other_access(instance: Instance, spec: Spec) -> str:
    """The same for fields that the account's owner may change later, which prevents no update of the VM."""
    groups = instance.groups
    # EC2 may attach the profile after it has made the VM.
    is_attached = instance.profile is not None or instance.state != "pending"
    same = {
        "securityGroups": (
            groups.keys() == set(spec.security_groups)
            if spec.security_groups
            else set(groups.values()) <= {_DEFAULT_GROUP}
        ),
        "instanceProfile": instance.profile == spec.instance_profile or not is_attached,
    }
    return _first(same)


def _first(same: dict[str, bool]) -> str:
    return next((field for field, is_same in same.items() if not is_same), "")
