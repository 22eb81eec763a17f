//! Create and delete, with their flaws.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cmi_driver::{
    Address, AddressType, Code, CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse,
    Driver as _, LastKnownState, Machine, MachineClass, MachineRef, ProviderId, Result, Secrets, Status,
    USER_DATA, tags,
};
use cmi_simulated::Vm;
use serde_json::{Value, json};

use super::{Lock, MOMENT, Mutant, again, broken, machine, tag, text, zone};
use crate::flaw::Flaw;

/// When a deletion that was answered too early begins.
const LATER: Duration = Duration::from_secs(3);

/// The place of static addresses in the spec.
const STATIC_ADDRESSES: &str = "networkAddresses";

/// The duration of a create that runs on after its call.
const CREATION: Duration = Duration::from_secs(1);

impl Mutant {
    /// Misreads the name and the spec before the call uses them.
    pub(super) fn misread(&self, machine: &mut MachineRef) {
        let spec = &mut machine.class.provider_spec.0;
        match self.flaw {
            Flaw::CutsNames(most) => machine.name.truncate(most),
            Flaw::DotsAreDashes => machine.name = machine.name.replace('.', "-"),
            Flaw::ReadsKeysInAnyCase => {
                for field in ["vmPool", "size", "tags"] {
                    if let Some(value) = spec.remove(&field.to_uppercase()) {
                        spec.insert(field.to_owned(), value);
                    }
                }
            }
            Flaw::ReadsTagsAsText | Flaw::ReadsTextAsLatin1 | Flaw::DropsUmlauts => {
                let tags = spec.get_mut("tags").and_then(Value::as_object_mut);
                if let Some(tag) = tags.and_then(|tags| tags.get_mut(tags::MACHINE)) {
                    *tag = self.misspelt(tag);
                }
            }
            Flaw::NeedsNoTags if !spec.contains_key("tags") => {
                let none = [
                    (tags::CLUSTER, "none"),
                    (tags::ROLE, "node"),
                    (tags::MACHINE, "none"),
                ];
                spec.insert("tags".to_owned(), none.into_iter().collect());
            }
            _ => {}
        }
    }

    /// Misreads the machine object's tag.
    fn misspelt(&self, tag: &Value) -> Value {
        let Some(text) = tag.as_str() else {
            return match self.flaw {
                Flaw::ReadsTagsAsText => tag.to_string().into(),
                _ => tag.clone(),
            };
        };
        match self.flaw {
            Flaw::ReadsTextAsLatin1 => text.bytes().map(char::from).collect::<String>().into(),
            Flaw::DropsUmlauts => text.chars().filter(char::is_ascii).collect::<String>().into(),
            _ => tag.clone(),
        }
    }

    /// Creates a wrong VM, for some flaws.
    async fn make_otherwise(&self, request: &CreateMachineRequest) -> Option<Result<Machine>> {
        let MachineRef { name, class } = &request.machine;
        let ours = |vm: &Vm| vm.name == *name && vm.cluster() == tag(class, tags::CLUSTER);
        let make = || Machine::new(self.plant(class, name), name);
        let machine = match self.flaw {
            Flaw::CreateForgets if !self.vms(ours).is_empty() => make(),
            Flaw::CreateRaces if self.vms(ours).is_empty() => {
                tokio::time::sleep(MOMENT).await;
                make()
            }
            Flaw::CreateRacesAtOnce => {
                let first = self.vms(ours).first().map(super::machine);
                // The time of a local back end between check and change. On a busy computer, two threads
                // seldom run at the same time: the yields below let the others run.
                let until = Instant::now() + Duration::from_micros(500);
                loop {
                    std::thread::yield_now();
                    if Instant::now() >= until {
                        break;
                    }
                }
                first.unwrap_or_else(make)
            }
            Flaw::CreateRunsOn | Flaw::CreateRunsOnAtOnce => {
                let (inner, request) = (Arc::clone(&self.inner), request.clone());
                let takes = if self.has(Flaw::CreateRunsOn) {
                    CREATION
                } else {
                    Duration::ZERO
                };
                let create = tokio::spawn(async move {
                    tokio::time::sleep(takes).await;
                    inner.create_machine(request).await
                });
                return Some(create.await.unwrap());
            }
            Flaw::RestartForgets if self.is_old(class, name) => make(),
            Flaw::CreateJoinsClusterAndName => {
                let joined = |cluster: &str, name: &str| format!("{cluster}-{name}");
                let wanted = joined(&tag(class, tags::CLUSTER), name);
                let same = self.vms(|vm| joined(vm.cluster(), &vm.name) == wanted);
                super::machine(same.first()?)
            }
            Flaw::CreateRemembersRefused
                if self.memory.lock().unwrap().contains_key(&super::key(class, name)) =>
            {
                let message = "the name is kept for another VM";
                return Some(Err(Status::new(Code::AlreadyExists, message)));
            }
            Flaw::CreateRacesUnseen => {
                let first = self.vms(ours).first().map(super::machine);
                if first.is_none() {
                    tokio::time::sleep(MOMENT).await;
                }
                first.unwrap_or_else(make)
            }
            Flaw::CreateIgnoresAFullZone if zone(class) == Some("zone-full") => make(),
            Flaw::CreateNeedsNoCluster if tag(class, tags::CLUSTER).is_empty() => make(),
            _ => return None,
        };
        Some(Ok(machine))
    }

