//! Machines and observations for tests.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::plan::{self, Observed, Owner, Plan, ProviderIdConflict};
use crate::api::cluster_api::{
    Bootstrap, Cluster, ClusterInitialization, ClusterSpec, ClusterStatus, Machine, MachineSpec,
    ObjectReference,
};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::identity::{self, MadeFrom, VmRecord, VmState};
use crate::api::v1alpha1::{
    AddressFromPool, InfraMachine, InfraMachineInitialization, InfraMachineSpec, InfraMachineStatus,
    LastOperation, MachineAddress, OperationState, OperationType, PowerPolicy, SecretReference,
};
use crate::api::{GROUP, MACHINE_FINALIZER, annotations};
use crate::apiserver::claims::ObservedClaim;
use crate::driver::{DriverState, KnownDriver, ResolveError, StableReachability};
use crate::reconcile::runtime_state::{
    Hint, LookUpHint, Presence, Retry, RetryCondition, RetryTrigger, RuntimeState, UnimplementedCall,
};
use cmi_driver::{Capabilities, Code, Operation, ProviderSpec, Status};

/// The connection generation of the driver in [`World`].
const CONNECTION_GENERATION: u64 = 2;
/// The fingerprint of unchanged inputs in [`World`].
pub const INPUTS: u64 = 7;

/// How long the driver of [`World`] may take to carry out an unanswered create.
pub const SETTLE: Duration = Duration::from_mins(1);
/// The timeout of a create, which is longer than [`SETTLE`].
pub const GIVEN_UP_AFTER: Duration = Duration::from_mins(10);

/// The current time in tests.
pub fn now() -> Timestamp {
    at(0)
}

/// Returns the time this many seconds after [`now`].
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// Returns the driver's spec for this user spec.
pub fn tagged(spec: &Value) -> ProviderSpec {
    let mut spec = ProviderSpec(spec.as_object().unwrap().clone());
    let tags = json!({
        "kubernetes.io/cluster": "c-1", "kubernetes.io/role": "node", "capcmi.io/machine": "u-1",
    });
    spec.0.insert("tags".to_owned(), tags);
    spec
}

/// Returns the record of a machine whose VM is in this state.
pub fn record(machine: &InfraMachine, state: VmState) -> VmRecord {
    let record = identity::record(machine).or_else(|| VmRecord::new(machine, "c-1"));
    let mut record = record.unwrap();
    record.state = state;
    record.made_from.get_or_insert_with(|| MadeFrom {
        driver: "pool".to_owned(),
        secret: None,
        provider_spec: tagged(&json!({"size": "s"})),
    });
    record
}

/// Returns a machine that Cluster API has just created, with an owner.
pub fn machine() -> MachineFixture {
    let mut machine = InfraMachine::new("m1", InfraMachineSpec::default());
    machine.metadata.namespace = Some("ns1".to_owned());
    machine.metadata.uid = Some("u-1".to_owned());
    machine.metadata.generation = Some(1);
    machine.metadata.creation_timestamp = Some(Time(now()));
    MachineFixture(machine)
        .spec(&json!({"size": "s"}))
        .owned_by("cluster.x-k8s.io/v1beta2", "Machine", true)
}

/// An InfraMachine under construction.
#[derive(Clone)]
pub struct MachineFixture(InfraMachine);

impl From<InfraMachine> for MachineFixture {
    fn from(machine: InfraMachine) -> Self {
        Self(machine)
    }
}

impl MachineFixture {
    pub fn build(self) -> InfraMachine {
        self.0
    }

    pub fn spec(mut self, spec: &Value) -> Self {
        self.0.spec.provider_spec = spec.as_object().unwrap().clone();
        self
    }

    pub fn configured_driver(mut self, name: &str) -> Self {
        self.0.spec.driver = Some(name.to_owned());
        self
    }

    /// Sets pools of the kind `Pool` with these names.
    pub fn pools(mut self, names: &[&str]) -> Self {
        let pool = |name: &&str| AddressFromPool {
            api_group: "ipam.example.com".to_owned(),
            kind: "Pool".to_owned(),
            name: (*name).to_owned(),
            network: None,
        };
        self.0.spec.addresses_from_pools = names.iter().map(pool).collect();
        self
    }

