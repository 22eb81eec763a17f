"""The calls of the driver contract, on instances of EC2."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from . import paging
from . import spec as specs
from .catalog import Catalog, ClassDescription, Zone
from .claim import Claim, difference, ids
from .clients import Clients
from .contract import USER_DATA, USER_DATA_FORMAT, Code, Failure, Machine, Secrets, check_machine_name
from .instances import Instance, Instances, instance_id, user_data
from .launch import launch
from .locks import Locks
from .spec import Spec
from .state import State

# How often EC2 is asked whether it has done what it was told.
_POLL_SECONDS = 1.0
# What is left of a deadline for the answer to be on time.
_ANSWER_SECONDS = 2.0
# How long a call waits for another one on the same machine: one whose caller has gone
# ends with its call to EC2.
_LONGEST_TURN_SECONDS = 30.0


@dataclass(frozen=True)
class Settings:
    """How the driver behaves."""

    # Where specs that name no region belong.
    region: str | None = None
    # For how many seconds EC2 may still answer with the state before a change.
    consistency_window: float = 30
    # For how many seconds a call waits for EC2 to have done what it was told.
    wait_timeout: float = 20


@dataclass(frozen=True)
class Request:
    """What the calls about one machine have in common."""

    name: str
    provider_spec: bytes
    secrets: Secrets
    provider_id: str = ""
    last_known_state: bytes = b""
    # How many seconds the caller still waits; 0 when it has gone.
    time_left: Callable[[], float] = lambda: float("inf")

    def check_caller(self) -> None:
        """Comes before each change: a call without a caller must not undo what was asked for since."""
        if not self.time_left():
            raise Failure(Code.ABORTED, "the caller has gone; nothing was changed")


class Driver:
    """EC2 behind the driver contract. Any call may be made at any time, from any thread."""

    def __init__(self, settings: Settings, clients: Clients | None = None) -> None:
        self.settings = settings
        self._clients = clients or Clients()
        self._locks = Locks()

    def create(self, request: Request) -> Machine:
        """Makes the VM, or adopts the one that an earlier call has made."""
        claim = self._claim(request, specs.for_new_machine)
        data = user_data(request.secrets.values.get(USER_DATA, b""), request.secrets.text(USER_DATA_FORMAT))
        client = self._client(claim.spec, request.secrets)
        instances = Instances(client)
        with self._locks.held(claim.key, _bounded(request, _LONGEST_TURN_SECONDS)):
            instance = claim.adopted(claim.found(instances))
            if not instance:
                request.check_caller()
                instance = launch(claim, instances, Catalog(client), data)
        return instance.machine(_remembered(claim, instance).write())

    def initialize(self, request: Request) -> Machine:
        """Switches the source/destination check, which no instance can be made with."""
        claim = self._claim(request)
        instances = self._instances(claim.spec, request.secrets)
        with self._locks.held(claim.key, _bounded(request, _LONGEST_TURN_SECONDS)):
            instance = claim.one(claim.found(instances))
            wanted = claim.spec.source_dest_check
            if instance.source_dest_check != wanted:
                request.check_caller()
                try:
                    instances.set_source_dest_check(instance, wanted)
                except Failure as failure:
                    # Whatever was in the way: the VM is there, and the step is not done (INI-21).
                    raise replace(failure, code=Code.UNINITIALIZED, machine=instance.machine()) from failure
        return instance.machine()

    def status(self, request: Request) -> Machine:
        """Reads the VM and changes nothing."""
        claim = self._claim(request)
        instance = claim.one(claim.found(self._instances(claim.spec, request.secrets)))
        if not instance.ending and instance.source_dest_check != claim.spec.source_dest_check:
            raise Failure(
                Code.UNINITIALIZED,
                f"the source/destination check of instance {instance.id} is not switched yet",
                machine=instance.machine(),
            )
        return instance.machine()

    def delete(self, request: Request) -> None:
        """Terminates the VM, and answers when it is gone."""
        claim = self._claim(request)
        instances = self._instances(claim.spec, request.secrets)
        with self._locks.held(claim.key, _bounded(request, _LONGEST_TURN_SECONDS)):
            left = claim.ours(claim.found(instances))
            if left:
                request.check_caller()
                instances.terminate(left)
                self._wait(request, lambda: not claim.ours(claim.found(instances)), f"{ids(left)} to be terminated")

    def shut_down(self, request: Request) -> None:
        """Asks the guest to stop, and answers when it has."""
        claim = self._claim(request)
        instances = self._instances(claim.spec, request.secrets)
        with self._locks.held(claim.key, _bounded(request, _LONGEST_TURN_SECONDS)):
            instance = claim.one(claim.found(instances))
            if instance.state in ("pending", "running"):
                request.check_caller()
                instances.stop(instance)

            def stopped() -> bool:
                return claim.one(claim.found(instances)).state in ("stopped", "shutting-down")

            self._wait(request, stopped, f"{instance.id} to be stopped")

    def update(self, request: Request, last_applied: bytes) -> None:
        """Brings tags and source/destination check of a living VM to a changed spec (UPD-01..UPD-03)."""
        claim = self._claim(request)
        instances = self._instances(claim.spec, request.secrets)
        with self._locks.held(claim.key, _bounded(request, _LONGEST_TURN_SECONDS)):
            instance = claim.one(claim.found(instances))
            if field := difference(instance, claim.spec):
                raise Failure(
                    Code.INVALID_ARGUMENT,
                    f"the provider spec's /{field} can't be changed on instance {instance.id}; "
                    f"{' and '.join(specs.HOT_UPDATABLE)} can",
                )
            request.check_caller()
            before = {*specs.last_applied(last_applied), *claim.state.tag_keys}
            try:
                _update(instances, instance, claim.spec, before)
            except Failure as failure:
                # The way back to the last applied spec needs all tags that may be there.
                started = tuple(sorted(before | claim.spec.tags.keys()))
                raise replace(failure, last_known_state=_remembered(claim, instance, started).write()) from failure

    def list_all(self, provider_spec: bytes, secrets: Secrets) -> list[Instance]:
        """All VMs of the cluster."""
        spec = specs.for_cluster(provider_spec, self.settings.region)
        return self._instances(spec, secrets).of_cluster(spec.cluster)

    def list_page(self, provider_spec: bytes, secrets: Secrets, size: int, token: str) -> tuple[list[Instance], str]:
        """Some of the cluster's VMs, and the token of the next page; no token at the end."""
        spec = specs.for_cluster(provider_spec, self.settings.region)
        instances = self._instances(spec, secrets)

        def read(size: int, token: str) -> tuple[list[Instance], str]:
            return instances.page_of_cluster(spec.cluster, size, token)

        return paging.page(spec.cluster, size, token, read)

    def zones(self, provider_spec: bytes, secrets: Secrets) -> list[Zone]:
        """The zones of the spec's subnets; before there is a spec for machines, those of the region."""
        wanted = specs.partial(provider_spec)
        region = specs.region_of(wanted, self.settings.region)
        catalog = Catalog(self._clients.ec2(region, secrets))
        if "subnets" not in wanted:
            return catalog.zones()
        spec = specs.for_class(provider_spec, self.settings.region)
        return catalog.zones(catalog.subnet_zones(spec.subnets).values())

    def describe_class(self, provider_spec: bytes, secrets: Secrets) -> ClassDescription:
        """What one VM of this spec holds."""
        spec = specs.for_class(provider_spec, self.settings.region)
        return Catalog(self._client(spec, secrets)).describe(spec)

    def _claim(self, request: Request, read: Callable[[bytes, str | None], Spec] = specs.for_machine) -> Claim:
        check_machine_name(request.name)
        return Claim(
            name=request.name,
            instance=instance_id(request.provider_id),
            spec=read(request.provider_spec, self.settings.region),
            state=State.read(request.last_known_state),
        )

    def _client(self, spec: Spec, secrets: Secrets) -> object:
        return self._clients.ec2(spec.region, secrets)

    def _instances(self, spec: Spec, secrets: Secrets) -> Instances:
        return Instances(self._client(spec, secrets))

    def _wait(self, request: Request, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _bounded(request, self.settings.wait_timeout)
        while not done():
            if time.monotonic() >= end or not request.time_left():
                raise Failure(Code.ABORTED, f"waiting for {what}", retry_after_seconds=5)
            time.sleep(min(_POLL_SECONDS, max(0.0, end - time.monotonic())))


def _bounded(request: Request, seconds: float) -> float:
    """So many seconds, or as many as leave the answer time to arrive."""
    return max(0.0, min(seconds, request.time_left() - _ANSWER_SECONDS))


def _remembered(claim: Claim, instance: Instance, tag_keys: tuple[str, ...] = ()) -> State:
    return replace(claim.state, instance=instance.id, subnet=instance.subnet or None, tag_keys=tag_keys)


def _update(instances: Instances, instance: Instance, spec: Spec, before: set[str]) -> None:
    """What the VM really has counts, and tags that others have set stay."""
    changed = {key: value for key, value in spec.tags.items() if instance.tags.get(key) != value}
    dropped = sorted((before - spec.tags.keys()) & instance.tags.keys())
    if changed:
        instances.tag(instance, changed)
    if dropped:
        instances.untag(instance, dropped)
    if instance.source_dest_check != spec.source_dest_check:
        instances.set_source_dest_check(instance, spec.source_dest_check)
