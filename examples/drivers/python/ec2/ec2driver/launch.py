"""How a VM is made, so that there never are two of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import cmi

from . import errors
from .catalog import Catalog
from .instances import Instance, Instances
from .match import difference, other_access
from .spec import Spec
from .state import State

# How many VMs of one machine may have come and gone while EC2 remembers their tokens, which is a day.
_MOST_LIVES = 8
# The shortest wait that can be asked for. The next zone is tried soon; and the other machines of the class,
# which may begin in another zone, are not held back for ten minutes as they are without it.
_AT_ONCE_SECONDS = 0.001


@dataclass(frozen=True)
class Claim:
    """The machine that a VM is made for."""

    id: cmi.Identity
    spec: Spec
    state: State


def launch(claim: Claim, instances: Instances, catalog: Catalog, data: bytes) -> Instance:
    """Makes the VM in the subnet whose turn it is, or finds the VM that an earlier call has made there.

    EC2 keeps client tokens by zone: in another zone, the same token makes another VM. A VM whose answer got lost may be
    invisible for a while, so no call can know that an earlier zone has no VM. Hence a full zone ends the call, and its
    answer names the next subnet in the last known state. Only calls that bring this state back go there. A caller that
    gives nothing back stays in the first zone.

    RESOURCE_EXHAUSTED is true for that caller, and for another caller it is true of one zone. The answer about the last
    zone asks for no short wait. A zone that does not offer the instance type is passed over in every call.
    """
    order = _subnets(claim, catalog)
    begin = order.index(claim.state.subnet) if claim.state.subnet in order else 0
    not_offered: cmi.Error | None = None
    for place, subnet in enumerate(order[begin:], begin):
        try:
            return _run_in(subnet, claim, instances, data)
        except cmi.Exhausted as error:
            raise _without_room(error, claim.state, order, place) from error.__cause__
        except cmi.Error as error:
            if not errors.is_elsewhere(error):
                raise
            not_offered = not_offered or error
    error = not_offered or cmi.Internal("no subnet was tried")
    if begin:
        # Those before were full, which passes.
        state = replace(claim.state, subnet=order[0]).write()
        raise cmi.Exhausted(f"no zone had room; the last: {error.message}", state=state) from error.__cause__
    raise error


def _without_room(error: cmi.Exhausted, state: State, order: list[str], place: int) -> cmi.Exhausted:
    """Returns the answer to a create without room: nothing was made, and its token is not used again."""
    state = replace(state, generation=state.generation + 1)
    if not errors.is_elsewhere(error):
        return cmi.Exhausted(error.message, state=replace(state, subnet=order[place]).write())
    following = order[(place + 1) % len(order)]
    remembered = replace(state, subnet=following).write()
    if place + 1 == len(order):
        return cmi.Exhausted(error.message, state=remembered)
    message = f"{following} is tried next: {error.message}"
    return cmi.Exhausted(message, state=remembered, retry_after=_AT_ONCE_SECONDS)


def _subnets(claim: Claim, catalog: Catalog) -> list[str]:
    """The subnets to try, in an order of the machine's own: the machines of a class spread over the zones."""
    zones = catalog.subnet_zones(claim.spec.subnets)
    wanted = claim.spec.failure_domain
    fitting = [subnet for subnet, zone in zones.items() if wanted in (None, zone)]
    if not fitting:
        there_are = ", ".join(sorted(set(zones.values())))
        raise cmi.Invalid("/failureDomain", f"no subnet is in {wanted}; there are {there_are}")
    return sorted(fitting, key=lambda subnet: _digest(claim.id.machine, subnet))


def _run_in(subnet: str, claim: Claim, instances: Instances, data: bytes) -> Instance:
    """Follows the tokens of this machine and subnet to the first whose VM is not gone by now: that was another life."""
    id, generation = claim.id, claim.state.generation
    for life in range(_MOST_LIVES):
        token = _digest(id.cluster, id.name, id.machine, subnet, str(generation), str(life))
        try:
            made = instances.run(claim.spec, id, subnet, token, data)
        except cmi.Error as error:
            match errors.reason_of(error):
                case errors.TOKEN_OF_A_TERMINATED_INSTANCE:
                    continue
                case errors.TOKEN_OF_OTHER_PARAMETERS:
                    if living := _made_before(claim, instances, token, error):
                        return living
                    continue
                case _:
                    raise
        # An instance that EC2 does not show yet is new.
        seen = instances.by_id(made.id) or made
        if _is_living(seen):
            return seen
    raise cmi.Busy(
        f"machine {id.name} had {_MOST_LIVES} VMs in {subnet}, whose tokens EC2 keeps for a day: "
        f"{errors.TOKEN_OF_A_TERMINATED_INSTANCE}",
        state=replace(claim.state, subnet=subnet, generation=generation + 1).write(),
        retry_after=_AT_ONCE_SECONDS,
    )


def _made_before(claim: Claim, instances: Instances, token: str, error: cmi.Error) -> Instance | None:
    """The VM that a token made from other parameters, such as other bootstrap data; none when it is gone."""
    made = instances.by_token(token)
    living = [instance for instance in made if _is_living(instance)]
    if made and not living:
        return None
    # As long as nothing is to be seen, or not whose it is, the VM may be on its way.
    ours = [instance for instance in living if instance.tags.get(cmi.MACHINE_TAG) == claim.id.machine]
    if not ours:
        raise error
    if field := difference(ours[0], claim.spec) or other_access(ours[0], claim.spec):
        raise cmi.Taken(f"instance {ours[0].id} exists with another /{field}")
    return ours[0]


def _is_living(instance: Instance) -> bool:
    return instance.alive and not instance.ending


def _digest(*parts: str) -> str:
    """Returns 64 characters, the longest client token."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
