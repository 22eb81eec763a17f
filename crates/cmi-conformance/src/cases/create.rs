//! CreateMachine.

use futures::future::try_join_all;

use super::case;
use crate::answer::{Outcome, ensure};
use crate::{Case, Halt, Hook, Need, Setting, Trial};
use cmi_driver::{Code, LastKnownState, Machine, Operation, is_dns_subdomain};

const STATUS: Need = Need::Call(Operation::GetMachineStatus);

pub(super) const CASES: &[Case] = &[
    case!(
        "create-makes-a-vm",
        "a valid order makes a VM",
        proves: ["DRV-09", "DRV-CR-00", "DRV-CR-12", "PLG-CR-00", "PLG-CR-12", "CMI-90"],
        needs: [],
        makes_a_vm
    ),
    case!(
        "create-ids",
        "the provider id is the same in every answer, and no other VM's",
        proves: ["DRV-13", "CMI-85", "CMI-92"],
        needs: [],
        ids
    ),
    case!(
        "create-node-name",
        "the node name is a DNS subdomain and the same in every answer",
        proves: ["DRV-14", "CMI-93"],
        needs: [],
        node_name
    ),
    case!(
        "create-longest-name",
        "a name at the limit makes a VM that is found and deleted by it",
        proves: ["DRV-CR-00", "PLG-CR-00", "CMI-14"],
        needs: [],
        longest_name
    ),
    case!(
        "create-defaults",
        "fields that are not mandatory may be left out",
        proves: ["DRV-02"],
        needs: [Need::Setting(Setting::MandatoryFields)],
        defaults
    ),
    case!(
        "create-again",
        "the same order a second time gives the VM that is there",
        proves: ["DRV-10", "CMI-82"],
        needs: [],
        |t| again(t, 1)
    ),
    case!(
        "create-ten-times",
        "the same order ten more times gives the VM that is there",
        proves: ["DRV-12", "CMI-84"],
        needs: [],
        |t| again(t, 10)
    ),
    case!(
        "create-different-names",
        "eight names at once make eight VMs, each found under its own",
        proves: ["DRV-11", "CMI-83"],
        needs: [],
        different_names
    ),
    case!(
        "create-two-clusters",
        "one name in two clusters is two VMs",
        proves: ["DRV-08", "CMI-80"],
        needs: [],
        two_clusters
    ),
    case!(
        "create-other-parameters",
        "an order that the VM of this name does not fit is ALREADY_EXISTS",
        proves: ["DRV-CR-06", "PLG-CR-06", "CMI-02"],
        needs: [Need::Setting(Setting::IncompatibleChange)],
        other_parameters
    ),
    case!(
        "create-other-identity",
        "a VM of this name that belongs to another machine object is ALREADY_EXISTS",
        proves: ["DRV-CR-06", "PLG-CR-06"],
        needs: [],
        other_identity
    ),
    case!(
        "create-after-delete",
        "after a deletion nothing is left of the VM, and another can be made under its name",
        proves: ["DRV-DE-00", "PLG-DE-00", "DRV-23", "CMI-111"],
        needs: [],
        after_delete
    ),
    case!(
        "create-any-state",
        "a LastKnownState that the driver never gave does no harm",
        proves: ["CMI-91", "CMI-94"],
        needs: [],
        any_state
    ),
    case!(
        "create-quota",
        "an order beyond the quota is RESOURCE_EXHAUSTED and makes nothing",
        proves: ["DRV-CR-08", "PLG-CR-08", "DRV-15", "CMI-95"],
        needs: [Need::Setting(Setting::QuotaBreakingSpec)],
        quota
    ),
    case!(
        "create-user-data",
        "the VM gets the bootstrap data byte for byte",
        proves: ["DRV-05"],
        needs: [Need::Hook(Hook::UserData)],
        user_data
    ),
    case!(
        "create-finds-a-planted-vm",
        "a VM of another machine object that was made behind the driver's back is not adopted",
        proves: ["DRV-CR-06", "PLG-CR-06"],
        needs: [STATUS, Need::Hook(Hook::Plant)],
        planted
    ),
];

