//! The optional calls, with their flaws.

use std::collections::BTreeMap;

use cmi_driver::{
    ClassDescription, Code, Console, DescribeClassRequest, Driver as _, GetConsoleRequest,
    GetVolumeIdsRequest, InitializeMachineRequest, ListZonesRequest, Machine, MachineRef, ProviderSpec,
    RestartMachineRequest, Result, ShutDownMachineRequest, ShutDownMachineResponse, Status,
    UpdateMachineRequest, Zone, tags,
};
use cmi_simulated::Vm;
use serde_json::{Map, Value};

use super::{Mutant, tag};
use crate::flaw::Flaw;

impl Mutant {
    pub(super) async fn shut_down(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let name = request.machine.name.clone();
        match self.flaw {
            Flaw::ShutDownDoesNothing => return Ok(ShutDownMachineResponse::default()),
            Flaw::ShutDownDeletes => {
                self.vanish(|vm| vm.name == name);
                return Ok(ShutDownMachineResponse::default());
            }
            Flaw::ShutDownAnyCluster => {
                for vm in self.vms(|vm| vm.name == name) {
                    let mut class = request.machine.class.clone();
                    let tags = class.provider_spec.0.get_mut("tags").unwrap();
                    tags[tags::CLUSTER] = vm.cluster().into();
                    tags[tags::MACHINE] = vm.machine().into();
                    let everywhere = ShutDownMachineRequest {
                        machine: MachineRef::new(&name, class),
                        ..request.clone()
                    };
                    let _stopping = self.inner.shut_down_machine(everywhere).await;
                }
            }
            _ => {}
        }
        match self.inner.shut_down_machine(request).await {
            Err(status) if self.has(Flaw::ShutDownAccepts) && status.code() == Code::Aborted => {
                Ok(ShutDownMachineResponse::default())
            }
            answer => answer,
        }
    }

    pub(super) async fn initialize(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        match self.flaw {
            Flaw::InitializeWrites => self.console.set_quota(None)?,
            Flaw::InitializeMakes => {
                let ours = |vm: &Vm| vm.name == name && vm.cluster() == tag(&class, tags::CLUSTER);
                if self.vms(ours).is_empty() {
                    return Ok(Machine::new(self.plant(&class, &name), name));
                }
            }
            _ => {}
        }
        let mut machine = self.inner.initialize_machine(request).await?;
        match self.flaw {
            Flaw::InitializeOtherId => {
                machine.provider_id = format!("{}-b", machine.provider_id).parse().unwrap();
            }
            Flaw::InitializeOtherNodeName => machine.node_name += "-b",
            Flaw::InitializeNoNodeName => machine.node_name.clear(),
            _ => {}
        }
        Ok(machine)
    }

    pub(super) async fn update(&self, mut request: UpdateMachineRequest) -> Result<()> {
        match self.flaw {
            Flaw::UpdateReplaces => {
                self.vanish(|vm| vm.name == request.machine.name);
                self.plant(&request.machine.class, &request.machine.name);
                return Ok(());
            }
            Flaw::UpdateDoesNothing => return Ok(()),
            Flaw::UpdateWritesAgain => self.console.set_quota(None)?,
            Flaw::UpdateTrustsTheLastApplied
                if request.last_applied_provider_spec == request.machine.class.provider_spec =>
            {
                return Ok(());
            }
            Flaw::UpdateNeedsTheLastApplied
                if self.labels_of(&request) != labels(&request.last_applied_provider_spec) =>
            {
                let why = "the VM is not as it was applied last";
                return Err(Status::new(Code::FailedPrecondition, why));
            }
            Flaw::UpdateOnlyOfABareVm if !self.labels_of(&request).is_empty() => return Ok(()),
            Flaw::UpdateWritesNothing
                if request.last_applied_provider_spec == request.machine.class.provider_spec
                    && !request.machine.class.provider_spec.0.contains_key("labels") =>
            {
                self.console.set_quota(None)?;
            }
            Flaw::UpdateWritesOtherValues
            | Flaw::UpdateWritesTheFirst
            | Flaw::UpdateWritesAscii
            | Flaw::UpdateTakesNothingBack => self.mislabel(&mut request),
            Flaw::UpdateDropsTheOwner => {
                let id = request.provider_id.clone();
                self.inner.update_machine(request).await?;
                self.memory.lock().unwrap().insert(id.to_string(), id);
                return Ok(());
            }
            Flaw::UpdateAnyCluster => {
                let name = request.machine.name.clone();
                if let Some(vm) = self.vms(|vm| vm.name == name).first() {
                    let tags = request.machine.class.provider_spec.0.get_mut("tags").unwrap();
                    tags[tags::CLUSTER] = vm.cluster().into();
                    tags[tags::MACHINE] = vm.machine().into();
                }
            }
            Flaw::UpdateAddsNoMachineTag if self.machine_tag(request.provider_id.as_str()).is_none() => {
                return Ok(());
            }
            Flaw::UpdateReplacesMachineTag => {
                if let Some(machine) = self.machine_tag(request.provider_id.as_str()) {
                    let tags = request.machine.class.provider_spec.0.get_mut("tags").unwrap();
                    tags[tags::MACHINE] = machine.into();
                }
            }
            Flaw::UpdateNotThere => {
                return match self.inner.update_machine(request).await {
                    Err(status) if status.code() == Code::NotFound => Ok(()),
                    answer => answer,
                };
            }
            _ => {}
        }
        self.inner.update_machine(request).await
    }

