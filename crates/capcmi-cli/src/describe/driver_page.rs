//! The page about a driver. Pure.

use jiff::Timestamp;

use super::advice;
use super::driver::{Configured, DriverAnswer, DriverReport};
use super::event_table::event_table;
use super::machine_page::summary;
use super::page::{Page, or_none};
use super::scrape::Scrape;
use crate::introspection::Introspection;
use capcmi::api::{ObjectMetaExt as _, conditions};
use capcmi::telemetry::metrics::MachinePhase;
use cmi_driver::{Capabilities, Operation, Readiness};

/// Renders the facts about a driver and the next steps as one page.
pub fn page(facts: &DriverReport, now: Timestamp) -> String {
    let mut page = Page::default();
    page.section(&format!("Driver {}", facts.name));
    configured(&mut page, facts);
    page.section("What to do next");
    for step in steps(facts) {
        page.line(&step);
    }
    answer(&mut page, &facts.answer);
    machines(&mut page, facts);
    clusters(&mut page, facts);
    if let Some(scrape) = &facts.scrape {
        state(&mut page, scrape, &facts.name);
    } else {
        page.section("Calls, codes, queue, breakers and orphans");
        page.line("Unknown from outside: only the leading replica has them, at /metrics.");
        page.line(
            "Scrape that replica and pass the output with --metrics; see \
            docs/operate/first-look.md#describe.",
        );
    }
    page.section("Newest events of orphans, all drivers");
    match &facts.orphans {
        Err(why) => page.line(&format!("cannot read events: {why}")),
        Ok(events) if events.is_empty() => page.line("none"),
        Ok(events) => event_table(&mut page, events, now),
    }
    page.text()
}

fn configured(page: &mut Page, facts: &DriverReport) {
    match facts.configured {
        None => page.row(
            "Configured",
            "unknown: pass the drivers file with --drivers-config",
        ),
        Some(Configured::No) => page.row("Configured", "not in the given drivers file"),
        Some(Configured::Yes { max_concurrent_calls }) => {
            page.row(
                "Configured",
                "in the given drivers file, which may differ from the provider's",
            );
            page.row("Max calls", &max_concurrent_calls.to_string());
        }
    }
}

