//! Claims static addresses before a VM is created, and releases them when it is gone.

use std::time::Duration;

use super::Context;
use super::object::Object;
use super::outcome::{Blocked, Outcome, RemovalReason};
use super::plan::{Claim, claim_refused};
use crate::api::conditions::{self, reason};
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::claims::{Claims, ObservedClaim, OwnedBy};
use crate::apiserver::{Error, error_message};

/// When to check again whether an IPAM provider has released an address. Each check looks up the VM. The
/// watch of claims wakes earlier.
const RELEASED_WITHIN: Duration = Duration::from_mins(5);

/// Reads the claims of a machine. Returns a wait instead if the API server refuses to answer.
///
/// # Errors
/// The API server could not be reached.
pub async fn read(
    ctx: &Context,
    machine: &InfraMachine,
) -> Result<Result<Vec<ObservedClaim>, Blocked>, Error> {
    // Before the claims are read: a change is seen by the watch or by the read.
    ctx.claims_wanted.notify_one();
    or_refused(Claims::of(&ctx.client, machine).read().await)
}

/// Creates the missing claims, and returns the wait that follows. A claim that is being deleted loses this
/// provider's finalizer, so that another can take its name.
///
/// # Errors
/// [`Error::Conflict`] when the machine has changed since the plan, or a claim exists by now. The API server
/// could not be reached.
pub async fn claim(ctx: &Context, object: &mut Object<'_>, plan: Claim) -> Result<Blocked, Error> {
    object.own(&plan.record).await?;
    let claims = Claims::of(&ctx.client, object.get());
    let made = or_refused(make(&claims, &plan).await)?;
    Ok(made.err().unwrap_or(plan.wait))
}

async fn make(claims: &Claims<'_>, plan: &Claim) -> Result<(), Error> {
    for place in &plan.terminating {
        claims.release(*place, OwnedBy::Uid).await?;
    }
    for place in &plan.absent {
        claims.create(&plan.cluster, *place).await?;
    }
    Ok(())
}

/// Releases the addresses of a machine whose VM is gone, and returns the outcome. While a claim exists,
/// returns a wait instead: an IPAM provider may not release an address of a Cluster that is gone, so the
/// machine outlives its claims. A forced removal does not wait.
///
/// # Errors
/// [`Error::Conflict`] when the machine or a claim has changed since it was read: another machine may have
/// the name by now. The API server refused or could not be reached.
pub async fn released(ctx: &Context, object: &mut Object<'_>, outcome: Outcome) -> Result<Outcome, Error> {
    let (waits, owned) = match outcome {
        Outcome::Gone => (true, OwnedBy::Name),
        Outcome::RemoveFinalizer(RemovalReason::NeverCreated) => (true, OwnedBy::Uid),
        Outcome::RemoveFinalizer(RemovalReason::Forced) => (false, OwnedBy::Name),
        _ => return Ok(outcome),
    };
    if object.get().spec.addresses_from_pools.is_empty() {
        return Ok(outcome);
    }
    object.ensure_newest("releasing the addresses").await?;
    ctx.claims_wanted.notify_one();
    let remaining = Claims::of(&ctx.client, object.get()).delete(owned).await?;
    Ok(match remaining.filter(|_| waits) {
        Some(claim) => releasing(&claim).into(),
        None => outcome,
    })
}

fn releasing(claim: &str) -> Blocked {
    let message =
        format!("the VM is gone; waiting for the IPAM provider to release IPAddressClaim `{claim}`");
    Blocked::new(conditions::DELETING, reason::WAITING_FOR_ADDRESS_RELEASE, message).until(RELEASED_WITHIN)
}

/// Returns the wait if the API server refused the request, so that only a change can help.
fn or_refused<T>(answer: Result<T, Error>) -> Result<Result<T, Blocked>, Error> {
    let why = match answer {
        Ok(answer) => return Ok(Ok(answer)),
        Err(Error::Gone { .. }) => {
            "the API server does not serve IPAddressClaim of ipam.cluster.x-k8s.io/v1beta2: install Cluster \
                API 1.11 or later"
                .to_owned()
        }
        Err(error) if !error.is_refusal() => return Err(error),
        Err(Error::Api { source, action }) => format!("{action} failed: {}", error_message(&source)),
        Err(error) => return Err(error),
    };
    Ok(Err(claim_refused(&why)))
}
