"""The calls of the driver contract, on instances of EC2."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from . import spec as specs
from .catalog import Catalog, ClassDescription, Zone
from .clients import Clients
from .contract import CLUSTER_TAG, IDENTITY_TAG, Code, Failure, Machine, Secrets, check_machine_name
from .instances import Instance, Instances, instance_id, user_data
from .locks import Locks
from .spec import Spec

USER_DATA, USER_DATA_FORMAT = "userData", "userDataFormat"

# How often EC2 is asked whether it has done what it was told.
_POLL_SECONDS = 1.0
# What is left of a deadline for the answer to be on time.
_ANSWER_SECONDS = 2.0
# How often a token that made an instance that is gone by now is followed by another.
_MOST_TOKENS = 8
_LARGEST_PAGE = 1000
_SMALLEST_PAGE = 5


@dataclass(frozen=True)
class Settings:
    """How the driver behaves."""

    # Where specs that name no region belong.
    region: str | None = None
    # For how many seconds EC2 may still answer with the state before a change.
    consistency_window: float = 30
    # For how many seconds a call waits for EC2 to have done what it was told.
    patience: float = 20


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


@dataclass(frozen=True)
class _Claim:
    """Whose VM is meant: cluster, name and identity have to fit, so nobody else's is ever touched (DRV-20, DRV-28)."""

    name: str
    spec: Spec
    instance: str | None
    remembered: str | None

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.spec.region, self.spec.cluster, self.name)

    def ours(self, found: Iterable[Instance]) -> list[Instance]:
        return [instance for instance in found if instance.tags.get(IDENTITY_TAG) == self.spec.identity]

    def one(self, found: Iterable[Instance]) -> Instance:
        """The one that is meant."""
        ours = self.ours(found)
        if len(ours) > 1:
            raise Failure(Code.OUT_OF_RANGE, f"machine {self.name} has several VMs: {_ids(ours)}")
        if not ours or self.instance not in (None, ours[0].id):
            wanted = f" with the id {self.instance}" if self.instance else ""
            raise Failure(Code.NOT_FOUND, f"cluster {self.spec.cluster} has no VM of machine {self.name}{wanted}")
        return ours[0]


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
        with self._locks.held(claim.key, self._patience(request)):
            instance = _adopted(claim, _found(instances, claim)) or self._run(claim, instances, Catalog(client), data)
        return instance.machine(_state(instance))

    def initialize(self, request: Request) -> Machine:
        """Switches the source/destination check, which no instance can be made with."""
        claim = self._claim(request)
        instances = self._instances(claim.spec, request.secrets)
        with self._locks.held(claim.key, self._patience(request)):
            instance = claim.one(_found(instances, claim))
            wanted = claim.spec.source_dest_check
            if instance.source_dest_check != wanted:
                try:
                    instances.set_source_dest_check(instance, wanted)
                except Failure as failure:
                    # Whatever was in the way: the VM is there, and the step is not done (INI-21).
                    raise replace(failure, code=Code.UNINITIALIZED, machine=instance.machine()) from failure
        return instance.machine()

    def status(self, request: Request) -> Machine:
        """Reads the VM and changes nothing."""
        claim = self._claim(request)
        instance = claim.one(_found(self._instances(claim.spec, request.secrets), claim))
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
        with self._locks.held(claim.key, self._patience(request)):
            left = claim.ours(_found(instances, claim))
            instances.terminate(left)
            self._wait(request, lambda: not claim.ours(_found(instances, claim)), f"{_ids(left)} to be terminated")

    def shut_down(self, request: Request) -> None:
        """Asks the guest to stop, and answers when it has."""
        claim = self._claim(request)
        instances = self._instances(claim.spec, request.secrets)
        with self._locks.held(claim.key, self._patience(request)):
            instance = claim.one(_found(instances, claim))
            if instance.state in ("pending", "running"):
                instances.stop(instance)

            def stopped() -> bool:
                return claim.one(_found(instances, claim)).state in ("stopped", "shutting-down")

            self._wait(request, stopped, f"{instance.id} to be stopped")

    def update(self, request: Request, last_applied: bytes) -> None:
        """Brings tags and source/destination check of a living VM to a changed spec (UPD-01..UPD-03)."""
        claim = self._claim(request)
        instances = self._instances(claim.spec, request.secrets)
        with self._locks.held(claim.key, self._patience(request)):
            instance = claim.one(_found(instances, claim))
            if field := _difference(instance, claim.spec):
                raise Failure(
                    Code.INVALID_ARGUMENT,
                    f"the provider spec's /{field} can't be changed on instance {instance.id}; "
                    f"{' and '.join(specs.HOT_UPDATABLE)} can",
                )
            before = {*specs.last_applied(last_applied), *_tag_keys(request.last_known_state)}
            try:
                _update(instances, instance, claim.spec, before)
            except Failure as failure:
                # Whoever goes back to the last applied spec has to know which tags may be there.
                started = sorted(before | claim.spec.tags.keys())
                raise replace(failure, last_known_state=_state(instance, started)) from failure

    def list_all(self, provider_spec: bytes, secrets: Secrets) -> list[Instance]:
        """All VMs of the cluster."""
        spec = specs.for_cluster(provider_spec, self.settings.region)
        return self._instances(spec, secrets).of_cluster(spec.cluster)

    def list_page(self, provider_spec: bytes, secrets: Secrets, size: int, token: str) -> tuple[list[Instance], str]:
        """Some of the cluster's VMs, and the token of the next page; no token at the end."""
        spec = specs.for_cluster(provider_spec, self.settings.region)
        if size < 0:
            raise Failure(Code.INVALID_ARGUMENT, f"page_size is {size}; it can't be negative")
        mark = hashlib.sha256(spec.cluster.encode()).hexdigest()[:16] + "."
        if token and not token.startswith(mark):
            raise Failure(Code.INVALID_ARGUMENT, "page_token is none that this driver gave for this cluster")
        size = min(max(size, _SMALLEST_PAGE), _LARGEST_PAGE) if size else _LARGEST_PAGE
        found, following = self._instances(spec, secrets).page_of_cluster(spec.cluster, size, token.removeprefix(mark))
        return found, following and mark + following

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

    def _claim(self, request: Request, read: Callable[[bytes, str | None], Spec] = specs.for_machine) -> _Claim:
        check_machine_name(request.name)
        return _Claim(
            name=request.name,
            instance=instance_id(request.provider_id),
            spec=read(request.provider_spec, self.settings.region),
            remembered=_remembered(request.last_known_state),
        )

    def _client(self, spec: Spec, secrets: Secrets) -> object:
        return self._clients.ec2(spec.region, secrets)

    def _instances(self, spec: Spec, secrets: Secrets) -> Instances:
        return Instances(self._client(spec, secrets))

    def _run(self, claim: _Claim, instances: Instances, catalog: Catalog, data: bytes) -> Instance:
        """In the first zone that has room. The order is always the same, so that a repeat begins where this began."""
        failure = Failure(Code.INTERNAL, "no subnet was tried")
        for subnet in _subnets(claim, catalog):
            try:
                return _run_in(subnet, claim, instances, data)
            except Failure as refused:
                if not refused.elsewhere:
                    raise
                failure = refused
        raise failure

    def _patience(self, request: Request) -> float:
        return max(0.0, min(self.settings.patience, request.time_left() - _ANSWER_SECONDS))

    def _wait(self, request: Request, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self._patience(request)
        while not done():
            if time.monotonic() >= end or not request.time_left():
                raise Failure(Code.ABORTED, f"waiting for {what}", retry_after_seconds=5)
            time.sleep(min(_POLL_SECONDS, max(0.0, end - time.monotonic())))


def _found(instances: Instances, claim: _Claim) -> list[Instance]:
    """What has the name; and what an earlier call made, which may be found by its id before it is by its tags.

    Somebody may have removed the tag with the name: cluster and identity still say whose it is.
    """
    found = instances.of_machine(claim.spec.cluster, claim.name)
    seen = {instance.id for instance in found}
    for known in filter(None, {claim.remembered, claim.instance}):
        instance = None if known in seen else instances.by_id(known)
        if (
            instance
            and instance.alive
            and instance.name in ("", claim.name)
            and instance.tags.get(CLUSTER_TAG) == claim.spec.cluster
            and claim.ours([instance])
        ):
            found.append(instance)
    return found


def _adopted(claim: _Claim, found: list[Instance]) -> Instance | None:
    """The VM that is there already, if it is what is asked for."""
    ours = claim.ours(found)
    if len(ours) > 1:
        raise Failure(Code.FAILED_PRECONDITION, f"machine {claim.name} has several VMs: {_ids(ours)}")
    if not ours:
        if found:
            raise Failure(
                Code.ALREADY_EXISTS,
                f"{_ids(found)} has the name {claim.name} and is another machine object's",
            )
        return None
    if ours[0].ending:
        raise Failure(Code.ABORTED, f"instance {ours[0].id} is being terminated", retry_after_seconds=5)
    if field := _difference(ours[0], claim.spec):
        raise Failure(Code.ALREADY_EXISTS, f"instance {ours[0].id} exists with another /{field}")
    return ours[0]


def _difference(instance: Instance, spec: Spec) -> str | None:
    """The first field in which a VM is not what is asked for, of those that can't be changed."""
    same = {
        "image": instance.image == spec.image,
        "instanceType": instance.instance_type == spec.instance_type,
        "subnets": instance.subnet in spec.subnets,
        "failureDomain": spec.failure_domain in (None, instance.zone),
    }
    return next((field for field, is_same in same.items() if not is_same), None)


def _subnets(claim: _Claim, catalog: Catalog) -> list[str]:
    """The subnets to try, in an order of the machine's own: the machines of a class spread over the zones."""
    zones = catalog.subnet_zones(claim.spec.subnets)
    wanted = claim.spec.failure_domain
    fitting = [subnet for subnet, zone in zones.items() if wanted in (None, zone)]
    if not fitting:
        there_are = ", ".join(sorted(set(zones.values())))
        raise Failure(
            Code.INVALID_ARGUMENT,
            f"the provider spec's /failureDomain: no subnet is in {wanted}; there are {there_are}",
        )
    return sorted(fitting, key=lambda subnet: _digest(claim.spec.identity, subnet))


def _run_in(subnet: str, claim: _Claim, instances: Instances, data: bytes) -> Instance:
    for attempt in range(_MOST_TOKENS):
        token = _digest(claim.spec.cluster, claim.name, claim.spec.identity, subnet, str(attempt))
        try:
            instance = instances.run(claim.spec, claim.name, subnet, token, data)
        except Failure as failure:
            # The token has made an instance from other bootstrap data; it may be found by its tags by now.
            if failure.code != Code.ABORTED or not (adopted := _adopted(claim, _found(instances, claim))):
                raise
            return adopted
        # A token lives longer than its instance: one that is gone was another life of this machine. What is not to
        # be seen yet is new.
        seen = instances.by_id(instance.id) or instance
        if seen.alive and not seen.ending:
            return seen
    raise Failure(Code.ABORTED, f"EC2 still answers with instances of machine {claim.name} that are terminated")


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


def _digest(*parts: str) -> str:
    """64 characters, which is what a client token may have."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _ids(instances: Iterable[Instance]) -> str:
    return ", ".join(sorted(instance.provider_id for instance in instances))


def _state(instance: Instance, tag_keys: Iterable[str] = ()) -> bytes:
    """What the driver wants back: EC2 finds an instance by its id before it finds it by its tags."""
    return json.dumps({"instance": instance.id, "tagKeys": list(tag_keys)}).encode()


def _read_state(raw: bytes) -> dict[str, object]:
    """What was given back; nothing when it is none of this driver's."""
    try:
        state = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}


def _remembered(raw: bytes) -> str | None:
    known = _read_state(raw).get("instance")
    return known if isinstance(known, str) and known.startswith("i-") else None


def _tag_keys(raw: bytes) -> set[str]:
    keys = _read_state(raw).get("tagKeys")
    return {key for key in keys if isinstance(key, str)} if isinstance(keys, list) else set()
