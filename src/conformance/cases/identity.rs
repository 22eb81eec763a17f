//! Name, version, capabilities and health.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use super::case;
use super::published::extended;
use super::requests::{INFO, raw};
use super::wire::declared;
use crate::cmi::proto::cmi::v1::GetPluginInfoResponse;
use crate::conformance::answer::{Answer, Outcome, ensure};
use crate::conformance::judge::Said;
use crate::conformance::{Case, Hook, Need, Pull, Trial};
use crate::driver::{self, Code, Operation, PluginInfo, Readiness, Secrets};

const LONGEST_NAME: usize = 63;
const LARGEST_MANIFEST: usize = 4096;
const BETWEEN_PROBES: Duration = Duration::from_millis(100);

pub(super) const CASES: &[Case] = &[
    case!(
        "info-names-the-driver",
        "name and version are there, and the name is a domain name",
        proves: ["CMI-50", "CMI-51", "CMI-53", "CMI-54", "CMI-55", "CMI-56"],
        needs: [],
        names_the_driver
    ),
    case!(
        "info-has-a-host-name",
        "the name holds the host name of whoever made the driver",
        proves: ["CMI-52"],
        needs: [],
        has_a_host_name
    ),
    case!(
        "capabilities-stay",
        "ten questions about capabilities have one answer",
        proves: ["CMI-58", "CMI-59"],
        needs: [],
        capabilities_stay
    ),
    case!(
        "probe-ready",
        "the driver becomes ready",
        proves: ["CMI-64", "CMI-70"],
        needs: [],
        becomes_ready
    ),
    case!(
        "probe-unhealthy",
        "a driver that is not healthy says FAILED_PRECONDITION",
        proves: ["CMI-68", "CMI-72", "CMI-73", "CMI-75", "CMI-77"],
        needs: [Need::Hook(Hook::Unhealthy)],
        unhealthy
    ),
    case!(
        "probe-starting",
        "a driver that still starts is healthy and not ready",
        proves: ["CMI-69"],
        needs: [Need::Hook(Hook::Starting)],
        starting
    ),
];

async fn ask<T: Said>(
    t: &Trial,
    operation: Operation,
    call: impl Future<Output = driver::Result<T>>,
) -> Outcome<Answer<T>> {
    t.timed(operation, "the driver".to_owned(), &Secrets::default(), call)
        .await
}

/// Name and version: from the plugin itself where there is one, since the client takes what breaks the rules for unknown.
async fn info(t: &Trial) -> Outcome<PluginInfo> {
    if t.target().wire().is_some() {
        let info: GetPluginInfoResponse = raw(t, INFO, &[]).await?.ok()?;
        return Ok(PluginInfo {
            name: info.name,
            version: info.version,
            manifest: info.manifest.into_iter().collect(),
        });
    }
    ask(t, Operation::GetPluginInfo, t.target().driver.info())
        .await?
        .ok()
}

async fn probe(t: &Trial) -> Outcome<Answer<Readiness>> {
    ask(t, Operation::Probe, t.target().driver.probe()).await
}

async fn names_the_driver(t: Trial) -> Outcome {
    let info = info(&t).await?;
    ensure(is_domain_name(&info.name), || {
        format!(
            "the name `{}` has to be 1 to {LONGEST_NAME} letters, digits, `-` and `.`, alphanumeric at both ends",
            info.name
        )
    })?;
    ensure(!info.version.is_empty(), || "the version is empty".to_owned())?;
    let size: usize = info
        .manifest
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    ensure(size <= LARGEST_MANIFEST, || {
        format!("the manifest has {size} bytes; at most {LARGEST_MANIFEST} are allowed")
    })
}

fn is_domain_name(name: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= LONGEST_NAME
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

async fn has_a_host_name(t: Trial) -> Outcome {
    let name = info(&t).await?.name;
    ensure(name.contains('.'), || {
        format!("the name `{name}` has no dot: `driver.example.com` says whose it is")
    })
}

async fn capabilities_stay(t: Trial) -> Outcome {
    if t.target().wire().is_some() {
        return declarations_stay(&t).await;
    }
    let first = format!("{:?}", t.capabilities());
    for _ in 0..10 {
        let call = t.target().driver.capabilities();
        let again = ask(&t, Operation::GetPluginCapabilities, call).await?.ok()?;
        ensure(format!("{again:?}") == first, || {
            "the capabilities changed from one question to the next".to_owned()
        })?;
    }
    Ok(())
}

/// The client asks once for each connection: only the wire shows what a plugin says the next time.
async fn declarations_stay(t: &Trial) -> Outcome {
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        let mut declared = declared(t).await?;
        declared.sort_unstable();
        let mut extended = extended(t).await?.unwrap_or_default();
        extended.calls.sort_unstable();
        seen.insert(format!("{declared:?} {extended:?}"));
    }
    ensure(seen.len() == 1, || {
        "the capabilities changed from one question to the next".to_owned()
    })
}

async fn becomes_ready(t: Trial) -> Outcome {
    let until = tokio::time::Instant::now() + t.config().call_limit();
    while probe(&t).await?.ok()? != Readiness::Ready {
        ensure(tokio::time::Instant::now() < until, || {
            "the driver is healthy and does not become ready".to_owned()
        })?;
        tokio::time::sleep(BETWEEN_PROBES).await;
    }
    Ok(())
}

async fn unhealthy(t: Trial) -> Outcome {
    t.pull(Pull::new(Hook::Unhealthy)).await?;
    probe(&t).await?.refused(Code::FailedPrecondition)?;
    t.restore().await?;
    probe(&t).await?.ok().map(|_| ())
}

async fn starting(t: Trial) -> Outcome {
    t.pull(Pull::new(Hook::Starting)).await?;
    let readiness = probe(&t).await?.ok()?;
    ensure(readiness == Readiness::NotYet, || {
        "a driver that still starts has to say that it is not ready".to_owned()
    })?;
    t.restore().await?;
    becomes_ready(t).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CMI-53
    #[test]
    fn a_name_may_begin_and_end_with_a_digit_and_have_one_character() {
        for good in ["a", "7", "1a.example.com2", &"a".repeat(63)] {
            assert!(is_domain_name(good), "{good}");
        }
        for bad in ["", ".a", "a-", "a_b", "ä", &"a".repeat(64)] {
            assert!(!is_domain_name(bad), "{bad}");
        }
    }
}
