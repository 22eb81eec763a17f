//! The driver's calls, as the plugin has them.

use std::collections::HashSet;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use tonic::Response;

use super::session::Session;
use super::{GrpcDriver, too_late};
use crate::cmi::convert::{FieldError, MachinePage, PageRequest};
use crate::cmi::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};
use crate::cmi::trailers;
use crate::driver::{
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

#[async_trait]
impl Driver for GrpcDriver {
    fn incarnation(&self) -> u64 {
        self.link.incarnation()
    }

    async fn info(&self) -> Result<PluginInfo> {
        self.introduced(Operation::GetPluginInfo, |session| session.greeting.info.clone())
            .await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.introduced(Operation::GetPluginCapabilities, |session| {
            session.greeting.capabilities.clone()
        })
        .await
    }

    /// Is also what looks after the connection: it is made when there is none, made anew when it has to be, and given up
    /// when nothing comes back on it. A new one that is slow leaves half of the time to ask on the old one.
    async fn probe(&self) -> Result<Readiness> {
        let given = self.deadlines.of(Operation::Probe);
        let deadline = Instant::now() + given;
        self.link.renew(self.reintroduction, given / 2).await;
        let session = timeout_at(deadline, self.link.session())
            .await
            .unwrap_or_else(|_elapsed| Err(too_late(Operation::Probe, given)))?;
        timeout_at(deadline, session.probe(deadline))
            .await
            .unwrap_or_else(|_elapsed| {
                self.link.give_up(&session);
                Err(too_late(Operation::Probe, given))
            })
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let operation = Operation::CreateMachine;
        self.call(operation, |session, deadline| async move {
            let request = cmi::CreateMachineRequest::from(request);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.machine();
                    async move { client.create_machine(request).await }
                });
            machine(operation, answer.await?)
        })
        .await
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let operation = Operation::DeleteMachine;
        self.call(operation, |session, deadline| async move {
            let request = cmi::DeleteMachineRequest::from(request);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.machine();
                    async move { client.delete_machine(request).await }
                });
            read(operation, answer.await?)
        })
        .await
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let operation = Operation::GetMachineStatus;
        self.call(operation, |session, deadline| async move {
            if session.greeting.extension.get_machine {
                get_machine(&session, deadline, request).await
            } else {
                get_machine_status(&session, deadline, request).await
            }
        })
        .await
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        self.call(Operation::ListMachines, |session, deadline| async move {
            if session.greeting.extension.list_machines_paged {
                all_pages(&session, deadline, request).await
            } else {
                list_machines(&session, deadline, request).await
            }
        })
        .await
    }

    async fn initialize_machine(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let operation = Operation::InitializeMachine;
        self.call(operation, |session, deadline| async move {
            let request = capcmi::InitializeMachineRequest::from(request);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.extension();
                    async move { client.initialize_machine(request).await }
                });
            read(operation, answer.await?)
        })
        .await
    }

    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let operation = Operation::ShutDownMachine;
        self.call(operation, |session, deadline| async move {
            let request = cmi::ShutDownMachineRequest::from(request);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.machine();
                    async move { client.shut_down_machine(request).await }
                });
            read(operation, answer.await?)
        })
        .await
    }

    async fn update_machine(&self, request: UpdateMachineRequest) -> Result<()> {
        let operation = Operation::UpdateMachine;
        self.call(operation, |session, deadline| async move {
            let request = capcmi::UpdateMachineRequest::from(request);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.extension();
                    async move { client.update_machine(request).await }
                });
            answer.await?;
            Ok(())
        })
        .await
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        let operation = Operation::GetVolumeIds;
        self.call(operation, |session, deadline| async move {
            let request = cmi::GetVolumeIDsRequest::from(request);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.machine();
                    async move { client.get_volume_i_ds(request).await }
                });
            read(operation, answer.await?)
        })
        .await
    }

    async fn generate_machine_class(
        &self,
        request: GenerateMachineClassRequest,
    ) -> Result<Map<String, Value>> {
        let operation = Operation::GenerateMachineClassForMigration;
        self.call(operation, |session, deadline| async move {
            let request = capcmi::GenerateMachineClassForMigrationRequest::from(request);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.extension();
                    async move { client.generate_machine_class_for_migration(request).await }
                });
            read(operation, answer.await?)
        })
        .await
    }

    async fn zones(&self, class: MachineClass) -> Result<Vec<Zone>> {
        let operation = Operation::ListZones;
        self.call(operation, |session, deadline| async move {
            let request = capcmi::ListZonesRequest::from(class);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.extension();
                    async move { client.list_zones(request).await }
                });
            read(operation, answer.await?)
        })
        .await
    }

    async fn describe_class(&self, class: MachineClass) -> Result<ClassDescription> {
        let operation = Operation::DescribeClass;
        self.call(operation, |session, deadline| async move {
            let request = capcmi::DescribeClassRequest::from(class);
            let answer = session
                .line
                .call(operation, deadline, request, |exchange, request| {
                    let mut client = exchange.extension();
                    async move { client.describe_class(request).await }
                });
            read(operation, answer.await?)
        })
        .await
    }
}