    pub fn secret(mut self, name: &str) -> Self {
        self.0.spec.secret_ref = Some(SecretReference {
            name: name.to_owned(),
        });
        self
    }

    pub fn generation(mut self, generation: i64) -> Self {
        self.0.metadata.generation = Some(generation);
        self
    }

    pub fn owned_by(mut self, api_version: &str, kind: &str, controller: bool) -> Self {
        self.0.metadata.owner_references = Some(vec![OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: "m1".to_owned(),
            uid: "owner".to_owned(),
            controller: Some(controller),
            block_owner_deletion: None,
        }]);
        self
    }

    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        let annotations = self.0.metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn without(mut self, key: &str) -> Self {
        self.0.metadata.annotations.get_or_insert_default().remove(key);
        self
    }

    pub fn labelled(mut self, key: &str, value: &str) -> Self {
        let labels = self.0.metadata.labels.get_or_insert_default();
        labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds the finalizer of another controller.
    pub fn kept_by(mut self, finalizer: &str) -> Self {
        let finalizers = self.0.metadata.finalizers.get_or_insert_default();
        finalizers.push(finalizer.to_owned());
        self
    }

    pub fn without_finalizer(mut self) -> Self {
        self.0.metadata.finalizers = None;
        self
    }

    /// Sets the result of write 1: a create was issued now.
    pub fn identified(self) -> Self {
        self.recorded(VmState::Creating {
            issued: now(),
            several: false,
        })
    }

    /// Sets the finalizer and a record of a VM in this state.
    pub fn recorded(mut self, state: VmState) -> Self {
        self.0.metadata.finalizers = Some(vec![MACHINE_FINALIZER.to_owned()]);
        let record = record(&self.0, state);
        self.with_record(&record)
    }

    fn with_record(self, record: &VmRecord) -> Self {
        self.annotated(annotations::VM_RECORD, &record.annotation().unwrap())
    }

    /// Changes the record.
    pub fn record(self, change: impl FnOnce(&mut VmRecord)) -> Self {
        let mut record = identity::record(&self.0).unwrap();
        change(&mut record);
        self.with_record(&record)
    }

    /// Sets the spec that the VM was made from.
    pub fn made_from(self, spec: &ProviderSpec) -> Self {
        self.record(|record| record.made_from.as_mut().unwrap().provider_spec = spec.clone())
    }

    /// Sets the record of another machine, as Cluster API copies annotations.
    pub fn with_copied_record(self) -> Self {
        self.record(|record| record.machine = "ns1/other/u-9".to_owned().try_into().unwrap())
    }

    pub fn without_record(self) -> Self {
        self.without(annotations::VM_RECORD)
    }

    /// Sets the result of write 2: the VM is known.
    pub fn known(self, id: &str) -> Self {
        self.recorded(VmState::Exists { unanswered: None })
            .provider_id(id)
    }

    pub fn provider_id(mut self, id: &str) -> Self {
        self.0.spec.provider_id = Some(id.to_owned());
        self
    }

    pub fn status(mut self, change: impl FnOnce(&mut InfraMachineStatus)) -> Self {
        change(self.0.status.get_or_insert_default());
        self
    }

    pub fn condition(self, type_: &str, state: ConditionStatus, reason: &str) -> Self {
        self.status(|status| {
            conditions::set(&mut status.conditions, type_, state, reason, "", Some(1), now());
        })
    }

    pub fn observed(self, generation: i64) -> Self {
        self.status(|status| status.observed_generation = Some(generation))
    }

    /// Sets the result of write 3.
    pub fn provisioned(self) -> Self {
        self.known("sim://1")
            .observed(1)
            .condition(conditions::READY, ConditionStatus::True, "Ready")
            .condition(
                conditions::VIRTUAL_MACHINE_CREATED,
                ConditionStatus::True,
                "Created",
            )
            .status(|status| {
                status.ready = true;
                status.initialization = Some(InfraMachineInitialization {
                    provisioned: Some(true),
                });
            })
    }

    pub fn always_on(mut self) -> Self {
        self.0.spec.power_policy = Some(PowerPolicy::AlwaysOn);
        self
    }

    pub fn power(self, state: &str) -> Self {
        self.status(|status| status.power_state = Some(state.to_owned()))
    }

    /// Shows a VM that is switched off.
    pub fn off(self) -> Self {
        let (type_, reason) = (
            conditions::VIRTUAL_MACHINE_RUNNING,
            conditions::reason::POWERED_OFF,
        );
        self.power("Stopped")
            .condition(type_, ConditionStatus::False, reason)
    }

    /// Publishes an IP address.
    pub fn ip(self, ip: &str) -> Self {
        let (type_, address) = ("InternalIP".to_owned(), ip.to_owned());
        self.status(|status| status.addresses.push(MachineAddress { type_, address }))
    }

    /// Sets now as the time of the last start of the VM.
    pub fn started(self) -> Self {
        self.record(|record| record.last_start = Some(now()))
    }

    /// Sets a failed last operation. Its next attempt is due in this many seconds.
    pub fn failed(self, type_: OperationType, operation: Operation, code: Code, seconds: i64) -> Self {
        self.observed(1).status(|status| {
            status.last_operation = Some(LastOperation {
                type_,
                state: OperationState::Failed,
                operation: Some(operation.name().to_owned()),
                code: Some(code.name().to_owned()),
                message: Some("no".to_owned()),
                attempts: 3,
                last_update_time: Time(now()),
                next_retry_time: Some(Time(at(seconds))),
                inputs: None,
            });
        })
    }

    pub fn deleted_at(mut self, deleted: Timestamp) -> Self {
        self.0.metadata.deletion_timestamp = Some(Time(deleted));
        self
    }
}