async fn makes_a_vm(t: Trial) -> Outcome {
    let order = t.order("a");
    let machine = t.make(&order).await?;
    t.has_exactly(&order, &[(&order, &machine.provider_id)]).await
}

async fn ids(t: Trial) -> Outcome {
    let (one, two) = (t.order("a"), t.order("b"));
    let (first, second) = (t.make(&one).await?, t.make(&two).await?);
    ensure(first.provider_id != second.provider_id, || {
        format!("two VMs have the id `{}`", first.provider_id)
    })?;
    let again = t.create(&one).await?.ok()?;
    ensure(again.provider_id == first.provider_id, || {
        format!(
            "the id changed from `{}` to `{}`",
            first.provider_id, again.provider_id
        )
    })?;
    if t.offers(Operation::GetMachineStatus) {
        t.is_there(&one, &first.provider_id).await?;
    }
    let wanted = [(&one, &first.provider_id), (&two, &second.provider_id)];
    t.has_exactly(&one, &wanted).await
}

async fn node_name(t: Trial) -> Outcome {
    let order = t.order("a");
    let made = t.prepare(&order).await?;
    ensure(is_dns_subdomain(&made.node_name), || {
        format!("the node name `{}` is no DNS subdomain", made.node_name)
    })?;
    let same = |what: &str, machine: &Machine| {
        ensure(machine.node_name == made.node_name, || {
            format!(
                "{what} names the node `{}`; CreateMachine named it `{}`",
                machine.node_name, made.node_name
            )
        })
    };
    same("a repeated CreateMachine", &t.create(&order).await?.ok()?)?;
    if t.offers(Operation::GetMachineStatus) {
        same("GetMachineStatus", &t.status(&order, None).await?.ok()?)?;
    }
    Ok(())
}

async fn longest_name(t: Trial) -> Outcome {
    let order = t.order("a");
    let missing = t.config().longest_name.saturating_sub(order.name.len());
    let name = format!("{}{}", order.name, "x".repeat(missing));
    let order = order.named(name);
    let machine = t.make(&order).await?;
    t.has_exactly(&order, &[(&order, &machine.provider_id)]).await?;
    t.remove(&order, Some(&machine.provider_id)).await?;
    t.is_gone(&order).await
}

async fn defaults(t: Trial) -> Outcome {
    // The author's tags stand beside the cluster's, which are mandatory whatever the configuration says (DRV-04).
    let mut needed = t.config().mandatory();
    needed.push(t.capabilities().tag_path.clone());
    let mut order = t.order("a");
    for key in t.config().provider_spec.keys() {
        let needed = needed
            .iter()
            .any(|field| field.segments().first().is_some_and(|first| first == key));
        if !needed {
            order = order.changed(&serde_json::json!({ key: null }));
        }
    }
    t.make(&order).await.map(|_| ())
}

async fn again(t: Trial, times: usize) -> Outcome {
    let order = t.order("a");
    let first = t.prepare(&order).await?;
    for _ in 0..times {
        let next = t.create(&order).await?.ok()?;
        ensure(
            (&next.provider_id, &next.node_name) == (&first.provider_id, &first.node_name),
            || {
                format!(
                    "the VM was `{}`, and is `{}` now",
                    first.provider_id, next.provider_id
                )
            },
        )?;
    }
    t.has_exactly(&order, &[(&order, &first.provider_id)]).await
}

async fn different_names(t: Trial) -> Outcome {
    let orders: Vec<_> = (0..8).map(|n| t.order(&format!("n{n}"))).collect();
    let machines = try_join_all(orders.iter().map(|order| t.make(order))).await?;
    let ids: std::collections::BTreeSet<_> = machines.iter().map(|machine| &machine.provider_id).collect();
    ensure(ids.len() == orders.len(), || {
        format!("{} names have only {} VMs", orders.len(), ids.len())
    })?;
    let wanted: Vec<_> = orders
        .iter()
        .zip(&machines)
        .map(|(order, machine)| (order, &machine.provider_id))
        .collect();
    t.has_exactly(&orders[0], &wanted).await
}

