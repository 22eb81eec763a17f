//! The controllers: their watches, the events that enqueue objects, and how they start and stop.
//!
//! Every kind is watched once. The caches fill before this replica leads. The controllers start when it
//! leads, reconcile every object once, and then the changed objects.

mod cached;
mod changed_clusters;
mod claims;
mod clusters;
mod drains;
mod driver_reachability;
mod enqueue;
mod handlers;
mod machines;
mod missing_nodes;
mod node_health;
mod remediations;
mod taints;
mod templates;
mod watch;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, Resource};
use kube_fleet::pages::PAGE;
use kube_fleet::{Store, Stored, Update, WorkQueue, Writer, WriterDropped};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use self::cached::{slim, slim_infra_machine, slim_machine};
use self::remediations::Remediations;
use self::watch::watch;
use crate::admission::AdmissionPolicies;
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineTemplate};
use crate::api::{DeserializeGuard, labels};
use crate::apiserver::Events;
use crate::apiserver::leadership::Leadership;
use crate::driver::ConfiguredDrivers;
use crate::fleet::orphans;
pub use crate::fleet::orphans::Options as OrphanOptions;
use crate::machine;
use crate::manager::tasks::Task;
use crate::nodes::not_ready_taint::ChangedNodes;
use crate::nodes::volume_drain::WorkloadOutages;
use crate::nodes::workload_cluster::{Dial, WorkloadClusters};
use crate::nodes::{missing_node, not_ready_taint, volume_drain};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::reconcile::{Enqueue, Reconciler};
use crate::telemetry::metrics::{ControllerName, Metrics};

/// Concurrent reconciles of a kind that connects to workload clusters. A workload cluster has at most two
/// connections at a time, and a back-off after a hanging connection. So a reconcile for another cluster waits
/// only if 16 clusters hang at the same time, and only until their connections time out. Each reconcile may
/// hold a response of 1 MiB in memory.
const WORKLOAD_CLUSTER_CONCURRENCY: u16 = 32;

/// How the controllers run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The only namespace to watch; `None` for all namespaces.
    pub namespace: Option<String>,
    /// The required value of the label `cluster.x-k8s.io/watch-filter`; `None` for all objects.
    pub watch_filter: Option<String>,
    /// Concurrent reconciles of machines, not counting reconciles with a driver's permit.
    pub machine_concurrency: u16,
    /// Concurrent reconciles of clusters, not counting reconciles with a driver's permit.
    pub cluster_concurrency: u16,
    /// Concurrent reconciles of templates, not counting reconciles with a driver's permit.
    pub template_concurrency: u16,
    /// The interval between two lists of a driver's VMs.
    pub inventory_interval: Duration,
    /// The most machines of a driver that are looked up one by one, where its lists have no state of VMs.
    pub max_refreshed_machines: usize,
    /// How long a driver has to be unreachable, or reachable again, before that is reported.
    pub driver_unreachable_grace: Duration,
    /// How to treat VMs without an InfraMachine.
    pub orphans: orphans::Options,
    /// Whether InfraMachineRemediations are reconciled.
    pub remediation: bool,
    /// Whether machines may request that their pods with volumes are evicted one after the other.
    pub volume_drain: bool,
    /// The reporter of events, usually the pod's name.
    pub reporter: String,
}