/// The state of the driver.
#[derive(Clone, Copy)]
enum DriverIs {
    Known,
    Unknown,
    Pending,
    NotConfigured,
}

#[derive(Clone, Copy)]
enum OwnerIs {
    There,
    NotCached,
    None,
}

/// The observations about a machine. By default, the Cluster is ready, the owner has bootstrap data, and the
/// driver supports all calls.
#[derive(Clone)]
pub struct World {
    owner: Machine,
    owner_is: OwnerIs,
    pub cluster: Option<Cluster>,
    infra_cluster: Option<String>,
    capabilities: Capabilities,
    is_current: bool,
    reachable: Option<bool>,
    driver_is: DriverIs,
    violation: Option<String>,
    conflict: ProviderIdConflict,
    claims: Option<Vec<ObservedClaim>>,
    pub state: RuntimeState,
    instant: Instant,
    now: Timestamp,
}

pub fn world() -> World {
    let owner = MachineSpec {
        cluster_name: "c".to_owned(),
        bootstrap: Bootstrap {
            data_secret_name: Some("boot".to_owned()),
        },
        infrastructure_ref: ObjectReference {
            api_group: GROUP.to_owned(),
            kind: "InfraMachine".to_owned(),
            name: "m1".to_owned(),
        },
        ..MachineSpec::default()
    };
    let mut cluster = Cluster::new("c", ClusterSpec::default());
    cluster.status = Some(ClusterStatus {
        initialization: Some(ClusterInitialization {
            infrastructure_provisioned: Some(true),
        }),
    });
    World {
        owner: Machine::new("m1", owner),
        owner_is: OwnerIs::There,
        cluster: Some(cluster),
        infra_cluster: None,
        capabilities: Capabilities {
            operations: Operation::ALL.into_iter().collect(),
            hot_updatable: vec!["/size".parse().unwrap()],
            ..Capabilities::minimal()
        },
        is_current: true,
        reachable: Some(true),
        driver_is: DriverIs::Known,
        violation: None,
        conflict: ProviderIdConflict::None,
        claims: None,
        state: RuntimeState::default(),
        instant: Instant::now(),
        now: now(),
    }
}

