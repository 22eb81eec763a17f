"""Whose VM is meant, and whether one that is there is it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .contract import CLUSTER_TAG, IDENTITY_TAG, Code, Failure
from .instances import Instance, Instances
from .spec import Spec
from .state import State

# The group that EC2 puts a VM into that asks for none; no other group can have this name.
_DEFAULT_GROUP = "default"


@dataclass(frozen=True)
class Claim:
    """Cluster, name and identity have to fit, so another machine's VM is never touched (DRV-20, DRV-28)."""

    name: str
    spec: Spec
    # From the ProviderID of the call.
    instance: str | None
    state: State

    @property
    def key(self) -> tuple[str, str, str]:
        """What no two machines have in common."""
        return (self.spec.region, self.spec.cluster, self.name)

    def ours(self, found: Iterable[Instance]) -> list[Instance]:
        """Those of this machine object."""
        return [instance for instance in found if instance.tags.get(IDENTITY_TAG) == self.spec.identity]

    def one(self, found: Iterable[Instance]) -> Instance:
        """The one that is meant."""
        ours = self.ours(found)
        if len(ours) > 1:
            raise Failure(Code.OUT_OF_RANGE, f"machine {self.name} has several VMs: {ids(ours)}")
        if not ours or self.instance not in (None, ours[0].id):
            wanted = f" with the id {self.instance}" if self.instance else ""
            raise Failure(Code.NOT_FOUND, f"cluster {self.spec.cluster} has no VM of machine {self.name}{wanted}")
        return ours[0]

    def found(self, instances: Instances) -> list[Instance]:
        """What has the name; and what an earlier call made, which may be found by its id before it is by its tags.

        The tag with the name may have been removed: cluster and identity still say whose it is.
        """
        found = instances.of_machine(self.spec.cluster, self.name)
        seen = {instance.id for instance in found}
        for known in filter(None, {self.state.instance, self.instance}):
            instance = None if known in seen else instances.by_id(known)
            if (
                instance
                and instance.alive
                and instance.name in ("", self.name)
                and instance.tags.get(CLUSTER_TAG) == self.spec.cluster
                and self.ours([instance])
            ):
                found.append(instance)
        return found

    def adopted(self, found: list[Instance]) -> Instance | None:
        """The VM that is there already, if it is what is asked for."""
        ours = self.ours(found)
        if len(ours) > 1:
            raise Failure(Code.FAILED_PRECONDITION, f"machine {self.name} has several VMs: {ids(ours)}")
        if not ours:
            if found:
                raise Failure(
                    Code.ALREADY_EXISTS,
                    f"{ids(found)} has the name {self.name} and is another machine object's",
                )
            return None
        if ours[0].ending:
            raise Failure(Code.ABORTED, f"instance {ours[0].id} is being terminated", retry_after_seconds=5)
        if field := difference(ours[0], self.spec) or _other_access(ours[0], self.spec):
            raise Failure(Code.ALREADY_EXISTS, f"instance {ours[0].id} exists with another /{field}")
        return ours[0]


def difference(instance: Instance, spec: Spec) -> str | None:
    """The first field in which a VM is not what is asked for, of those that can't be changed."""
    same = {
        "image": instance.image == spec.image,
        "instanceType": instance.instance_type == spec.instance_type,
        "subnets": instance.subnet in spec.subnets,
        "failureDomain": spec.failure_domain in (None, instance.zone),
        "keyName": instance.key_name == spec.key_name,
    }
    return _first(same)


def _other_access(instance: Instance, spec: Spec) -> str | None:
    """The same for what the account's owner may change later on, which keeps no VM from being updated."""
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


def _first(same: dict[str, bool]) -> str | None:
    return next((field for field, is_same in same.items() if not is_same), None)


def ids(instances: Iterable[Instance]) -> str:
    """For a message."""
    return ", ".join(sorted(instance.provider_id for instance in instances))
