//! Looks for the cause: one connection to the workload cluster, and one driver call. Changes nothing.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::Context;
use super::console::{self, Summary};
use super::plan::Awaited;
use crate::admission::Enforcement;
use crate::api::ObjectMetaExt as _;
use crate::api::identity;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::{Error, secrets};
use crate::driver::credentials;
use crate::driver::resolution::driver_of;
use crate::driver::{PERMIT_WAIT, Permit, Priority};
use crate::nodes::workload_cluster::request::{get, is_name};
use crate::nodes::workload_cluster::{self, Connection, ConnectionOutcome, Unreachable};
use crate::reconcile::waker;
use cmi_driver::{Code, GetConsoleRequest, MachineRef, Operation, Secrets};

/// The path of Nodes.
const NODES: &str = "/api/v1/nodes";
/// The longest ProviderID that is shown: a workload cluster may send any text.
const MAX_PROVIDER_ID: usize = 512;

/// The findings of a look.
#[derive(Debug)]
pub struct Findings {
    /// The Node in the workload cluster.
    pub node: NodeFinding,
    /// The console of the VM.
    pub console: ConsoleFinding,
}

/// The Node in the workload cluster.
#[derive(Debug)]
pub enum NodeFinding {
    /// The workload cluster can't be reached.
    Unreachable(Arc<Unreachable>),
    /// No Node has a name that is expected of this machine.
    NotFound,
    /// A Node with an expected name has another ProviderID, or none.
    Other {
        /// Its name.
        node: String,
        /// Its ProviderID.
        provider_id: Option<String>,
    },
    /// The Node has the right ProviderID. Cluster API has not seen it yet.
    Unseen {
        /// Its name.
        node: String,
    },
}

/// The console of the VM.
#[derive(Debug)]
pub enum ConsoleFinding {
    /// The driver does not offer the call.
    NotOffered,
    /// The console can't be read or shown, for this reason.
    Unread(String),
    /// The console.
    Read(Summary),
}

/// Looks for the cause. Returns a wait where a connection or a permit is not available now.
///
/// # Errors
/// The API server of the management cluster refused or could not be reached.
pub async fn look(
    machine: &InfraMachine,
    ctx: &Context,
    awaited: &Awaited<'_>,
) -> Result<Result<Findings, Duration>, Error> {
    let find = async |connection: &_| find_node(connection, awaited).await;
    let node = match ctx
        .workload_clusters
        .with_connection(awaited.cluster, find)
        .await?
    {
        ConnectionOutcome::Busy => return Ok(Err(workload_cluster::busy_wait(machine.metadata.uid()))),
        ConnectionOutcome::Failed { cause, .. } => NodeFinding::Unreachable(cause),
        ConnectionOutcome::Done(node) => node,
    };
    let console = read_console(machine, ctx, awaited).await?;
    Ok(console.map(|console| Findings { node, console }))
}

#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    spec: NodeSpec,
}

#[derive(Default, Deserialize)]
struct NodeSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

async fn find_node(connection: &Connection, awaited: &Awaited<'_>) -> Result<NodeFinding, Unreachable> {
    for name in awaited.names.iter().filter(|name| is_name(name)) {
        let Some(Node { spec }) = get(connection, NODES, name).await? else {
            continue;
        };
        let node = (*name).to_owned();
        return Ok(match spec.provider_id {
            Some(id) if id == awaited.provider_id => NodeFinding::Unseen { node },
            other => NodeFinding::Other {
                node,
                provider_id: other.map(|id| shown(&id)).filter(|id| !id.is_empty()),
            },
        });
    }
    Ok(NodeFinding::NotFound)
}

fn shown(provider_id: &str) -> String {
    let text = provider_id.chars().filter(|letter| !letter.is_control());
    text.take(MAX_PROVIDER_ID).collect()
}

async fn read_console(
    machine: &InfraMachine,
    ctx: &Context,
    awaited: &Awaited<'_>,
) -> Result<Result<ConsoleFinding, Duration>, Error> {
    let unread = |why: String| Ok(Ok(ConsoleFinding::Unread(why)));
    let driver = match driver_of(&ctx.drivers, machine) {
        Ok(driver) => driver,
        Err(unresolved) => return unread(unresolved.to_string()),
    };
    // A forged identity would show the console of another tenant's VM.
    if let Enforcement::NotInForce(why) = ctx.policies.enforcement_since(Instant::now()).await {
        return unread(why.to_string());
    }
    // Not the key of the machine's own reconciler, whose place this would take.
    let key = format!("{}/console", machine.metadata.uid());
    let waker = waker(&ctx.enqueue, &machine.metadata);
    let namespace = machine.metadata.namespace();
    let Some(permit) = driver.try_acquire(Priority::Upkeep, &key, namespace, waker) else {
        return Ok(Err(PERMIT_WAIT));
    };
    match permit.fetch_capabilities().await {
        Ok(capabilities) if !capabilities.supports(Operation::GetConsole) => {
            return Ok(Ok(ConsoleFinding::NotOffered));
        }
        Ok(_) => {}
        Err(status) => return unread(format!("{}: {}", status.code().name(), status.message())),
    }
    call(machine, ctx, awaited, &permit).await.map(Ok)
}

async fn call(
    machine: &InfraMachine,
    ctx: &Context,
    awaited: &Awaited<'_>,
    permit: &Permit<'_>,
) -> Result<ConsoleFinding, Error> {
    let namespace = machine.metadata.namespace();
    let (Some(spec), Ok(provider_id)) = (identity::applied_spec(machine), awaited.provider_id.parse()) else {
        return Ok(ConsoleFinding::Unread(
            "no applied provider spec is recorded".to_owned(),
        ));
    };
    let secret = identity::credentials(machine);
    let driver = permit.configured_driver();
    let read = credentials::machine_class(&ctx.client, driver, namespace, secret.as_deref(), spec);
    let class = match read.await? {
        Ok(class) => class,
        Err(invalid) => return Ok(ConsoleFinding::Unread(invalid.to_string())),
    };
    let secrets = match all_secrets(ctx, namespace, awaited, class.secrets.clone()).await? {
        Ok(secrets) => secrets,
        Err(why) => return Ok(ConsoleFinding::Unread(why)),
    };
    let request = GetConsoleRequest {
        machine: MachineRef::new(machine.metadata.name().to_owned(), class),
        provider_id,
    };
    Ok(match permit.driver().get_console(request).await {
        Ok(console) => ConsoleFinding::Read(console::summarize(&console, &secrets)),
        Err(status) if status.code() == Code::Unimplemented => ConsoleFinding::NotOffered,
        Err(status) => {
            let message = secrets.redact(status.message());
            ConsoleFinding::Unread(format!("{}: {message}", status.code().name()))
        }
    })
}

/// Returns the secrets that the console may show: the driver's and the bootstrap data. Without them, nothing
/// of the console may be shown.
async fn all_secrets(
    ctx: &Context,
    namespace: &str,
    awaited: &Awaited<'_>,
    of_driver: Secrets,
) -> Result<Result<Secrets, String>, Error> {
    let withheld = |why: &dyn std::fmt::Display| {
        Ok(Err(format!(
            "it may contain bootstrap data, and these cannot be read: {why}"
        )))
    };
    let Some(name) = awaited.owner.spec.bootstrap.data_secret_name.as_deref() else {
        return withheld(&"the Machine names no bootstrap data Secret");
    };
    match secrets::bootstrap_data(&ctx.client, namespace, name, of_driver).await? {
        Ok(secrets) => Ok(Ok(secrets)),
        Err(invalid) => withheld(&invalid),
    }
}