/// The watches, their work queues, and the controllers that process the queues.
pub struct Controllers {
    client: Client,
    options: Options,
    caches: Caches,
    drivers: ConfiguredDrivers,
    metrics: Arc<Metrics>,
    infra_machine_queue: WorkQueue<DeserializeGuard<InfraMachine>>,
    infra_cluster_queue: WorkQueue<DeserializeGuard<InfraCluster>>,
    template_queue: WorkQueue<DeserializeGuard<InfraMachineTemplate>>,
    /// The InfraMachines whose Nodes are awaited.
    missing_node_queue: WorkQueue<DeserializeGuard<InfraMachine>>,
    /// The InfraMachines whose Nodes are to be reconciled.
    taint_queue: WorkQueue<DeserializeGuard<InfraMachine>>,
    /// The Machines whose volumes are to be drained.
    drain_queue: WorkQueue<Machine>,
    remediations: Option<Remediations>,
    machine_context: Arc<machine::Context>,
    missing_node_context: Arc<missing_node::Context>,
    taint_context: Arc<not_ready_taint::Context>,
    drain_context: Arc<volume_drain::Context>,
    deletion_log: Arc<orphans::DeletionLog>,
    /// The turn of a handler: one runs at a time, as handlers also read the caches of other kinds.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The tasks of a replica that leads.
pub struct LeaderTasks {
    /// The controllers, each in a task of its own. They end after the shutdown, when their running reconciles
    /// have ended.
    pub controllers: Vec<Task>,
    /// Tasks that never end.
    pub background: Vec<Task>,
}

impl Controllers {
    /// Prepares caches and watches. The returned tasks are the watches. They must run to fill the caches, and
    /// never end.
    pub fn new(
        client: Client,
        dial: Dial,
        options: Options,
        drivers: ConfiguredDrivers,
        metrics: Arc<Metrics>,
        leadership: Leadership,
    ) -> (Self, Vec<Task>) {
        let (caches, writers) = caches();
        let mut this = Self::with_caches(caches, client, dial, options, drivers, metrics, leadership);
        let remediations = this.options.remediation.then(Writer::default);
        this.remediations = remediations.as_ref().map(|writer| Remediations {
            cache: writer.as_reader(),
            queue: WorkQueue::default(),
        });
        let mut watches = this.watches(writers);
        watches.extend(remediations.and_then(|writer| this.remediation_watch(writer)));
        (this, watches)
    }

    fn with_caches(
        caches: Caches,
        client: Client,
        dial: Dial,
        options: Options,
        drivers: ConfiguredDrivers,
        metrics: Arc<Metrics>,
        leadership: Leadership,
    ) -> Self {
        let infra_machine_queue = WorkQueue::default();
        let missing_node_queue = WorkQueue::default();
        let drain_queue = WorkQueue::default();
        let events = Events::new(client.clone(), options.reporter.clone());
        // Shared by the controllers, so that the limit of connections to a workload cluster applies to all of
        // them together.
        let workload_clusters = Arc::new(WorkloadClusters::new(client.clone(), dial));
        let reconciler = |controller, drivers: &ConfiguredDrivers| {
            Reconciler::new(controller, Arc::clone(&metrics), drivers.clone(), events.clone())
        };
        let policies = AdmissionPolicies::new(client.clone(), Arc::clone(&metrics));
        let policies = Arc::new(policies.within(options.namespace.clone()));
        let missing_node_context = Arc::new(missing_node::Context {
            client: client.clone(),
            caches: caches.clone(),
            drivers: drivers.clone(),
            workload_clusters: Arc::clone(&workload_clusters),
            policies: Arc::clone(&policies),
            // As for taints. The permit of this controller has a key of its own.
            reconciler: reconciler(ControllerName::MissingNode, &ConfiguredDrivers::default()),
            enqueue: enqueue(&missing_node_queue),
            schedule: missing_node::Schedule::default(),
        });
        let drain_context = Arc::new(volume_drain::Context {
            enabled: options.volume_drain,
            client: client.clone(),
            caches: caches.clone(),
            drivers: drivers.clone(),
            workload_clusters: Arc::clone(&workload_clusters),
            leadership: leadership.clone(),
            events: events.clone(),
            reconciler: reconciler(ControllerName::VolumeDrain, &drivers),
            enqueue: enqueue(&drain_queue),
            outages: WorkloadOutages::default(),
            rules_page: tokio::sync::Mutex::default(),
        });
        let taint_context = Arc::new(not_ready_taint::Context {
            client: client.clone(),
            caches: caches.clone(),
            workload_clusters,
            leadership,
            events: events.clone(),
            // This controller calls no driver. Only the machine's reconciler releases a place in a driver's
            // queue.
            reconciler: reconciler(ControllerName::NotReadyTaint, &ConfiguredDrivers::default()),
            changed_nodes: ChangedNodes::default(),
        });
        let machine_context = Arc::new(machine::Context {
            client: client.clone(),
            cluster_ids: Arc::new(ClusterIds::new(&caches)),
            caches: caches.clone(),
            drivers: drivers.clone(),
            states: Arc::default(),
            failures: Arc::default(),
            events,
            metrics: Arc::clone(&metrics),
            policies,
            enqueue: enqueue(&infra_machine_queue),
            claims_wanted: Arc::default(),
        });
        Self {
            client,
            options,
            caches,
            drivers,
            metrics,
            infra_machine_queue,
            infra_cluster_queue: WorkQueue::default(),
            template_queue: WorkQueue::default(),
            missing_node_queue,
            taint_queue: WorkQueue::default(),
            drain_queue,
            remediations: None,
            machine_context,
            missing_node_context,
            taint_context,
            drain_context,
            deletion_log: Arc::default(),
            turn: Arc::default(),
        }
    }

