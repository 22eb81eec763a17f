"""EC2 as a back end of the kit. Each method may run at any time, in any thread."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cmi

from .catalog import Catalog
from .clients import Clients
from .instances import Instance, Instances, instance_id, user_data
from .launch import Claim, launch
from .match import difference, other_access
from .spec import Spec, check_tags
from .state import State
from .volumes import volume_id

# The interval between look-ups that wait for EC2 to carry out an order.
_POLL_SECONDS = 1.0
# The part of a deadline that is left for the answer.
_ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Settings:
    """How the driver behaves."""

    # The region of specs that name none.
    region: str | None = None
    # The file with the authorities of EC2, where they are not the usual ones.
    authorities: str | None = None
    # For how many seconds EC2 may still answer with the state before a change.
    consistency_window: float = 30
    # For how many seconds a call waits until EC2 has ended or stopped a VM.
    wait_timeout: float = 20


@dataclass(frozen=True)
class Known:
    """An instance, and the client that has found it."""

    instance: Instance
    instances: Instances


class EC2(cmi.Backend[Spec]):
    """Instances of EC2."""

    def __init__(self, settings: Settings, clients: Clients | None = None) -> None:
        self._settings = settings
        self._clients = clients or Clients()

    def probe(self, call: cmi.Call) -> None:
        """Whether the authorities can be read. EC2 itself is not asked: that takes credentials."""
        file = self._settings.authorities
        if file is None:
            return
        try:
            # As each connection to EC2 does.
            ssl.create_default_context(cafile=file)
        except FileNotFoundError:
            # A volume may be filled after the start.
            raise cmi.Starting from None
        except OSError as error:
            raise cmi.Forbidden(f"AWS_CA_BUNDLE {file} cannot be used: {error}") from error

    def find(self, call: cmi.Call, id: cmi.Identity, spec: Spec) -> Iterable[cmi.VM]:
        """The VMs with the name; and the VM of an earlier call, which EC2 may find by its id before its tags.

        The tag with the name may have been removed: cluster and identity still identify the owner.
        """
        check_tags(id.tags)
        known = instance_id(call.provider_id)
        instances = self._instances(call, spec)
        found = instances.of_machine(id.cluster, id.name)
        seen = {instance.id for instance in found}
        for each in sorted(filter(None, {State.read(call.state).instance, known})):
            instance = None if each in seen else instances.by_id(each)
            if (
                instance
                and instance.alive
                and instance.name in ("", id.name)
                and instance.tags.get(cmi.CLUSTER_TAG) == id.cluster
                and instance.tags.get(cmi.MACHINE_TAG) == id.machine
            ):
                found.append(instance)
        return [_found(instance, instances, id.name, spec) for instance in found]

    def create(self, call: cmi.Call, id: cmi.Identity, spec: Spec, boot: cmi.Bootstrap) -> cmi.VM:
        data = user_data(bytes(boot.user_data), boot.format)
        claim = Claim(id, spec, State.read(call.state))
        catalog = Catalog(self._client(call, spec))
        instance = launch(claim, self._instances(call, spec), catalog, data)
        state = replace(claim.state, instance=instance.id, subnet=instance.subnet or None, tag_keys=())
        return _named(instance).vm(id.name, state.write())

    def match(self, call: cmi.Call, vm: cmi.VM, spec: Spec) -> str:
        instance: Instance = vm.native.instance
        if instance.ending:
            raise cmi.Busy(f"instance {instance.id} is being terminated", retry_after=5)
        field = difference(instance, spec) or other_access(instance, spec)
        if not field:
            # The caller remembers the instance, also of a create whose answer was lost.
            state = replace(State.read(call.state), instance=instance.id, subnet=instance.subnet or None, tag_keys=())
            vm.state, vm.uninitialized = state.write(), ""
        return field and f"it has another /{field}"

    def list(self, call: cmi.Call, cluster: str, spec: Spec) -> Iterator[cmi.VM]:
        instances = self._instances(call, spec)
        return (instance.vm() for instance in instances.of_cluster(cluster))

    def delete(self, call: cmi.Call, vm: cmi.VM) -> None:
        """Terminates the VM, and waits until it is gone."""
        known: Known = vm.native
        _check_caller(call)
        known.instances.terminate(known.instance)
        self._wait(call, known, f"{known.instance.id} to be terminated", ())

    def stop(self, call: cmi.Call, vm: cmi.VM) -> None:
        """Asks the guest to stop, and waits until it has."""
        known: Known = vm.native
        if known.instance.state in ("pending", "running"):
            _check_caller(call)
            known.instances.stop(known.instance)
        self._wait(call, known, f"{known.instance.id} to be stopped", ("stopped", "shutting-down"))

    def console(self, call: cmi.Call, vm: cmi.VM) -> bytes:
        known: Known = vm.native
        return known.instances.console(known.instance)

    def initialize(self, call: cmi.Call, vm: cmi.VM, spec: Spec) -> None:
        """Switches the source/destination check, which no instance can be made with."""
        _check_caller(call)
        try:
            vm.native.instances.set_source_dest_check(vm.native.instance, spec.source_dest_check)
        except cmi.Error as error:
            # The VM exists, and the step is not done, for any cause (INI-21).
            raise cmi.Uninitialized(error.message, retry_after=error.retry_after) from error.__cause__

    def update(self, call: cmi.Call, vm: cmi.VM, change: cmi.Change[Spec]) -> None:
        """Brings tags and source/destination check of a living VM to a changed spec (UPD-01..UPD-03)."""
        instance, instances = vm.native.instance, vm.native.instances
        if field := difference(instance, change.spec):
            raise cmi.Invalid(f"/{field}", f"cannot be changed on instance {instance.id}; tags and sourceDestCheck can")
        state = State.read(call.state)
        # Tags that an update has set which then failed.
        left = [key for key in state.tag_keys if key in vm.tags and key not in change.tags]
        dropped = sorted({*change.remove_tags, *left})
        _check_caller(call)
        try:
            if change.set_tags:
                instances.tag(instance, change.set_tags)
            if dropped:
                instances.untag(instance, dropped)
            if instance.source_dest_check != change.spec.source_dest_check:
                instances.set_source_dest_check(instance, change.spec.source_dest_check)
        except cmi.Error as error:
            # The way back to the last applied spec needs all tags that may be there.
            started = tuple(sorted({*state.tag_keys, *change.remove_tags, *change.tags}))
            error.state = replace(state, instance=instance.id, tag_keys=started).write()
            raise

    def zones(self, call: cmi.Call, spec: Spec | None) -> Iterable[cmi.Zone]:
        """Returns the zones of the spec's subnets, or without a spec for machines the zones of the region."""
        catalog = Catalog(self._client(call, spec))
        return catalog.zones(catalog.subnet_zones(spec.subnets).values()) if spec else catalog.zones()

    def size(self, call: cmi.Call, spec: Spec) -> cmi.Size:
        return Catalog(self._client(call, spec)).describe(spec)

    def volume_id(self, call: cmi.Call, volume: cmi.PersistentVolume) -> str:
        return volume_id(volume)

    def _client(self, call: cmi.Call, spec: Spec | None) -> Any:
        region = (spec and spec.region) or self._settings.region
        if region is None:
            raise cmi.Invalid("/region", "is required, since the driver has no AWS_REGION")
        return self._clients.ec2(region, call.secrets)

    def _instances(self, call: cmi.Call, spec: Spec) -> Instances:
        return Instances(self._client(call, spec))

    def _wait(self, call: cmi.Call, known: Known, what: str, done: tuple[str, ...]) -> None:
        """Waits until the instance is gone, or in one of these states."""
        end = time.monotonic() + max(0.0, min(self._settings.wait_timeout, call.time_left() - _ANSWER_SECONDS))
        while (found := known.instances.by_id(known.instance.id)) and found.alive and found.state not in done:
            if time.monotonic() >= end or call.cancelled:
                raise cmi.Busy(f"waiting for {what}", retry_after=5)
            time.sleep(min(_POLL_SECONDS, max(0.0, end - time.monotonic())))


def _found(instance: Instance, instances: Instances, name: str, spec: Spec) -> cmi.VM:
    vm = _named(instance).vm(name)
    if not instance.ending and instance.source_dest_check != spec.source_dest_check:
        vm.uninitialized = "its source/destination check is not switched yet"
    vm.native = Known(instance, instances)
    return vm


def _named(instance: Instance) -> Instance:
    if not instance.node_name:
        raise cmi.Internal(f"EC2 gave instance {instance.id} no private DNS name, which its Node would have")
    return instance


def _check_caller(call: cmi.Call) -> None:
    """Comes before each change: a call without a caller must not undo a later call."""
    if not call.time_left():
        raise cmi.Busy("the caller has left; nothing was changed")