async fn get_machine(
    session: &Session,
    deadline: Instant,
    request: GetMachineStatusRequest,
) -> Result<Machine> {
    let request = capcmi::GetMachineRequest::from(request);
    let answer = session.line.call(
        Operation::GetMachineStatus,
        deadline,
        request,
        |exchange, request| {
            let mut client = exchange.extension();
            async move { client.get_machine(request).await }
        },
    );
    read(Operation::GetMachineStatus, answer.await?)
}

async fn get_machine_status(
    session: &Session,
    deadline: Instant,
    request: GetMachineStatusRequest,
) -> Result<Machine> {
    let request = cmi::GetMachineStatusRequest::from(request);
    let answer = session.line.call(
        Operation::GetMachineStatus,
        deadline,
        request,
        |exchange, request| {
            let mut client = exchange.machine();
            async move { client.get_machine_status(request).await }
        },
    );
    machine(Operation::GetMachineStatus, answer.await?)
}

async fn list_machines(
    session: &Session,
    deadline: Instant,
    request: ListMachinesRequest,
) -> Result<Vec<ListedMachine>> {
    let request = cmi::ListMachinesRequest::from(request);
    let answer = session
        .line
        .call(Operation::ListMachines, deadline, request, |exchange, request| {
            let mut client = exchange.machine();
            async move { client.list_machines(request).await }
        });
    read(Operation::ListMachines, answer.await?)
}

/// All pages of a list, with each machine once: it may move between two pages. A plugin that never comes to an end is
/// broken: half a list would make VMs look gone.
async fn all_pages(
    session: &Session,
    deadline: Instant,
    list: ListMachinesRequest,
) -> Result<Vec<ListedMachine>> {
    let operation = Operation::ListMachines;
    let (mut machines, mut asked) = (Vec::new(), HashSet::new());
    let mut token = None;
    for _ in 0..MOST_PAGES {
        let request = PageRequest {
            list: list.clone(),
            size: None,
            token,
        };
        let request = capcmi::ListMachinesPagedRequest::from(request);
        let answer = session
            .line
            .call(operation, deadline, request, |exchange, request| {
                let mut client = exchange.extension();
                async move { client.list_machines_paged(request).await }
            });
        let mut page: MachinePage = read(operation, answer.await?)?;
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
fn machine<A>(operation: Operation, answer: Response<A>) -> Result<Machine>
where
    A: TryInto<Machine, Error = FieldError>,
{
    let (metadata, answer, _) = answer.into_parts();
    let machine = answer.try_into().map_err(|error| error.in_response(operation))?;
    Ok(trailers::completed(machine, &metadata))
}

/// What a response holds, if it keeps to the rules of its fields.
fn read<A, T>(operation: Operation, answer: Response<A>) -> Result<T>
where
    A: TryInto<T, Error = FieldError>,
{
    answer
        .into_inner()
        .try_into()
        .map_err(|error| error.in_response(operation))
}
