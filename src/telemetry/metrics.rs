//! The metrics of this process, in the text form that Prometheus reads.
//!
//! Labels are values of enums and names from the configuration, never names of objects, so that the number of
//! series is bounded. Namespaces are the one exception: the namespaces of machines, and of Clusters that have
//! orphans. A driver that is not configured is `unknown`.

mod collectors;
mod labels;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::collectors::{Breakers, Drivers, Machines, Orphans, Permits, collect};
use self::labels::{CallLabels, ControllerLabel, DriverLabel, OperationLabels, ReconcileLabels};
use cmi_driver::{Code, Operation};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const RECONCILE_SECONDS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];
const CALL_SECONDS: [f64; 11] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];
const PROVISIONING_SECONDS: [f64; 12] = [
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0,
];

/// Defines enums whose values are the values of a label.
macro_rules! label_values {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $value:ident = $label:literal,)+ })+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$of])* $value,)+ }

        impl $name {
            /// Every value.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$value),+];

            /// The value of the label.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $label,)+ }
            }
        }
    )+ };
}

label_values! {
    /// A controller. Its name is the kind that it reconciles in lower case, as in controller-runtime. A
    /// further controller of a kind is named after its purpose.
    ControllerName {
        /// The controller of InfraMachines.
        InfraMachine = "inframachine",
        /// The controller of InfraMachineTemplates.
        InfraMachineTemplate = "inframachinetemplate",
        /// The controller of InfraClusters.
        InfraCluster = "infracluster",
        /// The controller of InfraMachineRemediations.
        InfraMachineRemediation = "inframachineremediation",
        /// The controller that looks for the cause when the Node of an InfraMachine does not appear.
        MissingNode = "missing_node",
        /// The controller that removes the not-ready taint of the Nodes of InfraMachines.
        NotReadyTaint = "not_ready_taint",
        /// The controller that drains the volumes of Machines.
        VolumeDrain = "volume_drain",
    }

    /// How a reconcile ended.
    ReconcileResult {
        /// Nothing is left to do.
        Success = "success",
        /// The object waits for something, and is requeued after a while.
        Requeue = "requeue",
        /// The reconcile failed.
        Error = "error",
        /// The object was changed during the reconcile.
        Conflict = "conflict",
    }

    /// Why a VM is not the VM of an InfraMachine.
    OrphanReason {
        /// There is no InfraMachine for the VM.
        Orphan = "orphan",
        /// The VM's InfraMachine has another VM.
        Duplicate = "duplicate",
    }

    /// The phase of a machine's life, as machines are counted.
    MachinePhase {
        /// The machine's VM is yet to be handed to Cluster API.
        Pending = "Pending",
        /// The machine's VM was handed over, and is ready.
        Provisioned = "Provisioned",
        /// The machine's VM was handed over, and is not ready.
        NotReady = "NotReady",
        /// The machine has failed for good.
        Failed = "Failed",
        /// The machine is being deleted.
        Deleting = "Deleting",
        /// The InfraMachine does not fit its definition.
        Invalid = "Invalid",
    }
}

/// The permits of one priority of a driver: how many are in use, and how many objects wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitCount {
    /// The priority that the permits are for: `upkeep` or `create`.
    pub priority: &'static str,
    /// Permits in use.
    pub in_use: u64,
    /// Objects that wait for a permit.
    pub waiting: u64,
}

/// The number of machines that have all of these values in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MachineCount {
    /// The phase of the machines.
    pub phase: MachinePhase,
    /// The driver that they name, or that has their VMs; empty where none is known yet.
    pub driver: String,
    /// Their namespace.
    pub namespace: String,
    /// The reason of the condition that explains this phase; empty where none does yet.
    pub reason: String,
    /// How many there are.
    pub count: u64,
}

/// The circuit breakers of a driver, which hold back its creates for want of capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerCount {
    /// Classes whose breaker is open: no create is made.
    pub open: u64,
    /// Classes whose breaker is half open: one machine, or a few, may try.
    pub half_open: u64,
    /// Machines that wait for capacity.
    pub waiting: u64,
}

