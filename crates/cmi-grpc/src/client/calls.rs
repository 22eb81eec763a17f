//! The driver's calls, as rpcs of the plugin.

use std::collections::HashSet;

use tokio::time::{Instant, timeout_at};
use tonic::Response;

use super::connection::rpc;
use super::session::Session;
use super::{GrpcDriver, SessionCall, too_late};
use crate::codec::MAX_FIELDS;
use crate::convert::{FieldError, MachinePage, PageRequest};
use crate::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};
use crate::{extension_rpcs, machine_rpcs, trailers};
use cmi_driver::{
    Code, DeclaredCapabilities, GetMachineStatusRequest, ListMachinesRequest, ListedMachine, Machine,
    Operation, PluginInfo, Readiness, Request, Result, Status,
};

/// The most pages of a list. A plugin that has more gives too few machines on each.
const MAX_PAGES: usize = 10_000;
/// The most machines of a list, in pages or not.
const MAX_MACHINES: usize = MAX_FIELDS;

/// One exchange of a [`SessionCall`]: the method of a service, and the function that reads its response.
macro_rules! exchange {
    ($call:ident, $service:ident.$method:ident($request:expr), $read:expr) => {{
        let answer = rpc!(
            $call.session.connection,
            $call.operation,
            $call.deadline,
            $service.$method($request)
        );
        let read = $read;
        read(answer.await?).map_err(|error: FieldError| error.in_response($call.operation))
    }};
}

/// A request that can be sent to a plugin.
pub(super) trait Rpc: Request {
    /// Makes the call.
    fn invoke(self, call: &SessionCall) -> impl Future<Output = Result<Self::Response>> + Send;
}

/// Implements calls that need a single exchange.
macro_rules! one_exchange {
    ([$service:ident of $messages:ident] $(
        $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
            -> $response:ident, $reply:ident, $declared:ident;
    )+) => {$(
        impl Rpc for cmi_driver::$driver {
            async fn invoke(self, call: &SessionCall) -> Result<Self::Response> {
                let request = $messages::$request::from(self);
                exchange!(call, $service.$method(request), $reply)
            }
        }
    )+};
}

machine_rpcs!(one_exchange [machine of cmi]);
extension_rpcs!(one_exchange [extension of capcmi]);

impl Rpc for GetMachineStatusRequest {
    async fn invoke(self, call: &SessionCall) -> Result<Machine> {
        if call.session.handshake.extension.get_machine {
            let request = capcmi::GetMachineRequest::from(self);
            exchange!(call, extension.get_machine(request), plain)
        } else {
            let request = cmi::GetMachineStatusRequest::from(self);
            exchange!(call, machine.get_machine_status(request), with_trailers)
        }
    }
}

impl Rpc for ListMachinesRequest {
    async fn invoke(self, call: &SessionCall) -> Result<Vec<ListedMachine>> {
        if call.session.handshake.extension.list_machines_paged {
            all_pages(call, self).await
        } else {
            let request = cmi::ListMachinesRequest::from(self);
            exchange!(call, machine.list_machines(request), plain)
        }
    }
}

cmi_driver::forward_calls! {
    impl Driver for GrpcDriver {
        fn connection_generation(&self) -> u64 {
            self.channel.connection_generation()
        }

        async fn get_plugin_info(&self) -> Result<PluginInfo> {
            self.of_session(Operation::GetPluginInfo, |session| session.handshake.info.clone())
                .await
        }

        async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
            self.of_session(Operation::GetPluginCapabilities, Session::declared)
                .await
        }

        /// The probe also maintains the connection: it opens a missing connection, renews it when necessary,
        /// and closes it when it is silent. A slow new connection leaves half of the time for a probe on the
        /// old one.
        async fn probe(&self) -> Result<Readiness> {
            let given = self.deadlines.of(Operation::Probe);
            let deadline = Instant::now() + given;
            self.channel.renew(self.max_session_age, given / 2).await;
            let session = timeout_at(deadline, self.channel.session())
                .await
                .unwrap_or_else(|_elapsed| Err(too_late(Operation::Probe, given)))?;
            timeout_at(deadline, session.probe(deadline))
                .await
                .unwrap_or_else(|_elapsed| {
                    self.channel.give_up(&session);
                    Err(too_late(Operation::Probe, given))
                })
        }

        async fn prepare_call(&self, operation: Operation) -> Result<()> {
            let given = self.deadlines.of(operation);
            self.ready_session(operation, Instant::now() + given, given)
                .await?;
            Ok(())
        }
    }
}

/// Reads all pages of a list, with each machine once: a machine may move between two pages. A list that never
/// ends is an error of the plugin: half a list would make VMs look gone.
async fn all_pages(call: &SessionCall, list: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
    let (mut machines, mut asked) = (Vec::new(), HashSet::new());
    let mut token = None;
    for _ in 0..MAX_PAGES {
        let request = capcmi::ListMachinesPagedRequest::from(PageRequest {
            list: list.clone(),
            size: None,
            token,
        });
        let page: Result<MachinePage> = exchange!(call, extension.list_machines_paged(request), plain);
        let mut page = page?;
        machines.append(&mut page.machines);
        if machines.len() > MAX_MACHINES {
            return Err(endless("it has too many machines"));
        }
        let Some(next) = page.next else {
            return Ok(each_once(machines));
        };
        if !asked.insert(next.0.clone()) {
            return Err(endless("it gave the same page token twice"));
        }
        token = Some(next);
    }
    Err(endless("it has too many pages"))
}

fn each_once(mut machines: Vec<ListedMachine>) -> Vec<ListedMachine> {
    machines.sort_unstable_by(|one, other| {
        (&one.provider_id, &one.machine_name).cmp(&(&other.provider_id, &other.machine_name))
    });
    machines.dedup_by(|one, other| is_same(one, other));
    machines
}

/// Whether two entries are about the same VM. Its state may change between two pages.
fn is_same(one: &ListedMachine, other: &ListedMachine) -> bool {
    let ListedMachine {
        provider_id,
        machine_name,
        cluster_id,
        machine_id,
        created_at,
        addresses: _,
        power_state: _,
    } = one;
    *provider_id == other.provider_id
        && *machine_name == other.machine_name
        && *cluster_id == other.cluster_id
        && *machine_id == other.machine_id
        && *created_at == other.created_at
}

fn endless(why: &str) -> Status {
    Status::new(
        Code::Internal,
        format!("the plugin's list of machines does not end: {why}"),
    )
}

/// A machine, with the metadata that cmi.v1 has no fields for.
fn with_trailers<A>(answer: Response<A>) -> std::result::Result<Machine, FieldError>
where
    A: TryInto<Machine, Error = FieldError>,
{
    let (metadata, answer, _) = answer.into_parts();
    Ok(trailers::completed(answer.try_into()?, &metadata))
}

/// Reads the message of a response, and checks its fields.
fn plain<A, T>(answer: Response<A>) -> std::result::Result<T, FieldError>
where
    A: TryInto<T, Error = FieldError>,
{
    answer.into_inner().try_into()
}

/// Reads a response without content.
#[allow(clippy::unnecessary_wraps)] // it stands where the others do
fn empty<A>(_answer: Response<A>) -> std::result::Result<(), FieldError> {
    Ok(())
}
