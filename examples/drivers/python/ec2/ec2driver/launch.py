"""How a VM is made, so that there never are two of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from . import errors
from .catalog import Catalog
from .claim import Claim
from .contract import Code, Failure
from .instances import Instance, Instances
from .state import State

# How many VMs of one machine may have come and gone while EC2 remembers their tokens, which is a day.
_MOST_LIVES = 8
# The shortest wait that can be asked for. The next zone is tried soon; and the other machines of the class,
# which may begin in another zone, are not held back for ten minutes as they are without it.
_AT_ONCE_SECONDS = 0.001


def launch(claim: Claim, instances: Instances, catalog: Catalog, data: bytes) -> Instance:
    """Makes the VM where it is its turn to be made, or finds the one that an earlier call has made there.

    EC2 keeps client tokens by zone: in another zone, the same token makes another VM. One whose answer got lost may not
    be seen for a while, so no call can know that there is none in a zone that was tried before. Hence a full zone ends
    the call, and its answer names the next subnet in the last known state: only a call that brings that back, and with
    it every later one, goes there. A caller that gives nothing back stays in the first zone.

    To that caller, RESOURCE_EXHAUSTED is the truth, and to one that goes on, each zone's; with the last it asks for no
    short wait any more. A zone that does not offer what is asked for does so in every call, and is passed over at once.
    """
    order = _subnets(claim, catalog)
    begin = order.index(claim.state.subnet) if claim.state.subnet in order else 0
    not_offered: Failure | None = None
    for place, subnet in enumerate(order[begin:], begin):
        try:
            return _run_in(subnet, claim, instances, data)
        except Failure as failure:
            if failure.code == Code.RESOURCE_EXHAUSTED:
                raise _without_room(failure, claim.state, order, place) from failure
            if not failure.elsewhere:
                raise
            not_offered = not_offered or failure
    failure = not_offered or Failure(Code.INTERNAL, "no subnet was tried")
    if begin:
        # Those before were full, which passes.
        raise replace(
            failure,
            code=Code.RESOURCE_EXHAUSTED,
            message=f"no zone had room; the last: {failure.message}",
            last_known_state=replace(claim.state, subnet=order[0]).write(),
        ) from failure
    raise failure


def _without_room(failure: Failure, state: State, order: list[str], place: int) -> Failure:
    """The answer to a create for which there was no room: nothing was made, and its token is not used again."""
    generation = state.generation + 1
    if not failure.elsewhere:
        return replace(failure, last_known_state=replace(state, subnet=order[place], generation=generation).write())
    following = order[(place + 1) % len(order)]
    answer = replace(failure, last_known_state=replace(state, subnet=following, generation=generation).write())
    if place + 1 < len(order):
        answer.message = f"{following} is tried next: {failure.message}"
        answer.retry_after_seconds = _AT_ONCE_SECONDS
    return answer


def _subnets(claim: Claim, catalog: Catalog) -> list[str]:
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


def _run_in(subnet: str, claim: Claim, instances: Instances, data: bytes) -> Instance:
    """Follows the tokens of this machine and subnet to the first whose VM is not gone by now: that was another life."""
    spec, generation = claim.spec, claim.state.generation
    for life in range(_MOST_LIVES):
        token = _digest(spec.cluster, claim.name, spec.identity, subnet, str(generation), str(life))
        try:
            made = instances.run(spec, claim.name, subnet, token, data)
        except Failure as failure:
            match failure.reason:
                case errors.TOKEN_OF_A_TERMINATED_INSTANCE:
                    continue
                case errors.TOKEN_OF_OTHER_PARAMETERS:
                    if living := _made_before(claim, instances, token, failure):
                        return living
                    continue
                case _:
                    raise
        # What is not to be seen yet is new.
        seen = instances.by_id(made.id) or made
        if _is_living(seen):
            return seen
    raise Failure(
        Code.ABORTED,
        f"machine {claim.name} had {_MOST_LIVES} VMs in {subnet}, whose tokens EC2 keeps for a day: "
        f"{errors.TOKEN_OF_A_TERMINATED_INSTANCE}",
        last_known_state=replace(claim.state, subnet=subnet, generation=generation + 1).write(),
        retry_after_seconds=_AT_ONCE_SECONDS,
    )


def _made_before(claim: Claim, instances: Instances, token: str, failure: Failure) -> Instance | None:
    """The VM that a token made from other parameters, such as other bootstrap data; none when it is gone."""
    made = instances.by_token(token)
    if made and not any(_is_living(instance) for instance in made):
        return None
    # As long as nothing is to be seen, or not whose it is, the VM may be on its way.
    ours = claim.ours(instance for instance in made if _is_living(instance))
    if adopted := claim.adopted(ours):
        return adopted
    raise failure


def _is_living(instance: Instance) -> bool:
    return instance.alive and not instance.ending


def _digest(*parts: str) -> str:
    """64 characters, which is what a client token may have."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