/// All metrics of this process. Recording is cheap and never blocks on a scrape.
pub struct Metrics {
    registry: Registry,
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_seconds: Family<ControllerLabel, Histogram, fn() -> Histogram>,
    calls: Family<CallLabels, Counter>,
    call_seconds: Family<OperationLabels, Histogram, fn() -> Histogram>,
    provisioning_seconds: Family<DriverLabel, Histogram, fn() -> Histogram>,
    reachable: Family<DriverLabel, Gauge>,
    drivers: Arc<Drivers>,
    permits: Arc<Permits>,
    breakers: Arc<Breakers>,
    orphans: Arc<Orphans>,
    leader: Gauge,
    admission_policies_in_force: Gauge,
    machines: Arc<Machines>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("capcmi"),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(|| Histogram::new(RECONCILE_SECONDS)),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(|| Histogram::new(CALL_SECONDS)),
            provisioning_seconds: Family::new_with_constructor(|| Histogram::new(PROVISIONING_SECONDS)),
            reachable: Family::default(),
            drivers: Arc::default(),
            permits: Arc::default(),
            breakers: Arc::default(),
            orphans: Arc::default(),
            leader: Gauge::default(),
            admission_policies_in_force: Gauge::default(),
            machines: Arc::default(),
        };
        metrics.register_reconciles();
        metrics.register_driver();
        metrics.register_process();
        metrics.begin_reconciles();
        metrics
    }

    fn register_reconciles(&mut self) {
        self.registry
            .register("reconcile", "Reconciles", self.reconciles.clone());
        self.registry.register_with_unit(
            "reconcile_time",
            "Duration of reconciles",
            Unit::Seconds,
            self.reconcile_seconds.clone(),
        );
        self.registry.register_with_unit(
            "machine_provisioning_duration",
            "Time from the creation of an InfraMachine until its VM is provisioned",
            Unit::Seconds,
            self.provisioning_seconds.clone(),
        );
        let machines = collect(&self.machines, collectors::machines);
        self.registry.register_collector(machines);
    }

    fn register_driver(&mut self) {
        self.registry
            .register("driver_calls", "Driver calls", self.calls.clone());
        self.registry.register_with_unit(
            "driver_call_duration",
            "Duration of driver calls",
            Unit::Seconds,
            self.call_seconds.clone(),
        );
        self.registry.register(
            "driver_reachable",
            "1 if the last probe found the driver ready, else 0; only the leader probes",
            self.reachable.clone(),
        );
        for collector in [
            collect(&self.drivers, collectors::drivers),
            collect(&self.permits, collectors::permits),
            collect(&self.breakers, collectors::breakers),
            collect(&self.orphans, collectors::orphans),
        ] {
            self.registry.register_collector(collector);
        }
    }

    fn register_process(&mut self) {
        self.registry.register(
            "leader",
            "1 if this replica is the leader, else 0",
            self.leader.clone(),
        );
        self.registry.register(
            "admission_policies_in_force",
            "1 if the last check found the admission policies in force, else 0; only the leader checks",
            self.admission_policies_in_force.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        self.registry.register("build", "Version of the process", build);
    }

    /// Starts the reconcile counters at zero. A counter that appears with its first failure hides that
    /// failure, because it has not increased.
    fn begin_reconciles(&self) {
        for controller in ControllerName::ALL {
            for result in ReconcileResult::ALL {
                let labels = ReconcileLabels {
                    controller: controller.name(),
                    result: result.name(),
                };
                drop(self.reconciles.get_or_create(&labels));
            }
        }
    }

    /// Starts the call counters of a configured driver at zero, with all their codes.
    pub fn driver_configured(&self, driver: &str) {
        let codes = Code::ALL.into_iter().map(Some).chain([None]);
        for (operation, code) in codes.flat_map(|code| Operation::ALL.map(|operation| (operation, code))) {
            drop(self.calls.get_or_create(&call_labels(driver, operation, code)));
        }
    }

    /// Records a reconcile that ended.
    pub fn reconciled(&self, controller: ControllerName, result: ReconcileResult, took: Duration) {
        let labels = ReconcileLabels {
            controller: controller.name(),
            result: result.name(),
        };
        self.reconciles.get_or_create(&labels).inc();
        self.reconcile_seconds
            .get_or_create(&ControllerLabel {
                controller: controller.name(),
            })
            .observe(took.as_secs_f64());
    }

    /// Records the answer of a driver: a success when there is no code.
    pub fn driver_called(&self, driver: &str, operation: Operation, code: Option<Code>, took: Duration) {
        let labels = call_labels(driver, operation, code);
        self.calls.get_or_create(&labels).inc();
        let labels = OperationLabels {
            driver: labels.driver,
            operation: labels.operation,
        };
        self.call_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Records that a machine was provisioned, this long after its InfraMachine was created.
    pub fn provisioned(&self, driver: &str, took: Duration) {
        let labels = DriverLabel {
            driver: driver.to_owned(),
        };
        self.provisioning_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Sets how machines are counted at each scrape. Only the first call has an effect.
    pub fn machines(&self, count: impl Fn() -> Vec<MachineCount> + Send + Sync + 'static) {
        self.machines.get_or_init(|| Box::new(count));
    }

    /// Sets how the permits of a driver are counted at each scrape.
    pub fn permits(&self, driver: &str, count: impl Fn() -> [PermitCount; 2] + Send + Sync + 'static) {
        self.permits.lock().insert(driver.to_owned(), Box::new(count));
    }

    /// Sets how the circuit breakers of a driver are counted at each scrape.
    pub fn breakers(&self, driver: &str, count: impl Fn() -> BreakerCount + Send + Sync + 'static) {
        self.breakers.lock().insert(driver.to_owned(), Box::new(count));
    }

    /// Records whether a driver can be reached.
    pub fn driver_reachable(&self, driver: &str, reachable: bool) {
        let labels = DriverLabel {
            driver: driver.to_owned(),
        };
        self.reachable.get_or_create(&labels).set(reachable.into());
    }

    /// Replaces the name and version that a driver reports of itself.
    pub fn driver_info(&self, driver: &str, name: &str, version: &str) {
        self.drivers
            .lock()
            .insert(driver.to_owned(), [name, version].map(str::to_owned));
    }

    /// Replaces the orphans of a driver, by namespace and reason.
    pub fn orphans(&self, driver: &str, counts: BTreeMap<(String, OrphanReason), u64>) {
        self.orphans.lock().insert(driver.to_owned(), counts);
    }

    /// Records whether this replica is the leader.
    pub fn leads(&self, leader: bool) {
        self.leader.set(leader.into());
    }

    /// Records whether the admission policies guard identities.
    pub fn admission_policies(&self, in_force: bool) {
        self.admission_policies_in_force.set(in_force.into());
    }

    /// Returns all metrics as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail; a metric that can't be encoded is missing rather than fatal.
        if let Err(error) = text::encode(&mut text, &self.registry) {
            tracing::error!(%error, "cannot encode metrics");
        }
        text
    }
}

fn call_labels(driver: &str, operation: Operation, code: Option<Code>) -> CallLabels {
    CallLabels {
        driver: driver.to_owned(),
        operation: operation.name(),
        code: code.map_or("OK", Code::name),
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_line(metrics: &Metrics, line: &str) {
        let text = metrics.encode();
        assert!(text.lines().any(|l| l == line), "no line `{line}` in\n{text}");
    }

    #[test]
    fn driver_calls_are_counted_by_operation_and_code() {
        let metrics = Metrics::new();
        let took = Duration::from_millis(3);
        metrics.driver_called("pool", Operation::CreateMachine, None, took);
        metrics.driver_called("pool", Operation::CreateMachine, Some(Code::Aborted), took);
        assert_line(
            &metrics,
            r#"capcmi_driver_calls_total{driver="pool",operation="CreateMachine",code="OK"} 1"#,
        );
        assert_line(
            &metrics,
            r#"capcmi_driver_calls_total{driver="pool",operation="CreateMachine",code="Aborted"} 1"#,
        );
        assert_line(
            &metrics,
            r#"capcmi_driver_call_duration_seconds_count{driver="pool",operation="CreateMachine"} 2"#,
        );
    }

    #[test]
    fn machines_are_counted_at_each_scrape() {
        let metrics = Metrics::new();
        assert!(!metrics.encode().contains("capcmi_machines"));
        metrics.machines(|| {
            let count = |phase, reason: &str, count| MachineCount {
                phase,
                driver: "pool".to_owned(),
                namespace: "ns".to_owned(),
                reason: reason.to_owned(),
                count,
            };
            vec![
                count(MachinePhase::Provisioned, "Ready", 7),
                count(MachinePhase::Pending, "ResourceExhausted", 1),
            ]
        });
        assert_line(
            &metrics,
            r#"capcmi_machines{phase="Provisioned",driver="pool",namespace="ns",reason="Ready"} 7"#,
        );
        assert_line(
            &metrics,
            r#"capcmi_machines{phase="Pending",driver="pool",namespace="ns",reason="ResourceExhausted"} 1"#,
        );
        // An alert on a minimum over time would not see a missing series.
        assert_line(&metrics, r#"capcmi_machines{phase="Deleting"} 0"#);
    }

    #[test]
    fn counters_exist_before_the_first_failure() {
        let metrics = Metrics::new();
        assert_line(
            &metrics,
            r#"capcmi_reconcile_total{controller="not_ready_taint",result="error"} 0"#,
        );
        metrics.driver_configured("pool");
        assert_line(
            &metrics,
            concat!(
                r#"capcmi_driver_calls_total{driver="pool",operation="CreateMachine","#,
                r#"code="ResourceExhausted"} 0"#
            ),
        );
        assert_line(
            &metrics,
            r#"capcmi_driver_calls_total{driver="pool",operation="CreateMachine",code="OK"} 0"#,
        );
    }

    #[test]
    fn a_scrape_counts_breakers_and_machines_that_wait_for_capacity() {
        let metrics = Metrics::new();
        metrics.breakers("pool", || BreakerCount {
            open: 2,
            half_open: 1,
            waiting: 30,
        });
        assert_line(
            &metrics,
            r#"capcmi_driver_breakers{driver="pool",state="open"} 2"#,
        );
        assert_line(
            &metrics,
            r#"capcmi_driver_breakers{driver="pool",state="half-open"} 1"#,
        );
        assert_line(&metrics, r#"capcmi_driver_capacity_queue{driver="pool"} 30"#);
    }

    #[test]
    fn a_scrape_counts_permits_in_use_and_their_queues() {
        let metrics = Metrics::new();
        let count = |priority, in_use, waiting| PermitCount {
            priority,
            in_use,
            waiting,
        };
        metrics.permits("pool", move || [count("upkeep", 1, 0), count("create", 28, 12)]);
        assert_line(
            &metrics,
            r#"capcmi_driver_queue{driver="pool",priority="create"} 12"#,
        );
        assert_line(
            &metrics,
            r#"capcmi_driver_permits_in_use{driver="pool",priority="upkeep"} 1"#,
        );
    }

    #[test]
    fn orphans_are_shown_as_the_last_look_found_them() {
        let metrics = Metrics::new();
        let counts = |n| BTreeMap::from([(("ns".to_owned(), OrphanReason::Orphan), n)]);
        metrics.orphans("pool", counts(3));
        metrics.orphans("pool", counts(2));
        metrics.orphans("other", counts(1));
        metrics.orphans("other", BTreeMap::new());
        let text = metrics.encode();
        let shown: Vec<_> = text
            .lines()
            .filter(|l| l.starts_with("capcmi_orphans{"))
            .collect();
        assert_eq!(
            shown,
            [r#"capcmi_orphans{driver="pool",namespace="ns",reason="orphan"} 2"#]
        );
    }

    #[test]
    fn a_driver_that_was_replaced_is_no_longer_shown_as_it_was() {
        let metrics = Metrics::new();
        metrics.driver_info("pool", "a.example.com", "1");
        metrics.driver_info("pool", "a.example.com", "2");
        metrics.driver_info("other", "b.example.com", "1");
        let text = metrics.encode();
        let shown: Vec<_> = text
            .lines()
            .filter(|l| l.starts_with("capcmi_driver_info"))
            .collect();
        assert_eq!(
            shown,
            [
                r#"capcmi_driver_info{driver="other",name="b.example.com",version="1"} 1"#,
                r#"capcmi_driver_info{driver="pool",name="a.example.com",version="2"} 1"#,
            ]
        );
    }

    #[test]
    fn reconciles_provisioning_times_and_reachability_are_shown() {
        let metrics = Metrics::new();
        metrics.reconciled(
            ControllerName::InfraMachine,
            ReconcileResult::Requeue,
            Duration::from_millis(2),
        );
        metrics.provisioned("pool", Duration::from_secs(42));
        metrics.driver_reachable("pool", false);
        metrics.leads(true);
        assert_line(
            &metrics,
            r#"capcmi_reconcile_total{controller="inframachine",result="requeue"} 1"#,
        );
        assert_line(
            &metrics,
            r#"capcmi_machine_provisioning_duration_seconds_sum{driver="pool"} 42.0"#,
        );
        assert_line(&metrics, r#"capcmi_driver_reachable{driver="pool"} 0"#);
        assert_line(&metrics, "capcmi_leader 1");
    }
}