    fn watches(&self, writers: Writers) -> Vec<Task> {
        let (all, filtered) = (in_pages, || self.filtered());
        let (on_machine, on_infra_machine) = (self.on_machine(), self.on_infra_machine());
        let on_template = self.on_object(self.template_queue.clone());
        vec![
            self.watch(
                "the watch of Machines",
                all(),
                writers.machines,
                slim_machine,
                on_machine,
            ),
            self.watch(
                "the watch of Clusters",
                all(),
                writers.clusters,
                slim,
                self.on_cluster(),
            ),
            self.watch(
                "the watch of InfraMachines",
                filtered(),
                writers.infra_machines,
                slim_infra_machine,
                on_infra_machine,
            ),
            // They are not filtered either: they hold the id of a Cluster, whichever provider reconciles it.
            self.watch(
                "the watch of InfraClusters",
                all(),
                writers.infra_clusters,
                slim,
                self.on_infra_cluster(),
            ),
            self.watch(
                "the watch of InfraMachineTemplates",
                filtered(),
                writers.infra_machine_templates,
                slim,
                on_template,
            ),
        ]
    }

    fn watch<K>(
        &self,
        name: &'static str,
        config: watcher::Config,
        writer: Writer<K>,
        slim: fn(&mut K),
        notify: impl Fn(&Update<K>) + Send + 'static,
    ) -> Task
    where
        K: Stored + Resource<Scope = NamespaceResourceScope> + DeserializeOwned,
    {
        let turn = Arc::clone(&self.turn);
        Task::new(name, watch(self.api(), config, writer, slim, notify, turn))
    }

    /// The policies that decide whether identities may be trusted. They must be polled, see
    /// [`AdmissionPolicies::run`].
    pub fn policies(&self) -> Arc<AdmissionPolicies> {
        Arc::clone(&self.machine_context.policies)
    }

    /// The caches of all watched kinds.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Waits until all caches are filled once. Calls `missing` with the kinds of the unfilled caches, at
    /// first and each time a cache is filled.
    ///
    /// # Errors
    /// A watch has ended, which only happens when the process does.
    pub async fn synced(&self, missing: impl Fn(&str)) -> Result<(), WriterDropped> {
        let caches = &self.caches;
        let mut filling = vec![
            filled(&caches.machines),
            filled(&caches.clusters),
            filled(&caches.infra_machines),
            filled(&caches.infra_machine_templates),
            filled(&caches.infra_clusters),
        ];
        filling.extend(
            self.remediations
                .iter()
                .map(|remediations| filled(&remediations.cache)),
        );
        while !filling.is_empty() {
            let kinds: Vec<_> = filling.iter().map(|(kind, _)| &**kind).collect();
            missing(&kinds.join(", "));
            let first = futures::future::select_all(filling.iter_mut().map(|(_, filled)| filled));
            let (filled, place, _) = first.await;
            filled?;
            drop(filling.swap_remove(place));
        }
        Ok(())
    }

    /// Starts the controllers. Must be called once, when the caches are filled and this replica leads.
    ///
    /// No reconcile begins after `stopping`.
    pub async fn start(self, stopping: &CancellationToken) -> LeaderTasks {
        let this = Arc::new(self);
        // The controllers exist before anything is enqueued for them.
        let mut controllers = vec![
            this.machine_controller(stopping),
            this.cluster_controller(stopping),
            this.template_controller(stopping),
            this.missing_node_controller(stopping),
            this.taint_controller(stopping),
            this.drain_controller(stopping),
        ];
        let remediations = this.remediations.as_ref();
        controllers
            .extend(remediations.map(|remediations| this.remediation_controller(remediations, stopping)));
        this.hint_machines_with_unhealthy_nodes().await;
        this.enqueue_missing_nodes().await;
        this.enqueue_tainted_nodes().await;
        this.enqueue_drains();
        LeaderTasks {
            controllers,
            background: this.background(),
        }
    }

