//! Adversarial interleavings: users, clusterctl, backups, late creates, a lagging watch and restarts, between
//! any two steps of a pass. The invariant: no VM is deleted whose machine lives, or whose machine its user
//! did not delete.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;
use crate::admission::EnforcementEpoch;
use crate::api::identity::fixtures::existing;
use crate::api::{ObjectMetaExt as _, labels};
use crate::fleet::orphans::DeletionLog;

/// The next event.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A user creates a machine with this name, and the provider records its identity.
    Create(usize),
    /// The back end makes the VM of an earlier create, whether or not the machine still exists.
    MakeVm(usize),
    /// The provider writes the providerID.
    WriteId(usize),
    /// A user deletes the machine.
    Delete(usize),
    /// The machine in deletion is removed, and its VM with it if the flag is set.
    Finish(usize, bool),
    /// A user removes the annotations. The machine stays.
    Forget(usize),
    /// The object disappears without a deletion.
    Strip(usize),
    /// A backup of the management cluster is taken.
    Backup,
    /// The backup is restored.
    Restore,
    /// The Cluster is paused or resumed.
    Pause(bool),
    /// clusterctl begins a move: it pauses the Cluster and copies all objects to the other management
    /// cluster. Then it deletes the objects here one by one, and last the Cluster.
    MoveCopy,
    /// A copied machine is deleted here.
    MoveDelete(usize, bool),
    /// The Cluster is deleted here, and lives in the other management cluster.
    MoveEnd,
    /// All objects move back, paused.
    MoveBack,
    /// The policies are missing for a while. An object with the forged identity of a machine is created and
    /// deleted, and the deletion is observed.
    Forge(usize),
    /// The provider's watch catches up.
    Watch,
    /// The process restarts.
    Restart,
    /// Time passes.
    Wait,
    /// The next step of the pass.
    Step,
}

#[derive(Clone, Debug, Default)]
struct Server {
    /// By name.
    machines: BTreeMap<String, InfraMachine>,
    /// Whether the Cluster exists, and whether it is paused.
    cluster: Option<bool>,
}

/// The progress of a pass.
#[derive(Clone, Debug)]
enum Step {
    List,
    ReadMachines(Vec<ListedMachine>),
    ReadClusters(Vec<ListedMachine>, Vec<LiveMachine>),
    /// The same step again, for this VM.
    Again(Vec<ListedMachine>, ListedMachine),
    AgainClusters(Vec<ListedMachine>, ListedMachine, Vec<LiveMachine>),
}

struct World {
    here: Server,
    there: Server,
    backup: Option<Server>,
    /// The requested creates, by identity.
    asked: BTreeMap<String, String>,
    vms: Vec<ListedMachine>,
    /// Ghost state: the identities whose deletion a user requested.
    unwanted: BTreeSet<String>,
    count: usize,
    seconds: u64,
    start: Instant,
    /// The state that the watch has seen.
    cache: Server,
    deletion_log: DeletionLog,
    /// The epoch of the admission policies at the last check.
    epoch: u64,
    /// Whether the policies have been missing since then.
    gap: bool,
    observations: Observations,
    step: Step,
    deleted: usize,
}

impl World {
    fn new() -> Self {
        let here = Server {
            cluster: Some(false),
            ..Server::default()
        };
        Self {
            cache: here.clone(),
            here,
            there: Server::default(),
            backup: None,
            asked: BTreeMap::new(),
            vms: Vec::new(),
            unwanted: BTreeSet::new(),
            count: 0,
            seconds: 0,
            start: Instant::now(),
            deletion_log: DeletionLog::default(),
            epoch: 1,
            gap: false,
            observations: Observations::new(),
            step: Step::List,
            deleted: 0,
        }
    }

