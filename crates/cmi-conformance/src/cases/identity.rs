//! Name, version, capabilities and health.

use std::future::Future;
use std::time::Duration;

use futures::future::try_join_all;
use serde_json::Value;
use tokio::time::Instant;

use super::cases;
use super::faults::slow_down;
use super::published::extended;
use super::requests::{INFO, raw};
use super::wire::declared;
use crate::answer::{Answer, CaseError, CaseResult, ensure};
use crate::answer_checker::Texts;
use crate::{Case, Hook, HookCall, Need, TestContext};
use cmi_driver::{Capabilities, Code, Operation, PluginInfo, Readiness, Secrets};
use cmi_grpc::proto::capcmi::v1::GetExtensionCapabilitiesResponse;
use cmi_grpc::proto::cmi::v1::GetPluginInfoResponse;

pub(super) const BETWEEN_PROBES: Duration = Duration::from_millis(100);
/// As many concurrent calls as the provider makes, unless its drivers file says otherwise.
const CONCURRENT_CALLS: usize = 32;
/// How often Probe must be late: a busy computer sometimes delays any call.
const TRIES: usize = 3;

pub(super) const CASES: &[Case] = cases! {
    "info-names-the-driver": "name and version are set and within their limits; the name is a domain name"
        ["CMI-14", "CMI-50", "CMI-51", "CMI-53", "CMI-54", "CMI-55", "CMI-56"], [] => names_the_driver;
    "info-has-a-host-name": "the name contains the host name of the author"
        ["CMI-52"], [] => has_a_host_name;
    "capabilities-stay": "ten calls return the same capabilities"
        ["CMI-58", "CMI-59"], [] => capabilities_stay;
    "capabilities-stay-unavailable": "capabilities do not change while the back end is unreachable"
        ["CMI-59"], [Need::Hook(Hook::Unavailable)] => stay_unavailable;
    "probe-ready": "the driver becomes ready"
        ["CMI-64", "CMI-70"], [] => becomes_ready;
    "probe-unhealthy": "an unhealthy driver is FAILED_PRECONDITION"
        ["CMI-68", "CMI-72", "CMI-73", "CMI-75", "CMI-77"], [Need::Hook(Hook::Unhealthy)] => unhealthy;
    "probe-unavailable": "with an unreachable back end Probe is OK or FAILED_PRECONDITION, and OK afterwards"
        ["CMI-73", "CMI-77"], [Need::Hook(Hook::Unavailable)] => unavailable;
    "probe-beside-slow-calls": "Probe answers during the maximum number of slow calls"
        ["CAP-34"], [Need::Hook(Hook::Slow)] => beside_slow_calls;
    "probe-starting": "a starting driver is healthy and not ready"
        ["CMI-69"], [Need::Hook(Hook::Starting)] => starting;
};

async fn answer_of<T: Texts>(
    t: &TestContext,
    operation: Operation,
    call: impl Future<Output = cmi_driver::Result<T>>,
) -> CaseResult<Answer<T>> {
    t.timed(operation, "the driver".to_owned(), &Secrets::default(), call)
        .await
}

/// Returns name and version, directly from the plugin if there is one, since the client treats invalid values
/// as unknown.
async fn info(t: &TestContext) -> CaseResult<GetPluginInfoResponse> {
    if t.target().wire().is_some() {
        return raw(t, INFO, &[]).await?.ok();
    }
    let info = answer_of(t, Operation::GetPluginInfo, t.target().driver.get_plugin_info()).await?;
    info.ok().map(Into::into)
}

pub(super) async fn probe(t: &TestContext) -> CaseResult<Answer<Readiness>> {
    answer_of(t, Operation::Probe, t.target().driver.probe()).await
}

/// Applies the client's rules at the only place where it reads the answer.
async fn names_the_driver(t: TestContext) -> CaseResult {
    let info = info(&t).await?;
    PluginInfo::try_from(info).map(|_| ()).map_err(|error| {
        CaseError::failed(format!("the client refuses the answer of GetPluginInfo: {error}"))
    })
}

async fn has_a_host_name(t: TestContext) -> CaseResult {
    let name = info(&t).await?.name;
    ensure(name.contains('.'), || {
        format!("the name `{name}` has no dot: `driver.example.com` says whose it is")
    })
}

async fn capabilities_stay(t: TestContext) -> CaseResult {
    if t.target().wire().is_some() {
        return declarations_stay(&t).await;
    }
    let first = settled(t.capabilities());
    for _ in 0..10 {
        let call = t.target().driver.get_plugin_capabilities();
        let again = answer_of(&t, Operation::GetPluginCapabilities, call)
            .await?
            .ok()?;
        ensure(settled(&again.capabilities) == first, changed)?;
    }
    Ok(())
}