/// Returns whether a driver is reachable, if that is stable.
pub fn reachability(reachable: Option<bool>) -> StableReachability {
    match reachable {
        None => StableReachability::Unsettled,
        Some(true) => StableReachability::Reachable,
        Some(false) => StableReachability::Unreachable("refused".into()),
    }
}

impl World {
    pub fn without_owner(mut self) -> Self {
        self.owner_is = OwnerIs::None;
        self
    }

    pub fn owner_not_cached(mut self) -> Self {
        self.owner_is = OwnerIs::NotCached;
        self
    }

    pub fn owner(mut self, change: impl FnOnce(&mut Machine)) -> Self {
        change(&mut self.owner);
        self
    }

    pub fn without_cluster(mut self) -> Self {
        self.cluster = None;
        self
    }

    pub fn paused(mut self) -> Self {
        if let Some(cluster) = &mut self.cluster {
            cluster.spec.paused = Some(true);
        }
        self
    }

    pub fn cluster_not_ready(mut self) -> Self {
        if let Some(cluster) = &mut self.cluster {
            cluster.status = None;
        }
        self
    }

    /// Sets an InfraCluster that is not provisioned, with an optional reason.
    pub fn infra_cluster_not_ready(mut self, reason: Option<&str>) -> Self {
        self = self.cluster_not_ready();
        if let Some(cluster) = &mut self.cluster {
            cluster.spec.infrastructure_ref = Some(ObjectReference {
                api_group: GROUP.to_owned(),
                kind: "InfraCluster".to_owned(),
                name: "c".to_owned(),
            });
        }
        self.infra_cluster = reason.map(str::to_owned);
        self
    }

    pub fn without_bootstrap(self) -> Self {
        self.owner(|owner| owner.spec.bootstrap.data_secret_name = None)
    }

