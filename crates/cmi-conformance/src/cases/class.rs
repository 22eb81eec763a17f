//! The questions about a class before there is a machine: its schema, ListZones and DescribeClass.

use std::collections::BTreeSet;

use futures::future::try_join_all;

use super::cases;
use super::requests::{as_declared, reaches_the_plugin};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, Need, Setting, TestContext};
use cmi_driver::{
    ClassDescription, Code, DescribeClassRequest, ListZonesRequest, Operation, ProviderSpec, SpecSchema,
    Zone, tags,
};
use cmi_grpc::proto::capcmi::v1::{DescribeClassResponse, ListZonesResponse};

const ZONES: Need = Need::Call(Operation::ListZones);
const FULL: Need = Need::Setting(Setting::FullFailureDomain);
/// More machines than most back ends have failure domains: one of them would go to the full one.
const SPREAD: usize = 8;
const DESCRIBE: Need = Need::Call(Operation::DescribeClass);
/// The architectures and operating systems in Cluster API's autoscaling.
const ARCHITECTURES: [&str; 4] = ["amd64", "arm64", "s390x", "ppc64le"];
const OPERATING_SYSTEMS: [&str; 2] = ["linux", "windows"];
/// The most characters of a quantity.
const MAX_QUANTITY: usize = 64;

pub(super) const CASES: &[Case] = cases! {
    "schema-takes-the-sample":
        "the published schema accepts the sample spec, with and without each hot update"
        ["CAP-07"], [] => |t: TestContext| async move { schema(&t) };
    "zones-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["CAP-05"], [] => |t| offered(t, Operation::ListZones);
    "zones-are-sound": "failure domains have unique names, and the answer is stable"
        ["CAP-08"], [ZONES] => zones_are_sound;
    "zones-can-be-asked-for": "a machine can request a listed failure domain"
        ["CAP-09"], [ZONES] => zones_can_be_asked_for;
    "zones-full-elsewhere": "while a failure domain is full, machines that name none are created in others"
        ["CAP-39"], [ZONES, FULL] => placed_elsewhere;
    "zones-full-named": "a machine that names a full failure domain is RESOURCE_EXHAUSTED"
        ["CAP-39"], [ZONES, FULL] => named_full;
    "class-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["CAP-05"], [] => |t| offered(t, Operation::DescribeClass);
    "class-is-sound":
        "capacities are quantities, architecture and operating system are known values, and the answer is \
            stable"
        ["CAP-10"], [DESCRIBE] => class_is_sound;
};

fn schema(t: &TestContext) -> CaseResult {
    let Some(schema) = &t.capabilities().provider_spec_schema else {
        return Err(CaseError::Skipped("the driver publishes no schema".to_owned()));
    };
    schema
        .validate()
        .map_err(|error| CaseError::failed(format!("the published schema can't be used: {error}")))?;
    let sample = t.sample().provider_spec;
    takes(schema, &sample, "`providerSpec`")?;
    for change in &t.config().hot_updates {
        let changed = t.machine_request("a").changed(change).class.provider_spec;
        takes(
            schema,
            &changed,
            &format!("`providerSpec` with the change {change}"),
        )?;
    }
    Ok(())
}

fn takes(schema: &SpecSchema, spec: &ProviderSpec, what: &str) -> CaseResult {
    schema.check(spec).map_err(|status| {
        CaseError::failed(format!(
            "the published schema refuses {what}, so no machine of it is ever made: {}",
            status.message()
        ))
    })
}

async fn offered(t: TestContext, operation: Operation) -> CaseResult {
    reaches_the_plugin(&t, operation)?;
    as_declared(t, operation).await
}

async fn zones_are_sound(t: TestContext) -> CaseResult {
    let zones = t.ask(ListZonesRequest { class: t.sample() }).await?.ok()?;
    let read = Vec::<Zone>::try_from(ListZonesResponse::from(zones.clone()));
    read.map_err(|error| CaseError::failed(format!("ListZones answered what can't be used: {error}")))?;
    let names: BTreeSet<_> = zones.iter().map(|zone| &zone.name).collect();
    ensure(names.len() == zones.len(), || {
        "ListZones answered a failure domain twice".to_owned()
    })?;
    if !zones.is_empty() && !t.capabilities().zones {
        t.warn("there are failure domains, and the driver declares that no machine may ask for one");
    }
    let sorted = |mut zones: Vec<Zone>| {
        zones.sort_by(|one, other| one.name.cmp(&other.name));
        zones
    };
    let again = t.ask(ListZonesRequest { class: t.sample() }).await?.ok()?;
    ensure(sorted(zones) == sorted(again), || {
        "the failure domains changed from one question to the next".to_owned()
    })
}