async fn two_clusters(t: Trial) -> Outcome {
    let here = t.order("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    let (one, two) = (t.make(&here).await?, t.make(&there).await?);
    ensure(one.provider_id != two.provider_id, || {
        format!("two clusters share the VM `{}`", one.provider_id)
    })?;
    t.remove(&here, Some(&one.provider_id)).await?;
    t.survives(&there, &two.provider_id).await
}

async fn other_parameters(t: Trial) -> Outcome {
    let order = t.order("a");
    let first = t.prepare(&order).await?;
    let change = t.config().incompatible_change.clone().unwrap_or_default();
    t.create(&order.clone().changed(&change))
        .await?
        .refused(Code::AlreadyExists)?;
    t.has_exactly(&order, &[(&order, &first.provider_id)]).await?;
    let again = t.create(&order).await?.ok()?;
    ensure(again.provider_id == first.provider_id, || {
        "the VM is another one since an order that it does not fit".to_owned()
    })
}

async fn other_identity(t: Trial) -> Outcome {
    let order = t.order("a");
    let first = t.prepare(&order).await?;
    let other = order.clone().with_identity("somebody-else");
    t.create(&other).await?.refused(Code::AlreadyExists)?;
    t.has_exactly(&order, &[(&order, &first.provider_id)]).await
}

async fn after_delete(t: Trial) -> Outcome {
    let order = t.order("a");
    let first = t.prepare(&order).await?;
    t.remove(&order, Some(&first.provider_id)).await?;
    t.is_gone(&order).await?;
    let second = t.make(&order).await?;
    if second.provider_id == first.provider_id {
        t.warn(format!(
            "a new VM has the id `{}` of the one that is gone: whoever kept that id takes one for the other",
            first.provider_id
        ));
    }
    t.has_exactly(&order, &[(&order, &second.provider_id)]).await
}

async fn any_state(t: Trial) -> Outcome {
    let order = t.order("a");
    let state = LastKnownState::new(vec![0, 159, 146, 150, 255]);
    let refused = t
        .create_with(&order, state)
        .await?
        .ok_or(&[Code::InvalidArgument])?
        .is_none();
    let machine = t.make(&order).await?;
    if refused {
        t.warn("a LastKnownState that is not the driver's own is refused");
    }
    t.has_exactly(&order, &[(&order, &machine.provider_id)]).await
}

async fn quota(t: Trial) -> Outcome {
    let change = t.config().quota_breaking_spec.clone().unwrap_or_default();
    let order = t.order("a").changed(&change);
    t.create(&order).await?.refused(Code::ResourceExhausted)?;
    t.has_none(&t.order("a")).await
}

async fn user_data(t: Trial) -> Outcome {
    let order = t.order("a");
    let wanted = order.class.secrets.get(cmi_driver::USER_DATA).cloned();
    t.prepare(&order).await?;
    let found = t.pull_on(Hook::UserData, &order).await?;
    match wanted {
        Some(wanted) if wanted.expose() == found => Ok(()),
        Some(wanted) => Err(Halt::failed(format!(
            "the VM was given other user data: {} bytes instead of {}",
            found.len(),
            wanted.expose().len()
        ))),
        None => Err(Halt::failed("the suite gave no user data")),
    }
}

async fn planted(t: Trial) -> Outcome {
    let order = t.order("a");
    let foreign = order.clone().with_identity("somebody-else");
    t.track(&foreign);
    t.pull_on(Hook::Plant, &foreign).await?;
    t.settle().await;
    t.create(&order).await?.refused(Code::AlreadyExists)?;
    ensure(t.seen(&order).await?.is_none(), || {
        "the VM of another machine object is taken for ours".to_owned()
    })
}