    /// Returns the VM's labels.
    fn labels_of(&self, request: &UpdateMachineRequest) -> BTreeMap<String, String> {
        let id = request.provider_id.as_str();
        let vms = self.vms(|vm| vm.provider_id() == id);
        vms.first().map(|vm| vm.labels.clone()).unwrap_or_default()
    }

    /// Falsifies the labels of an update.
    fn mislabel(&self, request: &mut UpdateMachineRequest) {
        let spec = &mut request.machine.class.provider_spec.0;
        let id = request.provider_id.as_str();
        if self.has(Flaw::UpdateTakesNothingBack)
            && let Some(vm) = self.vms(|vm| vm.provider_id() == id).first()
        {
            let has = vm
                .labels
                .iter()
                .map(|(key, value)| (key.clone(), value.as_str().into()));
            let mut kept: Map<String, Value> = has.collect();
            if let Some(Value::Object(wanted)) = spec.get("labels") {
                kept.extend(wanted.clone());
            }
            spec.insert("labels".to_owned(), kept.into());
        }
        if let Some(Value::Object(labels)) = spec.get_mut("labels") {
            match self.flaw {
                Flaw::UpdateWritesOtherValues => {
                    for value in labels.values_mut() {
                        *value = value.as_str().map(str::to_uppercase).into();
                    }
                }
                Flaw::UpdateWritesAscii => {
                    for value in labels.values_mut() {
                        let text = value.as_str().unwrap_or_default();
                        *value = text.replace(|letter: char| !letter.is_ascii(), "?").into();
                    }
                }
                Flaw::UpdateWritesTheFirst => {
                    let first = labels
                        .iter()
                        .next()
                        .map(|(key, value)| (key.clone(), value.clone()));
                    *labels = first.into_iter().collect();
                }
                _ => {}
            }
        }
    }

    pub(super) async fn restart(&self, mut request: RestartMachineRequest) -> Result<()> {
        let name = request.machine.name.clone();
        let is_it = |vm: &Vm| vm.name == name && vm.provider_id() == request.provider_id.as_str();
        let found = self.vms(is_it).first().cloned();
        let mut as_tagged = |cluster: bool, identity: bool| {
            let tags = request.machine.class.provider_spec.0.get_mut("tags").unwrap();
            if let Some(vm) = &found {
                let same = (
                    tags[tags::CLUSTER] == vm.cluster(),
                    tags[tags::MACHINE] == vm.machine(),
                );
                if cluster && same.1 || identity && same.0 {
                    tags[tags::CLUSTER] = vm.cluster().into();
                    tags[tags::MACHINE] = vm.machine().into();
                }
            }
        };
        match self.flaw {
            Flaw::RestartDoesNothing if found.is_some() => return Ok(()),
            Flaw::RestartReplaces if found.is_some() => {
                self.vanish(|vm| vm.name == name);
                self.plant(&request.machine.class, &name);
                return Ok(());
            }
            Flaw::RestartMakes if found.is_none() => {
                self.plant(&request.machine.class, &name);
                return Err(Status::new(Code::NotFound, "it was not there, and is now"));
            }
            Flaw::RestartAnyCluster => as_tagged(true, false),
            Flaw::RestartAnyIdentity => as_tagged(false, true),
            Flaw::RestartNotThere => {
                return match self.inner.restart_machine(request).await {
                    Err(status) if status.code() == Code::NotFound => Ok(()),
                    answer => answer,
                };
            }
            _ => {}
        }
        self.inner.restart_machine(request).await
    }