async fn zones_can_be_asked_for(t: TestContext) -> CaseResult {
    if !t.capabilities().zones {
        return Err(CaseError::Skipped(
            "the driver declares that no machine may ask for a failure domain".to_owned(),
        ));
    }
    let zones = t.ask(ListZonesRequest { class: t.sample() }).await?.ok();
    let zones = zones.map_err(CaseError::in_preparation)?;
    let Some(zone) = zones.first() else {
        return Err(CaseError::Skipped("the class has no failure domain".to_owned()));
    };
    let request = t
        .machine_request("a")
        .changed(&serde_json::json!({tags::FAILURE_DOMAIN: zone.name}));
    let first = t.create(&request).await?;
    if first.code() == Some(Code::ResourceExhausted) {
        return Err(CaseError::Skipped(format!("there is no room in `{}`", zone.name)));
    }
    let made = t.make(&request).await?;
    let placed = made.failure_domain.as_ref();
    ensure(placed.is_none_or(|placed| *placed == zone.name), || {
        format!("a machine that asked for `{}` was made in {placed:?}", zone.name)
    })
}

async fn placed_elsewhere(t: TestContext) -> CaseResult {
    let full = t.config().full_failure_domain.clone();
    let requests: Vec<_> = (0..SPREAD)
        .map(|number| t.machine_request(&format!("n{number}")))
        .collect();
    let made = try_join_all(requests.iter().map(|request| t.make(request))).await?;
    let inside = made
        .iter()
        .find(|machine| machine.failure_domain.is_some() && machine.failure_domain == full);
    ensure(inside.is_none(), || {
        "a machine was created in `fullFailureDomain`, which has room then".to_owned()
    })
}

async fn named_full(t: TestContext) -> CaseResult {
    let full = t.config().full_failure_domain.clone().unwrap_or_default();
    let request = t
        .machine_request("a")
        .changed(&serde_json::json!({tags::FAILURE_DOMAIN: full}));
    t.create(&request).await?.refused(Code::ResourceExhausted)?;
    t.has_none(&request).await
}

async fn class_is_sound(t: TestContext) -> CaseResult {
    let described = t.ask(DescribeClassRequest { class: t.sample() }).await?.ok()?;
    let read = ClassDescription::try_from(DescribeClassResponse::from(described.clone()));
    read.map_err(|error| CaseError::failed(format!("DescribeClass answered what can't be used: {error}")))?;
    for (resource, quantity) in &described.capacity {
        ensure(!resource.is_empty() && is_capacity(quantity), || {
            format!("the capacity `{quantity}` of `{resource}` is no quantity, such as 4 or 16Gi")
        })?;
    }
    for (what, found, known) in [
        ("architecture", &described.architecture, ARCHITECTURES.as_slice()),
        (
            "operating system",
            &described.operating_system,
            &OPERATING_SYSTEMS,
        ),
    ] {
        let known_one = found.as_deref().is_none_or(|found| known.contains(&found));
        ensure(known_one, || {
            let found = found.as_deref().unwrap_or_default();
            format!("the {what} `{found}` is none of {}", known.join(", "))
        })?;
    }
    let again = t.ask(DescribeClassRequest { class: t.sample() }).await?.ok()?;
    ensure(described == again, || {
        "the class changed from one question to the next".to_owned()
    })
}

/// Whether the text is a Kubernetes quantity that is not negative.
fn is_capacity(text: &str) -> bool {
    const SUFFIXES: [&str; 16] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    let exponent = suffix
        .strip_prefix(['e', 'E'])
        .and_then(|power| power.parse::<i8>().ok());
    text.len() <= MAX_QUANTITY && is_number && (SUFFIXES.contains(&suffix) || exponent.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_a_quantity_that_is_not_below_zero() {
        for good in [
            "4", "16Gi", "0", "1.5", ".5", "250m", "2e3", "1E6", "1E", "20G", "3.",
        ] {
            assert!(is_capacity(good), "{good}");
        }
        for bad in ["", "-1", "Gi", "4 Gi", "4GB", "1.2.3", ".", "many", "2e", "16gi"] {
            assert!(!is_capacity(bad), "{bad}");
        }
    }
}