    /// Corrupts bootstrap data.
    fn mistaken(&self, secrets: &Secrets) -> Secrets {
        let data = secrets
            .get(USER_DATA)
            .map_or_else(Vec::new, |data| data.expose().to_vec());
        let data = match self.flaw {
            Flaw::UserDataCut => Some(data.into_iter().take(4096).collect()),
            Flaw::UserDataAsText => Some(String::from_utf8_lossy(&data).into_owned().into_bytes()),
            _ => None,
        };
        let others = secrets.iter().filter(|(key, _)| *key != USER_DATA);
        let others = others.map(|(key, value)| (key.to_owned(), value.clone()));
        let data = data.map(|data: Vec<u8>| (USER_DATA.to_owned(), data.into()));
        others.chain(data).collect()
    }

    /// Returns the reason why the driver wrongly refuses a create.
    fn refusal(&self, class: &MachineClass, name: &str) -> Option<Status> {
        let ours = |vm: &Vm| vm.name == name && vm.cluster() == tag(class, tags::CLUSTER);
        let data = class.secrets.get(USER_DATA).map(|data| data.expose().to_vec());
        let other = |vm: &Vm| ours(vm) && Some(vm.user_data.expose()) != data.as_deref();
        match self.flaw {
            Flaw::CreateComparesUserData if !self.vms(other).is_empty() => {
                let message = "there is a VM of this name with other user data";
                Some(Status::new(Code::AlreadyExists, message))
            }
            Flaw::DeleteKeepsStaticAddresses => {
                let given = class.provider_spec.0.get(STATIC_ADDRESSES)?.to_string();
                let owner: ProviderId = name.parse().unwrap();
                let mut taken = self.memory.lock().unwrap();
                let is_taken = *taken.entry(given).or_insert_with(|| owner.clone()) != owner;
                is_taken.then(|| Status::new(Code::FailedPrecondition, "another VM has the address"))
            }
            Flaw::CreateTriesAFullZone if zone(class).is_none() && self.turn().is_multiple_of(4) => {
                Some(Status::new(Code::ResourceExhausted, "`zone-full` has no room"))
            }
            Flaw::CreateRefusesControlPlanes if tag(class, tags::ROLE) != "node" => Some(Status::new(
                Code::InvalidArgument,
                "tags: the role has to be node",
            )),
            _ => None,
        }
    }