/// Asks on the wire: the client asks once for each connection, and does not show a plugin's later answers.
async fn declarations_stay(t: &TestContext) -> CaseResult {
    let first = Declared::new(declared(t).await?, extended(t).await?);
    for _ in 0..10 {
        let again = Declared::new(declared(t).await?, extended(t).await?);
        ensure(again == first, changed)?;
    }
    Ok(())
}

/// The driver may also answer that it does not know: the provider then keeps the earlier answer. However, it
/// believes an answer that lacks a call or a field, and replaces machines that could have been updated.
async fn stay_unavailable(t: TestContext) -> CaseResult {
    let before = says(&t).await.map_err(CaseError::in_preparation)?;
    t.run_hook(HookCall::new(Hook::Unavailable)).await?;
    let during = says(&t).await;
    t.restore().await?;
    match during {
        Ok(during) => ensure(during.declared == before.declared, || {
            "the capabilities are others while the back end can't be reached".to_owned()
        }),
        Err(CaseError::Failed(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn changed() -> String {
    "the capabilities changed from one question to the next".to_owned()
}

/// Returns the capabilities with the unordered list sorted.
fn settled(capabilities: &Capabilities) -> Capabilities {
    let mut capabilities = capabilities.clone();
    capabilities.hot_updatable.sort_unstable();
    capabilities
}

/// The declaration of a plugin, with the unordered lists sorted.
#[derive(Debug, PartialEq)]
pub(super) struct Declared {
    calls: Vec<i32>,
    extension: Option<GetExtensionCapabilitiesResponse>,
    /// The schema, parsed since its fields have no order. Invalid JSON is compared byte for byte.
    schema: Result<Value, Vec<u8>>,
}

impl Declared {
    fn new(mut calls: Vec<i32>, mut extension: Option<GetExtensionCapabilitiesResponse>) -> Self {
        calls.sort_unstable();
        let mut schema = Vec::new();
        if let Some(extension) = &mut extension {
            extension.calls.sort_unstable();
            extension.hot_updatable.sort_unstable();
            schema = std::mem::take(&mut extension.provider_spec_schema);
        }
        Self {
            calls,
            extension,
            schema: serde_json::from_slice(&schema).map_err(|_| schema),
        }
    }
}

async fn becomes_ready(t: TestContext) -> CaseResult {
    let until = Instant::now() + t.config().call_limit();
    while probe(&t).await?.ok()? != Readiness::Ready {
        ensure(Instant::now() < until, || {
            "the driver is healthy and does not become ready".to_owned()
        })?;
        tokio::time::sleep(BETWEEN_PROBES).await;
    }
    Ok(())
}

/// A driver's answers about itself.
pub(super) struct Says {
    pub name: String,
    pub version: String,
    pub declared: Declaration,
}

/// The declaration of a driver, with the unordered lists sorted.
#[derive(Debug, PartialEq)]
pub(super) enum Declaration {
    InProcess(Box<Capabilities>),
    OnTheWire(Box<Declared>),
}

pub(super) async fn says(t: &TestContext) -> CaseResult<Says> {
    let GetPluginInfoResponse { name, version, .. } = info(t).await?;
    let declared = if t.target().wire().is_some() {
        let declared = Declared::new(declared(t).await?, extended(t).await?);
        Declaration::OnTheWire(Box::new(declared))
    } else {
        let call = t.target().driver.get_plugin_capabilities();
        let answer = answer_of(t, Operation::GetPluginCapabilities, call).await?;
        Declaration::InProcess(Box::new(settled(&answer.ok()?.capabilities)))
    };
    Ok(Says {
        name,
        version,
        declared,
    })
}

async fn unhealthy(t: TestContext) -> CaseResult {
    t.run_hook(HookCall::new(Hook::Unhealthy)).await?;
    probe(&t).await?.refused(Code::FailedPrecondition)?;
    t.restore().await?;
    probe(&t).await?.ok().map(|_| ())
}

/// A driver need not check its back end to answer Probe. If it does, an unreachable back end is a missing
/// precondition; only the calls about machines answer UNAVAILABLE.
async fn unavailable(t: TestContext) -> CaseResult {
    t.run_hook(HookCall::new(Hook::Unavailable)).await?;
    let answer = probe(&t).await?;
    t.restore().await?;
    answer.ok_or(&[Code::FailedPrecondition])?;
    becomes_ready(t).await
}

/// The provider takes a driver without a free thread for Probe for unreachable. The case sees that well
/// before the first of the slow calls ends.
async fn beside_slow_calls(t: TestContext) -> CaseResult {
    let slow = slow_down(&t).await?;
    let started = Instant::now();
    is_answered(&t).await.map_err(CaseError::in_preparation)?;
    let limit = started.elapsed().saturating_add(slow / 4 * 3);
    for _ in 0..TRIES {
        if answers_beside_others(&t, limit).await? {
            return t.restore().await;
        }
        // The driver may work on these calls that long, and the next Probe would wait for them, too.
        tokio::time::sleep(slow).await;
    }
    t.restore().await?;
    Err(CaseError::Failed(format!(
        "Probe takes longer than {:.1} s beside {CONCURRENT_CALLS} calls that take {:.1} s: the driver runs \
         fewer calls at a time than the provider makes, which then takes it for unreachable",
        limit.as_secs_f64(),
        slow.as_secs_f64()
    )))
}

/// Waits for any answer of Probe: an OK while the back end is slow shows nothing of the hook.
async fn is_answered(t: &TestContext) -> CaseResult {
    let probed = t.watched("Probe of the driver", t.target().driver.probe());
    probed.await.map(drop)
}

async fn answers_beside_others(t: &TestContext, limit: Duration) -> CaseResult<bool> {
    // The calls are about machines that never existed: the driver reads the back end and changes nothing.
    let operation = if t.supports(Operation::ListMachines) {
        Operation::ListMachines
    } else {
        Operation::DeleteMachine
    };
    let calls = (0..CONCURRENT_CALLS).map(|number| {
        let request = t.machine_request(&format!("n{number}"));
        async move { t.invoke(operation, &request, None).await.map(drop) }
    });
    let mut calls = std::pin::pin!(try_join_all(calls));
    // The calls have to reach the driver before Probe does.
    if let Ok(ended) = tokio::time::timeout(t.config().short_deadline(), &mut calls).await {
        ended?;
        let seen = format!("{CONCURRENT_CALLS} calls of {operation} ended before their deadline");
        return Err(t.changed_nothing(Hook::Slow, &seen));
    }
    let mut probed = std::pin::pin!(tokio::time::timeout(limit, is_answered(t)));
    tokio::select! {
        biased;
        answer = &mut probed => Ok(answer.is_ok()),
        ended = &mut calls => {
            ended?;
            Ok(probed.await.is_ok())
        }
    }
}

async fn starting(t: TestContext) -> CaseResult {
    t.run_hook(HookCall::new(Hook::Starting)).await?;
    let readiness = probe(&t).await?.ok()?;
    ensure(readiness == Readiness::NotReady, || {
        "a driver that still starts has to say that it is not ready".to_owned()
    })?;
    t.restore().await?;
    let ready = becomes_ready(t.clone()).await;
    if ready.is_err() {
        t.remains("Probe answered that the driver is not ready");
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(calls: &[i32], hot_updatable: &[&str], schema: &str) -> Declared {
        let extension = GetExtensionCapabilitiesResponse {
            hot_updatable: hot_updatable.iter().map(ToString::to_string).collect(),
            provider_spec_schema: schema.as_bytes().to_vec(),
            ..Default::default()
        };
        Declared::new(calls.to_vec(), Some(extension))
    }

    /// CMI-59: they are sets, and so are the fields of a schema.
    #[test]
    fn capabilities_in_another_order_are_the_same() {
        let schema = r#"{"type":"object","required":["a"]}"#;
        let first = declared(&[1, 2], &["/a", "/b"], schema);
        let turned = r#"{ "required": ["a"], "type": "object" }"#;
        assert_eq!(first, declared(&[2, 1], &["/b", "/a"], turned));
        for other in [
            declared(&[1, 2, 3], &["/a", "/b"], schema),
            declared(&[1, 2], &["/a"], schema),
            declared(&[1, 2], &["/a", "/b"], r#"{"type":"object","required":["b"]}"#),
            declared(&[1, 2], &["/a", "/b"], "no JSON"),
            Declared::new(vec![1, 2], None),
        ] {
            assert_ne!(first, other);
        }
        let places = |places: [&str; 2]| Capabilities {
            hot_updatable: places.map(|place| place.parse().unwrap()).to_vec(),
            ..Capabilities::minimal()
        };
        assert_eq!(settled(&places(["/a", "/b"])), settled(&places(["/b", "/a"])));
        assert_ne!(settled(&places(["/a", "/b"])), settled(&places(["/a", "/c"])));
    }
}
