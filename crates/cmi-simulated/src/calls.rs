//! The calls of the driver contract.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::access;
use super::cloud::Cloud;
use super::commands::{self, Bootstrap, VmSelector};
use super::spec::{LABELS, NETWORK_ADDRESSES, TAGS, Tagged, VmSpec};
use super::vm::{UserData, Vm};
use super::{Call, NAME, SimulatedDriver, migration, schema, volumes};
use cmi_driver::{
    Capabilities, ClassDescription, Code, Console, CreateMachineRequest, DeclaredCapabilities,
    DeleteMachineRequest, DeleteMachineResponse, DescribeClassRequest, Driver,
    GenerateMachineClassForMigrationRequest, GetConsoleRequest, GetMachineStatusRequest, GetVolumeIdsRequest,
    InitializeMachineRequest, JsonPointer, ListMachinesRequest, ListZonesRequest, ListedMachine, Machine,
    Operation, PluginInfo, Readiness, RestartMachineRequest, Result, ShutDownMachineRequest,
    ShutDownMachineResponse, SpecSchema, Status, USER_DATA, USER_DATA_FORMAT, UpdateMachineRequest, Zone,
    tags,
};

impl SimulatedDriver {
    /// Lets the VMs vanish that a fault names. While nothing happens to a machine, a list is the only call
    /// that concerns its VM.
    fn vanish_unasked(&self, cluster: &str) -> Result<()> {
        let vms = self.journal.read(|cloud, _| {
            let vms = cloud.of_cluster(cluster).filter(|vm| vm.gone_at.is_none());
            vms.map(|vm| (vm.id, vm.name.clone())).collect::<Vec<_>>()
        })?;
        for (id, name) in vms {
            if self.faults.vanishes_unasked(&name) {
                self.console().vanish(id)?;
            }
        }
        Ok(())
    }

    fn listed(&self, cluster: &str) -> Result<Vec<ListedMachine>> {
        let unusable = |vm: &Vm, error| {
            let message = format!("the cloud gave VM `{}` an id that can't be used", vm.name);
            Status::new(Code::Internal, message).with_source(error)
        };
        self.journal.read(|cloud, now| {
            let vms = cloud.of_cluster(cluster);
            let visible = vms.filter(|vm| commands::is_visible(vm, now, &self.config));
            let listed = visible.map(|vm| vm.listed(now).map_err(|error| unusable(vm, error)));
            listed.collect()
        })?
    }

    /// Orders the deletion and waits until the VM is gone; ABORTED when that takes too long. A dropped call
    /// leaves the deletion ordered, and a repeat waits for the same deletion (DRV-21, DRV-23).
    async fn delete(&self, selector: &VmSelector) -> Result<DeleteMachineResponse> {
        let takes = Duration::from_secs_f64(self.config.delete_seconds);
        let deadline = tokio::time::Instant::now() + Duration::from_secs_f64(self.config.delete_wait_seconds);
        let gone_at = self
            .journal
            .change(|cloud, now| commands::delete(cloud, now, takes, selector))?;
        loop {
            let left = self.journal.read(|cloud, now| {
                let gone = commands::is_gone(cloud, selector);
                gone_at.filter(|_| !gone).map(|at| at.since(now))
            })?;
            let Some(left) = left else {
                return Ok(DeleteMachineResponse::default());
            };
            if tokio::time::Instant::now() >= deadline {
                let what = format!("the VM of machine `{}` is being deleted", selector.name);
                return Err(commands::pending(&what, left));
            }
            // Timers differ from the wall clock by up to a millisecond, so the loop may wait twice.
            let wake = tokio::time::Instant::now() + left.max(Duration::from_millis(1));
            tokio::time::sleep_until(wake.min(deadline)).await;
        }
    }
}