    /// Adds the label that the back end sets.
    fn label(&self, request: &mut CreateMachineRequest) {
        if !self.has(Flaw::UpdateDropsOtherLabels) {
            return;
        }
        let spec = &mut request.machine.class.provider_spec.0;
        let labels = spec.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("made-by".to_owned(), json!("the cloud"));
        }
    }

    /// Replaces the static addresses of the spec.
    fn readdress(&self, request: &mut CreateMachineRequest) {
        let MachineRef { name, class } = &mut request.machine;
        let (name, cluster) = (name.clone(), tag(class, tags::CLUSTER));
        let Some(given) = class.provider_spec.0.get_mut(STATIC_ADDRESSES) else {
            return;
        };
        match self.flaw {
            Flaw::CreateIgnoresStaticAddresses => *given = json!([]),
            Flaw::CreateAddsFirstStaticAddress => {
                let first = self.vms(|vm| vm.name != name && !vm.static_addresses.is_empty());
                let all = given.as_array_mut().into_iter();
                all.for_each(|all| all.extend(first.first().map(|vm| json!(vm.static_addresses[0]))));
            }
            Flaw::CreateAdoptsOtherStaticAddresses => {
                if let [vm, ..] = &self.vms(|vm| vm.name == name && vm.cluster() == cluster)[..] {
                    *given = json!(vm.static_addresses);
                }
            }
            _ => {}
        }
    }

    /// Falsifies the report about a created VM.
    fn misreport(&self, made: &mut Machine, class: &MachineClass, name: &str) {
        match self.flaw {
            Flaw::RestartNewIds if self.is_old(class, name) => {
                made.provider_id = again(&made.provider_id);
            }
            Flaw::CreateNewId => {
                made.provider_id = format!("{}-{}", made.provider_id, self.turn()).parse().unwrap();
            }
            Flaw::CreateOneId => made.provider_id = "simulated://zone-a/always-me".parse().unwrap(),
            Flaw::CreateIdEndsInName => {
                made.provider_id = format!("{}/{name}", made.provider_id).parse().unwrap();
            }
            Flaw::CreateNoNodeName => made.node_name.clear(),
            Flaw::CreateBadNodeName => made.node_name = format!("Node_{}", made.node_name),
            Flaw::CreateNewNodeName => made.node_name = format!("{}-{}", made.node_name, self.turn()),
            Flaw::SecretInState => {
                made.last_known_state = LastKnownState::new(text(class, "token").into_bytes());
            }
            Flaw::SecretInAddress => made.addresses.push(Address {
                kind: AddressType::Hostname,
                address: text(class, "token"),
            }),
            _ => {}
        }
    }

    pub(super) async fn create(&self, mut request: CreateMachineRequest) -> Result<Machine> {
        let CreateMachineRequest {
            machine: MachineRef { name, class },
            ..
        } = request.clone();
        let _lock = match self.flaw {
            Flaw::RestartLeavesALock => Some(Lock::take(self, super::key(&class, &name))?),
            _ => None,
        };
        self.label(&mut request);
        self.readdress(&mut request);
        if let Some(made) = self.make_otherwise(&request).await {
            return made;
        }
        if let Some(status) = self.refusal(&class, &name) {
            return Err(status);
        }
        let ours = |vm: &Vm| vm.name == name && vm.cluster() == tag(&class, tags::CLUSTER);
        let labels = || class.provider_spec.0.get("labels").cloned();
        let labelled = |vm: &Vm| ours(vm) && json!(vm.labels) != labels().unwrap_or_else(|| json!({}));
        match self.flaw {
            Flaw::CreateRefusesHotUpdates if !self.vms(labelled).is_empty() => {
                let message = "there is a VM of this name with other labels";
                return Err(Status::new(Code::AlreadyExists, message));
            }
            Flaw::CreateAdoptsAnything => {
                if let Some(vm) = self.vms(ours).first() {
                    return Ok(machine(vm));
                }
            }
            Flaw::CreateDropsUserData | Flaw::UserDataAsText | Flaw::UserDataCut => {
                request.machine.class.secrets = self.mistaken(&class.secrets);
            }
            Flaw::CreateMakesUpFields => {
                for (field, value) in [("vmPool", "default"), ("size", "small")] {
                    let spec = &mut request.machine.class.provider_spec.0;
                    spec.entry(field).or_insert_with(|| value.into());
                }
            }
            Flaw::CreateWantsMore if !class.provider_spec.0.contains_key("sourceDestCheck") => {
                return Err(Status::new(Code::InvalidArgument, "sourceDestCheck is missing"));
            }
            Flaw::CreateClusterBlind => {
                let tags = request.machine.class.provider_spec.0.get_mut("tags").unwrap();
                tags[tags::CLUSTER] = "one-for-all".into();
            }
            Flaw::CreateShortNames if name.len() > 63 => {
                return Err(Status::new(Code::InvalidArgument, "the name is too long for me"));
            }
            Flaw::CreateChokesOnState if request.last_known_state.is_some() => {
                return Err(broken("the state is none of mine"));
            }
            _ => {}
        }
        let mut made = match self.inner.create_machine(request).await {
            Ok(made) => made,
            Err(status) => {
                let half_made = match self.flaw {
                    Flaw::CreateMakesThenChecks => status.code() == Code::InvalidArgument,
                    Flaw::CreateMakesOutOfRange => status.code() == Code::OutOfRange,
                    Flaw::CreateMakesBeyondQuota => status.code() == Code::ResourceExhausted,
                    _ => false,
                };
                if half_made {
                    self.plant(&class, &name);
                }
                if self.has(Flaw::CreateRemembersRefused) && status.code() == Code::InvalidArgument {
                    let kept = "simulated://zone-a/kept".parse().unwrap();
                    self.memory
                        .lock()
                        .unwrap()
                        .insert(super::key(&class, &name), kept);
                }
                return Err(if self.has(Flaw::CreateVagueMessage) {
                    status.with_message("something is not as it has to be")
                } else {
                    status
                });
            }
        };
        self.is_made(&class, &name);
        self.misreport(&mut made, &class, &name);
        Ok(made)
    }

    pub(super) async fn delete(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let cluster = tag(&class, tags::CLUSTER);
        let known = request.provider_id.as_ref().map(|id| id.as_str().to_owned());
        let ours = |vm: &Vm| vm.name == name && vm.cluster() == cluster;
        match self.flaw {
            Flaw::DeleteTooEarly => {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move {
                    tokio::time::sleep(LATER).await;
                    inner.delete_machine(request).await
                });
                return Ok(DeleteMachineResponse::default());
            }
            Flaw::DeleteComparesTheSpec => {
                let size = class.provider_spec.0.get("size").and_then(Value::as_str);
                if !self
                    .vms(|vm| ours(vm) && Some(vm.size.as_str()) != size)
                    .is_empty()
                {
                    return Ok(DeleteMachineResponse::default());
                }
            }
            Flaw::DeleteTheFirst if self.vms(ours).len() > 1 => {
                self.console.vanish(self.vms(ours)[0].id).unwrap();
                return Ok(DeleteMachineResponse::default());
            }
            Flaw::DeleteFails => return Err(broken("it is stuck")),
            Flaw::DeleteDoesNothing => return Ok(DeleteMachineResponse::default()),
            Flaw::DeleteWantsMachineTag if self.is_unknown_to(&class, request.provider_id.as_ref()) => {
                return Ok(DeleteMachineResponse::default());
            }
            Flaw::DeleteNotFound if self.vms(ours).is_empty() => {
                return Err(Status::new(Code::NotFound, "there is no such VM here"));
            }
            Flaw::DeleteAnyCluster => self.vanish(|vm| vm.name == name),
            Flaw::DeleteAnyId => self.vanish(|vm| Some(vm.provider_id()) == known),
            Flaw::DeleteAnyIdOfCluster => {
                self.vanish(|vm| Some(vm.provider_id()) == known && vm.cluster() == cluster);
            }
            Flaw::DeleteAnyIdentity => self.vanish(ours),
            Flaw::DeleteAll => self.vanish(|vm| vm.cluster() == cluster),
            Flaw::DeleteByBeginning => {
                self.vanish(|vm| vm.cluster() == cluster && vm.name.starts_with(&name));
            }
            Flaw::DeleteAnother => {
                if let Some(other) = self.vms(|vm| vm.cluster() == cluster && vm.name != name).first() {
                    self.console.vanish(other.id).unwrap();
                }
            }
            Flaw::DeleteWantsId if known.is_none() => {
                return Err(Status::new(Code::InvalidArgument, "the provider id is missing"));
            }
            Flaw::DeleteRefusesId if known.is_some() => {
                return Err(Status::new(Code::InvalidArgument, "a provider id is not wanted"));
            }
            Flaw::DeleteWantsInitialized if self.vms(ours).iter().any(|vm| vm.source_dest_check) => {
                return Err(Status::new(Code::FailedPrecondition, "it is not initialized"));
            }
            _ => {}
        }
        let deleted = self.inner.delete_machine(request).await;
        if self.has(Flaw::ListKeepsDeleted) {
            let id = "simulated://zone-a/the-late".parse().unwrap();
            self.memory.lock().unwrap().insert(cluster, id);
        }
        deleted
    }
}