    fn name(&self, index: usize) -> Option<String> {
        let names: Vec<_> = self.here.machines.keys().cloned().collect();
        (!names.is_empty()).then(|| names[index % names.len()].clone())
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Create(index) if self.here.cluster == Some(false) => self.create(&format!("n{}", index % 3)),
            Act::MakeVm(index) if !self.asked.is_empty() => {
                let id = self.asked.keys().nth(index % self.asked.len()).cloned().unwrap();
                let name = self.asked.remove(&id).unwrap();
                self.vms.push(ListedMachine {
                    created_at: None,
                    ..vm(&name, &id)
                });
            }
            Act::WriteId(index) => self.with_machine(index, |world, machine| {
                let id = identity_of(machine);
                let made = world
                    .vms
                    .iter()
                    .find(|vm| vm.machine_id.as_deref() == Some(id.as_str()));
                machine.spec.provider_id = made.map(|vm| vm.provider_id.to_string());
            }),
            Act::Delete(index) => self.with_machine(index, |world, machine| {
                machine.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                world.unwanted.insert(identity_of(machine));
            }),
            Act::Finish(index, with_vm) if self.here.cluster == Some(false) => self.finish(index, with_vm),
            Act::Forget(index) => self.with_machine(index, |_, machine| {
                // The provider writes the identity again, from the UID. The providerID stays.
                machine.metadata.annotations = None;
            }),
            Act::Strip(index) => {
                if let Some(name) = self.name(index) {
                    self.here.machines.remove(&name);
                }
            }
            Act::Backup => self.backup = Some(self.here.clone()),
            Act::Restore if !matches!(self.step, Step::AgainClusters(..)) && self.there.cluster.is_none() => {
                if let Some(backup) = self.backup.clone() {
                    self.here = backup;
                }
            }
            Act::Pause(paused) if self.here.cluster.is_some() && self.there.cluster.is_none() => {
                self.here.cluster = Some(paused);
            }
            Act::MoveCopy if self.here.cluster.is_some() && self.there.cluster.is_none() => {
                self.here.cluster = Some(true);
                self.there = self.here.clone();
                for (name, machine) in &mut self.there.machines {
                    machine.metadata.uid = Some(format!("moved-{name}-{}", self.count));
                    machine.metadata.deletion_timestamp = None;
                }
                self.count += 1;
            }
            Act::MoveDelete(index, seen) if self.there.cluster == Some(true) => self.move_away(index, seen),
            Act::MoveEnd if self.there.cluster == Some(true) && self.here.machines.is_empty() => {
                self.here.cluster = None;
                self.there.cluster = Some(false);
            }
            Act::MoveBack if self.here.cluster.is_none() => {
                self.there.cluster = Some(true);
                self.here = self.there.clone();
                self.there = Server::default();
            }
            Act::Forge(index) => self.with_machine(index, |world, machine| {
                world.gap = true;
                let mut impostor = machine.clone();
                let id = identity_of(machine);
                impostor.metadata.name = Some("impostor".to_owned());
                impostor.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                let made = json!({"driver": "pool", "providerSpec": {}});
                let forged = existing(&format!("ns/impostor/{id}"), &made);
                let forged = (annotations::VM_RECORD.to_owned(), forged);
                impostor.metadata.annotations = Some([forged].into());
                let (impostor, during) = (DeserializeGuard(Ok(impostor)), Some(world.now()));
                world
                    .deletion_log
                    .record(&impostor, false, Timestamp::UNIX_EPOCH, during);
            }),
            Act::Watch => self.watch(),
            Act::Restart => {
                self.deletion_log = DeletionLog::default();
                self.observations.clear();
                self.cache = self.here.clone();
                self.step = Step::List;
            }
            Act::Wait => self.seconds += 600,
            Act::Step => self.step(),
            Act::Create(_)
            | Act::MakeVm(_)
            | Act::Finish(..)
            | Act::Restore
            | Act::Pause(_)
            | Act::MoveCopy
            | Act::MoveDelete(..)
            | Act::MoveEnd
            | Act::MoveBack => {}
        }
    }

    fn create(&mut self, name: &str) {
        if self.here.machines.contains_key(name) {
            return;
        }
        let id = format!("u{}", self.count);
        self.count += 1;
        let object = json!({
            "metadata": {
                "namespace": "ns", "name": name, "uid": id, "labels": {labels::CLUSTER_NAME: "c"},
                "annotations": {annotations::VM_RECORD: existing(
                    &format!("ns/{name}/{id}"),
                    &json!({"driver": "pool", "providerSpec": {}}),
                )},
            },
            "spec": {"providerSpec": {}},
        });
        let machine = serde_json::from_value(object).unwrap();
        self.here.machines.insert(name.to_owned(), machine);
        self.asked.insert(id, name.to_owned());
    }

    fn with_machine(&mut self, index: usize, change: impl FnOnce(&mut Self, &mut InfraMachine)) {
        // The provider and users do not change objects during a move.
        let (Some(name), Some(false)) = (self.name(index), self.here.cluster) else {
            return;
        };
        let mut machine = self.here.machines[&name].clone();
        change(self, &mut machine);
        self.here.machines.insert(name, machine);
    }

    fn finish(&mut self, index: usize, with_vm: bool) {
        let Some(name) = self.name(index) else { return };
        let machine = self.here.machines[&name].clone();
        if machine.metadata.deletion_timestamp.is_none() {
            return;
        }
        if with_vm {
            let id = identity_of(&machine);
            self.vms
                .retain(|vm| vm.machine_id.as_deref() != Some(id.as_str()));
        }
        self.here.machines.remove(&name);
    }

    /// clusterctl's deletion at the source: the mark, the deletion, the removal. The watch may see each step.
    fn move_away(&mut self, index: usize, seen: bool) {
        let Some(name) = self.name(index) else { return };
        let machine = self.here.machines.get_mut(&name).unwrap();
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::DELETE_FOR_MOVE.to_owned(), String::new());
        machine.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            Timestamp::UNIX_EPOCH,
        ));
        if seen {
            self.watch();
        }
        self.here.machines.remove(&name);
    }

    /// The watch catches up, as after a list: it compares the current objects with its cache.
    fn watch(&mut self) {
        // The watch of Clusters is separate, and may be behind: it keeps its state.
        let is_frozen = self.cache.cluster != Some(false);
        for (name, known) in &self.cache.machines {
            if self.here.machines.get(name).map(uid_of) != Some(uid_of(known)) {
                let (known, during) = (DeserializeGuard(Ok(known.clone())), Some(self.now()));
                self.deletion_log
                    .record(&known, is_frozen, Timestamp::UNIX_EPOCH, during);
            }
        }
        for (name, now) in &self.here.machines {
            if self.cache.machines.get(name).map(uid_of) != Some(uid_of(now)) {
                self.deletion_log.remove(&DeserializeGuard(Ok(now.clone())));
            }
        }
        self.cache = self.here.clone();
    }

    fn now(&self) -> EnforcementEpoch {
        EnforcementEpoch::nth(self.epoch)
    }

    fn machines(&self) -> Vec<LiveMachine> {
        let machines = self.here.machines.values();
        machines
            .map(|machine| {
                LiveMachine::of(
                    &DeserializeGuard(Ok(machine.clone())),
                    &mut CommonTexts::default(),
                )
            })
            .collect()
    }

    fn live(&self, machines: Vec<LiveMachine>) -> Live {
        let clusters: Vec<_> = self
            .here
            .cluster
            .map(|paused| cluster(|cluster| cluster["spec"]["paused"] = json!(paused)))
            .into_iter()
            .collect();
        Live::new(machines, &[infra_cluster(|_| {})], &clusters, true)
    }

    fn at(&self) -> (DeletionPolicy, Clock) {
        let policy = DeletionPolicy {
            delete: true,
            gap: GAP,
            min_age: Duration::ZERO,
        };
        let clock = Clock {
            requested_at: self.start + Duration::from_secs(self.seconds),
            now: Timestamp::UNIX_EPOCH + Duration::from_secs(self.seconds),
        };
        (policy, clock)
    }

    fn step(&mut self) {
        self.step = match std::mem::replace(&mut self.step, Step::List) {
            Step::List => Step::ReadMachines(self.vms.clone()),
            Step::ReadMachines(vms) => Step::ReadClusters(vms, self.machines()),
            Step::ReadClusters(vms, machines) => {
                let (live, at, deletion_log) = (self.live(machines), self.at(), &self.deletion_log);
                let now = Some(self.now());
                let observed_deletion = |id: &str| deletion_log.of(id, now).is_some();
                let findings = classify(
                    &scope(),
                    &vms,
                    |_| true,
                    &live,
                    observed_deletion,
                    &mut self.observations,
                    at,
                );
                let mut deletable = vms.iter().zip(findings);
                let chosen = deletable.find(|(_, finding)| *finding == Finding::Orphan(vec![]));
                let chosen = chosen.map(|(vm, _)| vm.clone());
                chosen.map_or(Step::List, |vm| Step::Again(vms, vm))
            }
            Step::Again(vms, vm) => Step::AgainClusters(vms, vm, self.machines()),
            // The check detects the gap, and an administrator repairs and confirms the objects.
            Step::AgainClusters(..) if self.gap => {
                self.gap = false;
                self.epoch += 1;
                Step::List
            }
            Step::AgainClusters(vms, vm, machines) => {
                let (live, at, deletion_log) = (self.live(machines), self.at(), &self.deletion_log);
                let now = Some(self.now());
                let observed_deletion = |id: &str| deletion_log.of(id, now).is_some();
                if let Some(observation) = self.observations.get(vm.provider_id.as_str())
                    && may_still_be_deleted(&scope(), &vm, &vms, &live, observed_deletion, *observation, at)
                {
                    self.delete(&vm);
                }
                Step::List
            }
        };
    }

    /// The invariant.
    fn delete(&mut self, vm: &ListedMachine) {
        let id = vm.machine_id.clone().unwrap();
        let lives = |server: &Server| {
            server.machines.values().any(|machine| {
                identity_of(machine) == id
                    || machine.spec.provider_id.as_deref() == Some(vm.provider_id.as_str())
            })
        };
        assert!(
            !lives(&self.here),
            "the VM of a living machine is deleted: {vm:?}"
        );
        assert!(
            !lives(&self.there),
            "the VM of a moved machine is deleted: {vm:?}"
        );
        assert!(
            self.unwanted.contains(&id),
            "the machine was not meant to go: {vm:?}"
        );
        self.vms.retain(|other| other.provider_id != vm.provider_id);
        self.deleted += 1;
    }
}

