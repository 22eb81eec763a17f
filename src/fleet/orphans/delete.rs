//! Deletes an orphan, after one more live read immediately before the call.

use serde_json::Value;
use tokio::time::Instant;

use super::cluster_listing::{ClusterListing, REQUESTER};
use super::plan::{Clock, DeletionPolicy, Observation, may_still_be_deleted};
use super::report::record_event;
use super::{Context, live};
use crate::admission;
use crate::api::conditions::reason;
use crate::api::wall_clock;
use crate::driver::listing;
use crate::driver::{ConfiguredDriver, Priority};
use cmi_driver::{Capabilities, DeleteMachineRequest, ListedMachine, MachineClass, MachineRef, tags};

/// Deletes an orphan, unless its classification has changed or a step fails. The next scan then decides
/// again.
pub async fn delete_orphan(
    ctx: &Context,
    driver: &ConfiguredDriver,
    listed: &ClusterListing,
    vm: &ListedMachine,
    observation: Observation,
    policy: DeletionPolicy,
) {
    match try_delete(ctx, driver, listed, vm, observation, policy).await {
        Ok(Deletion::Deleted) => {
            let text = format!(
                "deleted orphan VM {} of machine `{}`",
                vm.provider_id, vm.machine_name
            );
            tracing::warn!(
                cluster = %listed.scope.cluster,
                driver = driver.name(),
                vm = %vm.provider_id,
                machine = vm.machine_name,
                "deleted an orphan"
            );
            record_event(ctx, &listed.scope, reason::ORPHAN_DELETED, text).await;
        }
        Ok(Deletion::Kept) => {
            tracing::info!(vm = %vm.provider_id, "the VM no longer qualifies as an orphan; not deleting it");
        }
        Err(why) => {
            tracing::warn!(vm = %vm.provider_id, why, "cannot delete an orphan; retrying at the next scan");
        }
    }
}

/// How a deletion ended.
enum Deletion {
    Deleted,
    Kept,
}

/// Not a [`crate::reconcile::driver_query`]: this waits for its permit, and the last read of the objects
/// comes between the credentials and the call.
async fn try_delete(
    ctx: &Context,
    driver: &ConfiguredDriver,
    listed: &ClusterListing,
    vm: &ListedMachine,
    observation: Observation,
    policy: DeletionPolicy,
) -> Result<Deletion, String> {
    let permit = driver.acquire(Priority::Upkeep, REQUESTER).await;
    let capabilities = permit
        .fetch_capabilities()
        .await
        .map_err(|status| status.message().to_owned())?;
    let class = listed
        .class_of(vm.provider_id.as_str())
        .ok_or("the class of its list is unknown")?;
    let namespace = listed.scope.cluster.namespace();
    let class = listing::machine_class(&ctx.client, driver, namespace, class);
    let class = class.await.map_err(|error| error.message())?;
    let class = tagged(class, &capabilities, vm).ok_or("cannot set the tags in its provider spec")?;
    // These are the last steps before the call. Only the driver's rate limit may delay the call after them.
    let live = live::read(&ctx.client, ctx.namespace.as_deref())
        .await
        .map_err(|error| error.to_string())?;
    let clock = Clock {
        requested_at: Instant::now(),
        now: wall_clock::now(),
    };
    // A machine whose identity was removed looks as if it had no VM. The check also covers all earlier
    // observations.
    if let admission::Enforcement::NotInForce(why) = ctx.policies.enforcement_since(clock.requested_at).await
    {
        return Err(why.to_string());
    }
    let observed_deletion = |id: &str| ctx.observed_deletion(id).is_some();
    if !may_still_be_deleted(
        &listed.scope,
        vm,
        &listed.vms,
        &live,
        observed_deletion,
        observation,
        (policy, clock),
    ) {
        return Ok(Deletion::Kept);
    }
    let request = DeleteMachineRequest {
        machine: MachineRef::new(vm.machine_name.clone(), class),
        provider_id: Some(vm.provider_id.clone()),
        last_known_state: None,
    };
    let deleted = permit.driver().delete_machine(request).await;
    deleted
        .map(|_| Deletion::Deleted)
        .map_err(|status| status.message().to_owned())
}

/// The class with exactly the tags of the VM: the driver refuses a VM with other tags (DRV-20).
fn tagged(mut class: MachineClass, capabilities: &Capabilities, vm: &ListedMachine) -> Option<MachineClass> {
    let (cluster, machine) = (vm.cluster_id.clone()?, vm.machine_id.clone()?);
    let tag_map = class.provider_spec.object_at(&capabilities.tag_path).ok()?;
    tag_map.insert(tags::CLUSTER.to_owned(), Value::from(cluster));
    tag_map.insert(tags::MACHINE.to_owned(), Value::from(machine));
    Some(class)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// DRV-20: the driver compares the tags in the call with the VM's own tags, so they must come from the
    /// list.
    #[test]
    fn the_call_carries_the_tags_of_the_vm_or_is_not_made() {
        let spec = json!({"size": "s", "tags": {"kubernetes.io/cluster": "c", "kubernetes.io/role": "node"}});
        let class = || MachineClass {
            provider_spec: serde_json::from_value(spec.clone()).unwrap(),
            ..MachineClass::default()
        };
        let mut vm = ListedMachine::new("p".parse().unwrap(), "n");
        assert_eq!(tagged(class(), &Capabilities::minimal(), &vm), None);
        vm.cluster_id = Some("c".to_owned());
        assert_eq!(tagged(class(), &Capabilities::minimal(), &vm), None);
        vm.machine_id = Some("m".to_owned());
        let tagged = tagged(class(), &Capabilities::minimal(), &vm).unwrap();
        let tags =
            json!({"kubernetes.io/cluster": "c", "kubernetes.io/role": "node", "capcmi.io/machine": "m"});
        assert_eq!(tagged.provider_spec.0["tags"], tags);
    }
}