    pub(super) async fn console_output(&self, request: GetConsoleRequest) -> Result<Console> {
        match self.flaw {
            Flaw::ConsoleRestarts => {
                let restart = RestartMachineRequest {
                    machine: request.machine.clone(),
                    provider_id: request.provider_id.clone(),
                    last_known_state: None,
                };
                self.inner.restart_machine(restart).await?;
            }
            Flaw::ConsoleOfNothing => {
                return match self.inner.get_console(request).await {
                    Err(status) if status.code() == Code::NotFound => Ok(Console::default()),
                    answer => answer,
                };
            }
            Flaw::ConsoleByName => {
                let name = request.machine.name.clone();
                if let Some(vm) = self.vms(|vm| vm.name == name).first() {
                    return Ok(Console::new(vm.id.to_string().as_bytes()));
                }
            }
            _ => {}
        }
        self.inner.get_console(request).await
    }

    pub(super) async fn failure_domains(&self, request: ListZonesRequest) -> Result<Vec<Zone>> {
        let mut zones = self.inner.list_zones(request).await?;
        match self.flaw {
            Flaw::ZonesTwice => zones.extend(zones.first().cloned()),
            Flaw::ZonesNameless => zones[0].name.clear(),
            Flaw::ZonesMadeUp => zones.iter_mut().for_each(|zone| zone.name += "-of-the-moon"),
            Flaw::ZonesChange if self.turn().is_multiple_of(2) => drop(zones.pop()),
            _ => {}
        }
        Ok(zones)
    }

    pub(super) async fn described(&self, request: DescribeClassRequest) -> Result<ClassDescription> {
        let mut described = self.inner.describe_class(request).await?;
        match self.flaw {
            Flaw::DescribesGarbage => drop(described.capacity.insert("memory".to_owned(), "4 GB".to_owned())),
            Flaw::DescribesUnknownArchitecture => described.architecture = Some("x86".to_owned()),
            _ => {}
        }
        Ok(described)
    }

    pub(super) fn volumes(&self, request: &GetVolumeIdsRequest, mut ids: Vec<String>) -> Result<Vec<String>> {
        let foreign: Vec<_> = request
            .pv_specs
            .iter()
            .filter_map(|spec| spec.pointer("/csi/volumeHandle")?.as_str())
            .filter(|handle| !ids.iter().any(|id| id == handle))
            .collect();
        match self.flaw {
            Flaw::VolumesForgetOne => drop(ids.pop()),
            Flaw::VolumesFirstAlone => ids.truncate(1),
            Flaw::VolumesUntilForeign => {
                let is_foreign = |spec: &Value| spec.get("nfs").is_some();
                let first = request.pv_specs.iter().position(|spec| !is_foreign(spec));
                let mine = request.pv_specs.iter().skip(first.unwrap_or_default());
                ids.truncate(mine.take_while(|spec| !is_foreign(spec)).count());
            }
            Flaw::VolumesSorted => ids.sort(),
            Flaw::VolumesMakeUp => ids.extend(foreign.into_iter().map(str::to_owned)),
            Flaw::VolumesRefuseForeign if !foreign.is_empty() => {
                return Err(Status::new(Code::InvalidArgument, "that is no volume of mine"));
            }
            Flaw::VolumesChokeOnNull if request.pv_specs.iter().any(has_null) => {
                let why = "invalid memory address or nil pointer dereference";
                return Err(Status::new(Code::Internal, why));
            }
            Flaw::VolumesWriteAnyHandle => {
                let handles = request
                    .pv_specs
                    .iter()
                    .filter_map(|spec| spec.pointer("/csi/volumeHandle"));
                ids.extend(handles.filter(|handle| !handle.is_string()).map(Value::to_string));
            }
            Flaw::VolumesChokeOnHandles
                if request.pv_specs.iter().any(|spec| {
                    let handle = spec.pointer("/csi/volumeHandle");
                    handle.is_some_and(|handle| !handle.is_string())
                }) =>
            {
                return Err(Status::new(Code::Unknown, "a handle has no attribute strip"));
            }
            Flaw::VolumesOnce if self.turn() > 0 => ids.clear(),
            Flaw::VolumesRefuseNoSource if request.pv_specs.contains(&Value::Object(Map::new())) => {
                return Err(Status::new(Code::InvalidArgument, "a volume has no source"));
            }
            Flaw::VolumesRefuseNone if request.pv_specs.is_empty() => {
                return Err(Status::new(
                    Code::InvalidArgument,
                    "there are no volumes to look at",
                ));
            }
            _ => {}
        }
        Ok(ids)
    }
}

/// Whether a volume has a source that is null.
fn has_null(spec: &Value) -> bool {
    spec.as_object()
        .is_some_and(|spec| spec.values().any(Value::is_null))
}

/// Returns the labels in a spec.
fn labels(spec: &ProviderSpec) -> BTreeMap<String, String> {
    let labels = spec.0.get("labels").and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    labels.into_iter().flatten().filter_map(text).collect()
}