fn identity_of(machine: &InfraMachine) -> String {
    let carried = crate::api::identity::MachineId::of_metadata(&machine.metadata);
    let uid = machine.metadata.uid().to_owned();
    carried.map_or(uid, |id| id.tag().to_owned())
}

fn uid_of(machine: &InfraMachine) -> Option<&str> {
    machine.metadata.uid.as_deref()
}

fn act() -> impl Strategy<Value = Act> {
    let index = 0_usize..4;
    prop_oneof![
        2 => index.clone().prop_map(Act::Create),
        3 => index.clone().prop_map(Act::MakeVm),
        2 => index.clone().prop_map(Act::WriteId),
        3 => index.clone().prop_map(Act::Delete),
        3 => (index.clone(), prop::bool::weighted(0.3))
            .prop_map(|(index, with_vm)| Act::Finish(index, with_vm)),
        1 => index.clone().prop_map(Act::Forget),
        1 => index.clone().prop_map(Act::Strip),
        1 => Just(Act::Backup),
        1 => Just(Act::Restore),
        1 => any::<bool>().prop_map(Act::Pause),
        1 => Just(Act::MoveCopy),
        1 => index.clone().prop_map(Act::Forge),
        3 => (index, any::<bool>()).prop_map(|(index, seen)| Act::MoveDelete(index, seen)),
        1 => Just(Act::MoveEnd),
        2 => Just(Act::MoveBack),
        5 => Just(Act::Watch),
        1 => Just(Act::Restart),
        3 => Just(Act::Wait),
        12 => Just(Act::Step),
    ]
}