/// Returns the next steps for a driver. The list is never empty.
fn steps(facts: &DriverReport) -> Vec<String> {
    let mut steps = Vec::new();
    if facts.configured == Some(Configured::No) {
        let used = if facts.machines.is_empty() {
            ""
        } else {
            ", because machines use it"
        };
        steps.push(format!(
            "Add the driver to the drivers file{used}, or correct its name."
        ));
    }
    match &facts.answer {
        DriverAnswer::Failed(status) => {
            let step = advice::of_reason(status.code().name()).unwrap_or_default();
            let step = advice::with_driver(&step, &facts.name);
            steps.push(format!(
                "The driver does not answer this command ({}). {step}",
                status.code()
            ));
        }
        DriverAnswer::Says(said) if said.readiness == Readiness::NotReady => {
            steps.push("The driver answers and is not ready yet: wait, or check its logs.".to_owned());
        }
        DriverAnswer::Says(_) | DriverAnswer::NotAsked => {}
    }
    let is_troubled = |(phase, _): &&(String, String)| phase != MachinePhase::Provisioned.name();
    for (_, why) in facts.machines.keys().filter(is_troubled) {
        if let Some(step) = advice::of_reason(why) {
            let step = format!("{why}: {}", advice::with_driver(&step, &facts.name));
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
    }
    let value = |name| {
        let scrape = facts.scrape.as_ref()?;
        scrape
            .of(name, &facts.name)
            .map(|sample| sample.value)
            .reduce(f64::max)
    };
    if value("capcmi_orphans").is_some_and(|count| count > 0.0) {
        steps.push("The driver has VMs without an InfraMachine: run `capcmi orphans list`.".to_owned());
    }
    if value("capcmi_driver_reachable").is_some_and(|reachable| reachable < 1.0) {
        steps.push(
            "The provider cannot reach the driver: check that the plugin runs, and the provider's log."
                .to_owned(),
        );
    }
    if steps.is_empty() {
        steps.push("Nothing known.".to_owned());
    }
    steps
}

fn answer(page: &mut Page, answer: &DriverAnswer) {
    page.section("What the driver reports to this command");
    match answer {
        DriverAnswer::NotAsked => {
            page.line("Not called: pass the drivers file that names the driver with --drivers-config.");
        }
        DriverAnswer::Failed(status) => {
            page.row("Failed", &format!("{}: {}", status.code(), status.message()));
        }
        DriverAnswer::Says(Introspection {
            info,
            readiness,
            capabilities,
        }) => {
            page.row("Name", &info.name);
            page.row("Version", &info.version);
            let ready = match readiness {
                Readiness::Ready => "yes",
                Readiness::NotReady => "not yet",
            };
            page.row("Ready", ready);
            capability_rows(page, capabilities);
        }
    }
}

fn capability_rows(page: &mut Page, capabilities: &Capabilities) {
    let names = |offered: bool| {
        let calls = Operation::ALL.into_iter();
        let calls: Vec<_> = calls
            .filter(|call| capabilities.supports(*call) == offered)
            .map(Operation::name)
            .collect();
        calls.join(", ")
    };
    page.row("Offers", &names(true));
    page.row("Offers not", or_none(&names(false)));
    page.row("Zones", if capabilities.zones { "yes" } else { "no" });
    page.row(
        "Window",
        &format!("{} s", capabilities.consistency_window.as_secs_f64()),
    );
    let hot: Vec<_> = capabilities
        .hot_updatable
        .iter()
        .map(ToString::to_string)
        .collect();
    page.row("Hot-updatable", or_none(&hot.join(", ")));
    let has_state = capabilities.list_has_state;
    page.row("State in lists", if has_state { "yes" } else { "no" });
    let schema = capabilities.provider_spec_schema.is_some();
    page.row("Schema", if schema { "published" } else { "none" });
}

fn machines(page: &mut Page, facts: &DriverReport) {
    page.section("Machines");
    let rows: Vec<_> = facts
        .machines
        .iter()
        .map(|((phase, reason), count)| [count.to_string(), phase.clone(), or_none(reason).to_owned()])
        .collect();
    if rows.is_empty() {
        page.line("none");
    }
    page.table(&rows);
    if facts.unnamed > 0 {
        page.row(
            "No driver yet",
            &format!("{} machines name no driver and have no VM", facts.unnamed),
        );
    }
}

fn clusters(page: &mut Page, facts: &DriverReport) {
    page.section("InfraClusters");
    if facts.clusters.is_empty() {
        page.line("none");
    }
    for infra in &facts.clusters {
        let namespace = infra.metadata.namespace();
        page.line(&format!("{namespace}/{}", summary(infra)));
        let all = infra.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let zones = infra.status.iter().flat_map(|status| &status.failure_domains);
        let zones: Vec<_> = zones.map(|zone| zone.name.as_str()).collect();
        let is_current = conditions::is_true(all, conditions::FAILURE_DOMAINS_UP_TO_DATE);
        let old = if is_current { "" } else { ", as last known" };
        page.row("  Zones", &format!("{}{old}", or_none(&zones.join(", "))));
    }
    if facts.more_clusters > 0 {
        page.line(&format!("and {} more", facts.more_clusters));
    }
}

fn state(page: &mut Page, scrape: &Scrape, driver: &str) {
    page.section("What the running provider reports since its start");
    if scrape.of_process("capcmi_leader") == Some(0.0) {
        page.line(
            "The scraped replica does not lead, so it calls and probes no driver. Scrape the leading one.",
        );
    }
    let one = |name: &str| scrape.of(name, driver).next().map(|sample| sample.value);
    let reachable = match one("capcmi_driver_reachable") {
        None => "not probed",
        Some(value) if value < 1.0 => "no",
        Some(_) => "yes",
    };
    page.row("Reachable", reachable);
    for sample in scrape.of("capcmi_driver_queue", driver) {
        let priority = sample.label("priority");
        let used = scrape
            .of("capcmi_driver_permits_in_use", driver)
            .find(|used| used.label("priority") == priority)
            .map_or(0.0, |used| used.value);
        page.row(
            "Queue",
            &format!("{priority}: {} wait, {used} permits in use", sample.value),
        );
    }
    for sample in scrape.of("capcmi_driver_breakers", driver) {
        page.row(
            "Breakers",
            &format!("{}: {} classes", sample.label("state"), sample.value),
        );
    }
    if let Some(waiting) = one("capcmi_driver_capacity_queue") {
        page.row("Capacity", &format!("{waiting} machines wait"));
    }
    let mut orphans = 0;
    for sample in scrape
        .of("capcmi_orphans", driver)
        .filter(|sample| sample.value > 0.0)
    {
        orphans += 1;
        let (namespace, reason) = (sample.label("namespace"), sample.label("reason"));
        page.row(
            "Orphans",
            &format!("{} in namespace {namespace}, {reason}", sample.value),
        );
    }
    if orphans == 0 {
        page.row("Orphans", "none found");
    }
    let mut calls: Vec<_> = scrape
        .of("capcmi_driver_calls_total", driver)
        .filter(|sample| sample.value > 0.0)
        .map(|sample| {
            let (operation, code) = (sample.label("operation"), sample.label("code"));
            [operation.to_owned(), code.to_owned(), sample.value.to_string()]
        })
        .collect();
    calls.sort();
    page.section("Calls by code, since its start");
    if calls.is_empty() {
        page.line("none");
    }
    page.table(&calls);
}
