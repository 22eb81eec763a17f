//! The inputs of one reconcile: the caches, and during a deletion the Machine from the API server.

use std::ops::ControlFlow;
use std::sync::Arc;

use kube::api::{Api, GetParams, ListParams};
use kube::core::Request;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};
use kube_fleet::pages;

use super::drain_rules::{DrainRules, MachineDrainRule};
use super::plan::{DrainedMachine, Infra, Observed};
use super::{Context, has_hook};
use crate::api::cluster_api::{self, Machine};
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock;
use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::Error;

/// The most MachineDrainRules that are read in a namespace.
const MAX_RULES: usize = 64;

/// Reads the inputs of a reconcile. Returns `None` for a deleted Machine, or without a volume drain.
pub async fn gather(queued: &Machine, ctx: &Context) -> Result<Option<Observed>, Error> {
    let Some(machine) = ctx.caches.machines.current(&queued.metadata) else {
        return Ok(None);
    };
    let namespace = machine.namespace().unwrap_or_default();
    let infra = match cached_infra(ctx, &machine) {
        Some(found) => match &found.0 {
            Ok(infra) => Infra::Found(Box::new(infra.clone())),
            Err(_) => Infra::Unreadable,
        },
        None if has_hook(&machine) => missing_infra(ctx, &machine).await?,
        None => Infra::Unknown,
    };
    let is_waiting = has_hook(&machine) && machine.metadata.deletion_timestamp.is_some();
    let is_others = matches!(infra, Infra::Unknown);
    let live = if is_waiting && (ctx.enabled || is_others) {
        match live(ctx, &machine).await {
            // Without the feature the permission is missing, and another replica manages this machine.
            Err(Error::Api { source, .. }) if is_others && is_forbidden(&source) => None,
            read => read?,
        }
    } else {
        None
    };
    let rules = match &live {
        Some(live) if !is_others => Some(drain_rules(ctx, &namespace, live).await?),
        Some(_) | None => None,
    };
    Ok(Some(Observed {
        enabled: ctx.enabled,
        infra,
        cluster: ctx.caches.cluster(&namespace, &machine.spec.cluster_name),
        live,
        rules,
        outage: ctx.outages.duration(machine.metadata.uid()),
        now: wall_clock::now(),
        machine,
    }))
}

/// The InfraMachine that a Machine refers to and owns, if this replica watches it.
pub fn cached_infra(ctx: &Context, machine: &Machine) -> Option<Arc<DeserializeGuard<InfraMachine>>> {
    let infra = &machine.spec.infrastructure_ref;
    if !infra.is_to::<InfraMachine>() {
        return None;
    }
    let reference = ObjectRef::new(&infra.name).within(machine.metadata.namespace());
    let found = ctx.caches.infra_machines.get(&reference)?;
    let owner = crate::reconcile::caches::machine_owner(found.meta()).map(|owner| owner.uid.as_str());
    (owner == machine.metadata.uid.as_deref()).then_some(found)
}

/// Whether an uncached InfraMachine is deleted. Otherwise another replica may manage it.
async fn missing_infra(ctx: &Context, machine: &Machine) -> Result<Infra, Error> {
    let infra = &machine.spec.infrastructure_ref;
    if !infra.is_to::<InfraMachine>() {
        return Ok(Infra::Unknown);
    }
    let namespace = machine.namespace().unwrap_or_default();
    let found = Api::<InfraMachine>::namespaced(ctx.client.clone(), &namespace)
        .get_metadata_opt(&infra.name)
        .await
        .map_err(|error| Error::api("looking up the InfraMachine of a Machine with a hook", error))?;
    Ok(match found {
        Some(_) => Infra::Unknown,
        None => Infra::Gone,
    })
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(refusal) if refusal.code == 403)
}

async fn live(ctx: &Context, machine: &Machine) -> Result<Option<DrainedMachine>, Error> {
    let action = "reading the Machine to drain";
    let namespace = machine.namespace().unwrap_or_default();
    let api = Api::<Machine>::namespaced(ctx.client.clone(), &namespace);
    let request = Request::new(api.resource_url())
        .get(&machine.name_any(), &GetParams::default())
        .map_err(|error| Error::api(action, kube::Error::BuildRequest(error)))?;
    match ctx.client.request::<DrainedMachine>(request).await {
        Ok(found) => Ok(Some(found).filter(|found| found.metadata.uid == machine.metadata.uid)),
        Err(kube::Error::Api(refusal)) if refusal.code == 404 => Ok(None),
        Err(error) => Err(Error::api(action, error)),
    }
}

/// The rules for the drain of a Machine. If they can't be read, or are too many, each pod counts as selected.
async fn drain_rules(ctx: &Context, namespace: &str, machine: &DrainedMachine) -> Result<DrainRules, Error> {
    let path = format!(
        "/apis/{}/v1beta2/namespaces/{namespace}/machinedrainrules",
        cluster_api::GROUP
    );
    let (mut rules, mut are_too_many) = (Vec::new(), false);
    let take = |rule: MachineDrainRule| {
        are_too_many = rules.len() == MAX_RULES;
        if are_too_many {
            return ControlFlow::Break(());
        }
        rules.push(rule);
        ControlFlow::Continue(())
    };
    let _only_page = ctx.rules_page.lock().await;
    match pages::each(&ctx.client, &path, ListParams::default(), take).await {
        Ok(()) if are_too_many => Ok(DrainRules::unknown()),
        Ok(()) => {
            let labels = machine.metadata.labels.clone().unwrap_or_default();
            Ok(DrainRules::of_machine(rules, &labels))
        }
        // This version of Cluster API has no MachineDrainRules.
        Err(kube::Error::Api(refusal)) if refusal.code == 404 => Ok(DrainRules::default()),
        Err(kube::Error::Api(refusal)) if refusal.code == 403 => {
            tracing::error!(
                namespace,
                "the provider may not list MachineDrainRules, so no pod is evicted individually: install \
                    config/components/volume-drain"
            );
            Ok(DrainRules::unknown())
        }
        Err(error) => Err(Error::api("listing MachineDrainRules", error)),
    }
}