    pub fn capabilities(mut self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.capabilities);
        self
    }

    pub fn not_offering(self, operation: Operation) -> Self {
        self.capabilities(|capabilities| {
            capabilities.operations.remove(&operation);
        })
    }

    pub fn unreachable(mut self) -> Self {
        self.reachable = Some(false);
        self
    }

    /// Sets an unstable reachability of the driver.
    pub fn unsettled(mut self) -> Self {
        self.reachable = None;
        self
    }

    /// Sets capabilities of a lost driver, which may be outdated.
    pub fn with_stale_capabilities(mut self) -> Self {
        self.is_current = false;
        self
    }

    pub fn capabilities_unknown(mut self) -> Self {
        self.driver_is = DriverIs::Unknown;
        self
    }

    pub fn driver_not_configured(mut self) -> Self {
        self.driver_is = DriverIs::NotConfigured;
        self
    }

    pub fn driver_busy(mut self) -> Self {
        self.driver_is = DriverIs::Pending;
        self
    }

    pub fn violating(mut self, what: &str) -> Self {
        self.violation = Some(what.to_owned());
        self
    }

    pub fn claims(mut self, claims: impl IntoIterator<Item = ObservedClaim>) -> Self {
        self.claims = Some(claims.into_iter().collect());
        self
    }

    pub fn conflicting_with(mut self, other: &str) -> Self {
        self.conflict = ProviderIdConflict::Named(other.to_owned());
        self
    }

    /// Sets a stale cache.
    pub fn not_cached_yet(mut self) -> Self {
        self.conflict = ProviderIdConflict::Unknown;
        self
    }

    pub fn refresh(self) -> Self {
        self.hinting(LookUpHint::Missing)
    }

    pub fn hinting(mut self, hint: LookUpHint) -> Self {
        self.state.hint = Some(Hint {
            why: hint,
            is_new: true,
            number: 1,
        });
        self
    }

    /// Sets a hint that the driver could not answer.
    pub fn with_unanswered(mut self) -> Self {
        self.state.hint = Some(Hint {
            why: LookUpHint::Signal,
            is_new: false,
            number: 1,
        });
        self
    }

    /// Sets a failure that forbids a call for this many seconds.
    pub fn remembering(mut self, seconds: u64) -> Self {
        self.state.retry = Some(Retry {
            during: OperationType::Create,
            attempts: 1,
            trigger: RetryTrigger::Other,
            until: RetryCondition::Time(self.instant + Duration::from_secs(seconds)),
            inputs: INPUTS,
        });
        self
    }

    /// Changes the inputs since the recorded failure.
    pub fn inputs_changed(mut self) -> Self {
        if let Some(retry) = &mut self.state.retry {
            retry.inputs += 1;
        }
        self
    }

    /// Sets a failure because a driver does not support a call. `before` is how many connections ago.
    pub fn unable(self, before: u64) -> Self {
        self.unable_to(Operation::CreateMachine, before)
    }

    /// Like [`World::unable`], for this call.
    pub fn unable_to(mut self, operation: Operation, before: u64) -> Self {
        self.state.retry = Some(Retry {
            during: OperationType::Create,
            attempts: 1,
            trigger: RetryTrigger::Other,
            until: RetryCondition::AnotherDriver(UnimplementedCall {
                connection_generation: CONNECTION_GENERATION - before,
                operation,
            }),
            inputs: INPUTS,
        });
        self
    }

    /// Marks the create issued this many seconds after [`now`] as answered.
    pub fn answered(mut self, seconds: i64) -> Self {
        self.state.answered = Some(at(seconds));
        self
    }

    /// Sets the number of consecutive failures, whose wait is over.
    pub fn failed(mut self, times: u32) -> Self {
        self = self.remembering(0);
        if let Some(retry) = &mut self.state.retry {
            retry.attempts = times;
        }
        self
    }

    /// Lets the VM be absent for this many seconds.
    pub fn absent_for(mut self, seconds: u64) -> Self {
        self.state.presence = Some(Presence::AbsentSince(self.instant));
        self.instant += Duration::from_secs(seconds);
        self
    }

    pub fn resting(mut self, seconds: u64) -> Self {
        let until = self.instant + Duration::from_secs(seconds);
        self.state.presence = Some(Presence::UnsettledUntil(until));
        self
    }

    pub fn seconds_later(mut self, seconds: i64) -> Self {
        self.now = at(seconds);
        self
    }

    /// Returns the plan for a machine in this world.
    pub fn plan(&self, machine: MachineFixture) -> Plan {
        let driver = match self.driver_is {
            DriverIs::Known => Ok(DriverState::Known(KnownDriver {
                name: "pool".into(),
                capabilities: Arc::new(self.capabilities.clone()),
                is_current: self.is_current,
                create_given_up_after: GIVEN_UP_AFTER,
                create_settle_time: SETTLE,
                reachability: reachability(self.reachable),
            })),
            DriverIs::Unknown => Ok(DriverState::Unknown(Status::new(Code::Unavailable, "down"))),
            DriverIs::Pending => Ok(DriverState::Pending),
            DriverIs::NotConfigured => Err(ResolveError::NotFound {
                name: "pool".to_owned(),
                namespace: "ns".to_owned(),
                usable: vec!["other".to_owned()],
            }),
        };
        let machine = machine.build();
        let mut state = self.state.clone();
        if state.retry.is_none() {
            state.retry = plan::restored(&machine, self.now, self.instant, INPUTS);
        }
        let observed = Observed {
            owner: match self.owner_is {
                OwnerIs::There => Owner::Found(Arc::new(self.owner.clone())),
                OwnerIs::NotCached => Owner::Missing,
                OwnerIs::None => Owner::None,
            },
            cluster: self.cluster.clone().map(Arc::new),
            infra_cluster: self.infra_cluster.clone(),
            cluster_id: self.cluster.as_ref().map(|_| "c-1".to_owned()),
            driver,
            violation: self.violation.clone(),
            conflict: self.conflict.clone(),
            claims: self.claims.clone(),
            state,
            inputs: INPUTS,
            connection_generation: CONNECTION_GENERATION,
            now: self.now,
            instant: self.instant,
        };
        plan::plan(&machine, &observed)
    }
}