#[async_trait]
impl Driver for SimulatedDriver {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        self.run(Call::bare(Operation::GetPluginInfo), async {
            Ok(PluginInfo {
                name: NAME.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                manifest: BTreeMap::new(),
            })
        })
        .await
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        self.run(Call::bare(Operation::GetPluginCapabilities), async {
            let required = Capabilities::minimal();
            let offered =
                |operation: &Operation| !required.supports(*operation) && self.config.supports(*operation);
            let tag_path = JsonPointer::field(TAGS);
            let machine_tag = self
                .config
                .adds_machine_tag
                .then(|| tag_path.child(tags::MACHINE));
            let hot_updatable = [JsonPointer::field(LABELS)].into_iter().chain(machine_tag);
            let updates = self.config.supports(Operation::UpdateMachine);
            Ok(Capabilities {
                operations: Operation::ALL.into_iter().filter(offered).collect(),
                zones: !self.config.zones.is_empty(),
                consistency_window: self.config.consistency_window(),
                tag_path,
                address_path: Some(JsonPointer::field(NETWORK_ADDRESSES)),
                hot_updatable: hot_updatable.filter(|_| updates).collect(),
                provider_spec_schema: Some(SpecSchema::new(schema::of(&self.config))),
                list_has_state: self.config.list_has_state,
            }
            .into())
        })
        .await
    }

    async fn probe(&self) -> Result<Readiness> {
        self.run(Call::bare(Operation::Probe), async {
            self.journal.read(|_, _| ())?;
            Ok(if self.faults.not_ready() {
                Readiness::NotReady
            } else {
                Readiness::Ready
            })
        })
        .await
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let CreateMachineRequest {
            machine,
            last_known_state: state,
        } = request;
        let secrets = &machine.class.secrets;
        let work = |selector, spec| async move {
            let format = secrets.get(USER_DATA_FORMAT);
            let bootstrap = Bootstrap {
                user_data: UserData::from(secrets.get(USER_DATA).map_or([].as_slice(), |data| data.expose())),
                format: format.map(|format| String::from_utf8_lossy(format.expose()).into_owned()),
            };
            self.journal
                .change(|cloud, now| commands::create(cloud, now, &self.config, &selector, &spec, bootstrap))
        };
        self.run_on(Operation::CreateMachine, &machine, None, state, work)
            .await
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let (id, state) = (request.provider_id.as_ref(), request.last_known_state);
        let work = |selector, _| async move { self.delete(&selector).await };
        self.run_on(Operation::DeleteMachine, &request.machine, id, state, work)
            .await
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let id = request.provider_id.as_ref();
        let work = |selector: VmSelector, spec: VmSpec| async move {
            let check = spec.source_dest_check;
            self.journal
                .read(|cloud, now| commands::status(cloud, now, &self.config, &selector, check))?
        };
        self.run_on(Operation::GetMachineStatus, &request.machine, id, None, work)
            .await
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let call = Call::of_class(Operation::ListMachines, &request.class);
        self.run(call, async {
            let spec = self.class_spec(Operation::ListMachines, &request.class, Tagged::Cluster)?;
            self.vanish_unasked(spec.cluster())?;
            self.listed(spec.cluster())
        })
        .await
    }

    async fn initialize_machine(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let (id, state) = (request.provider_id.as_ref(), request.last_known_state);
        let work = |selector, spec: VmSpec| async move {
            self.journal
                .change(|cloud, now| commands::initialize(cloud, now, &selector, spec.source_dest_check))
        };
        self.run_on(Operation::InitializeMachine, &request.machine, id, state, work)
            .await
    }

    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let (id, state) = (request.provider_id.as_ref(), request.last_known_state);
        let work = |selector: VmSelector, _| async move {
            let takes = Duration::from_secs_f64(self.config.shut_down_seconds);
            let stops_at = self
                .journal
                .change(|cloud, now| commands::shut_down(cloud, now, takes, &selector))?;
            let left = self.journal.read(|_, now| stops_at.since(now))?;
            if left.is_zero() || self.config.accepts_shut_down {
                return Ok(ShutDownMachineResponse::default());
            }
            let what = format!("the guest of machine `{}` is stopping", selector.name);
            Err(commands::pending(&what, left))
        };
        self.run_on(Operation::ShutDownMachine, &request.machine, id, state, work)
            .await
    }

    async fn update_machine(&self, request: UpdateMachineRequest) -> Result<()> {
        let (id, state) = (Some(&request.provider_id), request.last_known_state);
        let work = |selector, spec| async move {
            self.journal
                .change(|cloud, now| commands::update(cloud, now, &self.config, &selector, &spec))
        };
        self.run_on(Operation::UpdateMachine, &request.machine, id, state, work)
            .await
    }

    async fn restart_machine(&self, request: RestartMachineRequest) -> Result<()> {
        let (id, state) = (Some(&request.provider_id), request.last_known_state);
        let work = |selector, _| async move {
            self.journal
                .change(|cloud, now| commands::restart(cloud, now, &self.config, &selector))
        };
        self.run_on(Operation::RestartMachine, &request.machine, id, state, work)
            .await
    }

    async fn get_console(&self, request: GetConsoleRequest) -> Result<Console> {
        let work = |selector: VmSelector, _| async move {
            let written = |cloud: &Cloud, now| Ok(selector.one(cloud)?.console(now));
            self.journal
                .read(written)?
                .map(|output| Console::new(output.as_bytes()))
        };
        let id = Some(&request.provider_id);
        self.run_on(Operation::GetConsole, &request.machine, id, None, work)
            .await
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        self.run(Call::bare(Operation::GetVolumeIds), async {
            volumes::ids(&request.pv_specs)
        })
        .await
    }

    async fn generate_machine_class_for_migration(
        &self,
        request: GenerateMachineClassForMigrationRequest,
    ) -> Result<Map<String, Value>> {
        let call = Call::bare(Operation::GenerateMachineClassForMigration);
        self.run(call, async { migration::machine_class(request) }).await
    }

    async fn list_zones(&self, request: ListZonesRequest) -> Result<Vec<Zone>> {
        let call = Call::of_class(Operation::ListZones, &request.class);
        self.run(call, async {
            // A Cluster asks before it has a machine: without a pool it gets the zones of all.
            access::check(
                self.config.credentials.as_ref(),
                &request.class.secrets,
                Operation::ListZones,
            )?;
            let zones = if request.class.provider_spec.0.contains_key("vmPool") {
                VmSpec::read(&request.class.provider_spec, Tagged::Not)?
                    .within(&self.config)?
                    .zones
            } else {
                &self.config.zones
            };
            Ok(zones
                .iter()
                .map(|name| Zone {
                    name: name.clone(),
                    control_plane: true,
                    attributes: BTreeMap::new(),
                })
                .collect())
        })
        .await
    }

    async fn describe_class(&self, request: DescribeClassRequest) -> Result<ClassDescription> {
        let call = Call::of_class(Operation::DescribeClass, &request.class);
        self.run(call, async {
            let spec = self.class_spec(Operation::DescribeClass, &request.class, Tagged::Not)?;
            let wanted = spec.within(&self.config)?;
            let capacity = [
                ("cpu", wanted.size.cpu.to_string()),
                ("memory", format!("{}Gi", wanted.size.memory_gib)),
                ("ephemeral-storage", format!("{}G", wanted.root_fs_gb)),
            ];
            Ok(ClassDescription {
                capacity: capacity
                    .map(|(name, quantity)| (name.to_owned(), quantity))
                    .into(),
                architecture: Some("amd64".to_owned()),
                operating_system: Some("linux".to_owned()),
            })
        })
        .await
    }
}
