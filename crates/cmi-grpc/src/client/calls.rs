//! The driver's calls, as the plugin has them.

use std::collections::HashSet;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use tonic::Response;

use super::connection::rpc;
use super::{Call, GrpcDriver, too_late};
use crate::convert::{FieldError, MachinePage, PageRequest};
use crate::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};
use crate::trailers;
use cmi_driver::{
    Capabilities, ClassDescription, Code, CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse,
    Driver, GenerateMachineClassRequest, GetMachineStatusRequest, GetVolumeIdsRequest,
    InitializeMachineRequest, ListMachinesRequest, ListedMachine, Machine, MachineClass, Operation,
    PluginInfo, Readiness, Result, ShutDownMachineRequest, ShutDownMachineResponse, Status,
    UpdateMachineRequest, Zone,
};

/// The most pages of a list. A plugin that has more gives too few machines on each.
const MOST_PAGES: usize = 10_000;
/// The most machines of a list: more than any cluster has, and less than fills the memory.
const MOST_MACHINES: usize = 200_000;

/// One exchange of a [`Call`]: the method of a service, and what reads its response.
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

/// A call that is one exchange.
macro_rules! call {
    ($driver:ident, $operation:ident, $service:ident.$method:ident($request:expr), $read:expr) => {
        $driver
            .call(Operation::$operation, |call| async move {
                exchange!(call, $service.$method($request), $read)
            })
            .await
    };
}

#[async_trait]
impl Driver for GrpcDriver {
    fn connection_generation(&self) -> u64 {
        self.channel.connection_generation()
    }

    async fn info(&self) -> Result<PluginInfo> {
        self.introduced(Operation::GetPluginInfo, |session| session.handshake.info.clone())
            .await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.introduced(Operation::GetPluginCapabilities, |session| {
            session.handshake.capabilities.clone()
        })
        .await
    }

    /// Is also what looks after the connection: it is made when there is none, made anew when it has
    /// to be, and given up when nothing comes back on it. A new one that is slow leaves half of the
    /// time to ask on the old one.
    async fn probe(&self) -> Result<Readiness> {
        let given = self.deadlines.of(Operation::Probe);
        let deadline = Instant::now() + given;
        self.channel.renew(self.reintroduction, given / 2).await;
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

    async fn prepare_create(&self, _class: &MachineClass) -> Result<()> {
        let operation = Operation::CreateMachine;
        let given = self.deadlines.of(operation);
        self.ready_session(operation, Instant::now() + given, given)
            .await?;
        Ok(())
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let request = cmi::CreateMachineRequest::from(request);
        call!(self, CreateMachine, machine.create_machine(request), completed)
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let request = cmi::DeleteMachineRequest::from(request);
        call!(self, DeleteMachine, machine.delete_machine(request), read)
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        self.call(Operation::GetMachineStatus, |call| async move {
            if call.session.handshake.extension.get_machine {
                let request = capcmi::GetMachineRequest::from(request);
                exchange!(call, extension.get_machine(request), read)
            } else {
                let request = cmi::GetMachineStatusRequest::from(request);
                exchange!(call, machine.get_machine_status(request), completed)
            }
        })
        .await
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        self.call(Operation::ListMachines, |call| async move {
            if call.session.handshake.extension.list_machines_paged {
                all_pages(&call, request).await
            } else {
                let request = cmi::ListMachinesRequest::from(request);
                exchange!(call, machine.list_machines(request), read)
            }
        })
        .await
    }

    async fn initialize_machine(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let request = capcmi::InitializeMachineRequest::from(request);
        call!(
            self,
            InitializeMachine,
            extension.initialize_machine(request),
            read
        )
    }

    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let request = cmi::ShutDownMachineRequest::from(request);
        call!(self, ShutDownMachine, machine.shut_down_machine(request), read)
    }

    async fn update_machine(&self, request: UpdateMachineRequest) -> Result<()> {
        let request = capcmi::UpdateMachineRequest::from(request);
        call!(self, UpdateMachine, extension.update_machine(request), |_| Ok(()))
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        let request = cmi::GetVolumeIDsRequest::from(request);
        call!(self, GetVolumeIds, machine.get_volume_i_ds(request), read)
    }

    async fn generate_machine_class(
        &self,
        request: GenerateMachineClassRequest,
    ) -> Result<Map<String, Value>> {
        let request = capcmi::GenerateMachineClassForMigrationRequest::from(request);
        call!(
            self,
            GenerateMachineClassForMigration,
            extension.generate_machine_class_for_migration(request),
            read
        )
    }

    async fn zones(&self, class: MachineClass) -> Result<Vec<Zone>> {
        let request = capcmi::ListZonesRequest::from(class);
        call!(self, ListZones, extension.list_zones(request), read)
    }

    async fn describe_class(&self, class: MachineClass) -> Result<ClassDescription> {
        let request = capcmi::DescribeClassRequest::from(class);
        call!(self, DescribeClass, extension.describe_class(request), read)
    }
}

/// All pages of a list, with each machine once: it may move between two pages. A plugin that never comes to
/// an end is broken: half a list would make VMs look gone.
async fn all_pages(call: &Call, list: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
    let (mut machines, mut asked) = (Vec::new(), HashSet::new());
    let mut token = None;
    for _ in 0..MOST_PAGES {
        let request = capcmi::ListMachinesPagedRequest::from(PageRequest {
            list: list.clone(),
            size: None,
            token,
        });
        let page: Result<MachinePage> = exchange!(call, extension.list_machines_paged(request), read);
        let mut page = page?;
        machines.append(&mut page.machines);
        if machines.len() > MOST_MACHINES {
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
    machines.dedup();
    machines
}

fn endless(why: &str) -> Status {
    Status::new(
        Code::Internal,
        format!("the plugin's list of machines does not end: {why}"),
    )
}

/// A machine, with what cmi.v1 has no room for.
fn completed<A>(answer: Response<A>) -> std::result::Result<Machine, FieldError>
where
    A: TryInto<Machine, Error = FieldError>,
{
    let (metadata, answer, _) = answer.into_parts();
    Ok(trailers::completed(answer.try_into()?, &metadata))
}

/// What a response holds, if it keeps to the rules of its fields.
fn read<A, T>(answer: Response<A>) -> std::result::Result<T, FieldError>
where
    A: TryInto<T, Error = FieldError>,
{
    answer.into_inner().try_into()
}