proptest! {
    // PROPTEST_CASES asks for more cases; `make test-all` does that.
    #![proptest_config(ProptestConfig::default())]

    /// CTL-LM-00: restore of an old backup, move, stale cache, half-done create, two managers,
    /// restarts, forged identities.
    #[test]
    fn no_vm_of_a_living_machine_is_ever_deleted(acts in prop::collection::vec(act(), 1..160)) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
        }
    }
}

/// The property above must not hold only because nothing is ever deleted.
#[test]
fn a_vm_that_a_late_create_left_behind_is_deleted() {
    let mut world = World::new();
    let leak = [
        Act::Create(0),
        Act::Watch,
        Act::Delete(0),
        Act::Watch,
        Act::Finish(0, true),
        Act::Watch,
        Act::MakeVm(0),
    ];
    let do_all = |world: &mut World, acts: &[Act]| acts.iter().for_each(|act| world.act(*act));
    do_all(&mut world, &leak);
    do_all(&mut world, &[Act::Step; 6]);
    assert_eq!(world.deleted, 0, "seen once or twice at the same time");
    do_all(&mut world, &[Act::Wait]);
    do_all(&mut world, &[Act::Step; 5]);
    assert_eq!((world.deleted, world.vms.len()), (1, 0));
}

/// A living machine's object is lost later. The observed deletion was an impostor's.
#[test]
fn the_end_of_an_impostor_has_no_vm_deleted() {
    let mut world = World::new();
    let do_all = |world: &mut World, acts: &[Act]| acts.iter().for_each(|act| world.act(*act));
    let leak = [
        Act::Create(0),
        Act::MakeVm(0),
        Act::Watch,
        Act::Forge(0),
        Act::Strip(0),
    ];
    do_all(&mut world, &leak);
    for _ in 0..4 {
        do_all(&mut world, &[Act::Step; 6]);
        do_all(&mut world, &[Act::Watch, Act::Wait]);
    }
    assert_eq!((world.deleted, world.vms.len(), world.epoch), (0, 1, 2));
}