    /// The work of the leader that reconciles no object.
    fn background(self: &Arc<Self>) -> Vec<Task> {
        let [inventory, refresh, orphans, drivers, claims] = [(); 5].map(|()| Arc::clone(self));
        vec![
            Task::new("the inventory", async move { inventory.run_inventory().await }),
            Task::new("the refresh of machines", async move {
                refresh.run_refresh().await;
            }),
            Task::new("the orphan scan", async move { orphans.run_orphans().await }),
            Task::new("the reachability of drivers", async move {
                drivers.follow_drivers().await;
            }),
            Task::new("the watch of IPAddressClaims", async move {
                claims.follow_claims().await;
            }),
        ]
    }

    fn reconciler(&self, controller: ControllerName) -> Reconciler {
        Reconciler::new(
            controller,
            Arc::clone(&self.metrics),
            self.drivers.clone(),
            self.machine_context.events.clone(),
        )
    }

    /// How many reconciles of a kind run at the same time: the configured number, and one for each permit of
    /// a driver. Only a reconcile with a permit waits for a driver, so hanging drivers, however many, leave
    /// workers for the others.
    fn workers(&self, asked: u16) -> u16 {
        let permits = self.drivers.iter().map(|driver| driver.max_concurrent_calls());
        let all = permits.fold(u32::from(asked), u32::saturating_add);
        u16::try_from(all).unwrap_or(u16::MAX)
    }

    async fn run_orphans(&self) {
        let context = orphans::Context {
            client: self.client.clone(),
            caches: self.caches.clone(),
            drivers: self.drivers.clone(),
            metrics: Arc::clone(&self.metrics),
            events: self.machine_context.events.clone(),
            policies: self.policies(),
            deletion_log: Arc::clone(&self.deletion_log),
            namespace: self.options.namespace.clone(),
            options: self.options.orphans,
        };
        orphans::run(context).await;
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.options.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn filtered(&self) -> watcher::Config {
        match &self.options.watch_filter {
            Some(value) => in_pages().labels(&format!("{}={value}", labels::WATCH_FILTER)),
            None => in_pages(),
        }
    }
}

/// A kind, and a future that resolves when its cache is filled.
type Filled<'a> = (Cow<'static, str>, BoxFuture<'a, Result<(), WriterDropped>>);

fn filled<K: Stored>(cache: &Store<K>) -> Filled<'_> {
    (K::kind(&()), cache.wait_until_ready().boxed())
}

fn in_pages() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// The writers of the caches.
struct Writers {
    machines: Writer<Machine>,
    clusters: Writer<Cluster>,
    infra_machines: Writer<DeserializeGuard<InfraMachine>>,
    infra_machine_templates: Writer<DeserializeGuard<InfraMachineTemplate>>,
    infra_clusters: Writer<DeserializeGuard<InfraCluster>>,
}

fn caches() -> (Caches, Writers) {
    let writers = Writers {
        machines: Writer::default(),
        clusters: Writer::default(),
        infra_machines: Writer::default(),
        infra_machine_templates: Writer::default(),
        infra_clusters: Writer::default(),
    };
    let caches = Caches {
        machines: writers.machines.as_reader(),
        clusters: writers.clusters.as_reader(),
        infra_machines: writers.infra_machines.as_reader(),
        infra_machine_templates: writers.infra_machine_templates.as_reader(),
        infra_clusters: writers.infra_clusters.as_reader(),
    };
    (caches, writers)
}

/// Returns a function that enqueues an object.
fn enqueue<K: Resource<DynamicType = ()> + 'static>(queue: &WorkQueue<K>) -> Enqueue {
    let queue = queue.clone();
    Arc::new(move |name| queue.enqueue_key(name))
}
