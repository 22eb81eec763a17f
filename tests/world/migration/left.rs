//! The objects and VMs that machine-controller-manager leaves behind, and the command that migrates them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use capcmi::api::wall_clock;
use capcmi::manager::cli::CommandError;
use capcmi_cli::commands::migrate::{MigrateArgs, Places, run};
use clap::Parser as _;
use cmi_driver::Operation;
use cmi_simulated::Phase;
use fake_apiserver::{Call, Fate};
use jiff::Timestamp;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use management_cluster::eventually;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::by_hand::{infra_machines, is_provisioned};
use crate::support::fleet::objects;
use crate::support::mcm_objects::{GROUP, McmObjects, guarded};
use crate::support::provider::{Replica, drivers};
use crate::support::sets::Sets;
use crate::support::{Cloud, DEADLINE, Provider, Trap, World};

/// The machines.
pub const NAMES: [&str; 2] = ["a", "b"];
pub const STOPPED: &str = "--machine-controller-manager-is-stopped";

/// The command line, as `capcmi migrate` parses it.
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: MigrateArgs,
}

/// The time of the command.
pub fn now() -> Timestamp {
    wall_clock::now()
}

/// A namespace with a Cluster, a provider and Cluster API's sets.
pub struct Left {
    pub world: World,
    pub cloud: Cloud,
    /// The drivers file of the command.
    pub drivers: String,
    _provider: Replica,
    _sets: Sets,
}

impl Left {
    pub async fn new(case: &str) -> Result<Self> {
        let world = World::new(case).await?;
        let cloud = Cloud::new(&world);
        let drivers = cloud.drivers(guarded());
        let provider = Provider::new(drivers.clone()).start(&world).await?;
        world.cluster("md").await?;
        Ok(Self {
            _sets: Sets::start(&world),
            world,
            cloud,
            drivers,
            _provider: provider,
        })
    }

    /// Makes the objects and VMs that it left.
    pub fn objects(&self) -> McmObjects<'_> {
        McmObjects {
            world: &self.world,
            cloud: &self.cloud,
            user_data: "#cloud-config",
        }
    }

    /// The Lease of machine-controller-manager, renewed at this time.
    pub async fn lease(&self, renewed: Timestamp) -> Result<()> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": self.objects().metadata("machine-controller"),
            "spec": {"holderIdentity": "mcm", "leaseDurationSeconds": 15,
            "renewTime": format!("{renewed:.6}")},
        });
        management_cluster::apply(&self.world.admin, lease)
            .await
            .map(drop)
    }

    /// Runs the command, and returns its output.
    pub async fn done(&self, flags: &[&str]) -> Result<String> {
        let ended = self.run(self.world.management.client("capcmi"), flags).await?;
        ended.map_err(|error| anyhow!(error.message()))
    }

    /// Runs the command, which refuses its flags or its input. Returns the error.
    pub async fn refused(&self, flags: &[&str]) -> Result<String> {
        let error = self.error(flags).await?;
        ensure!(matches!(error, CommandError::Misconfigured(_)), "{error:?}");
        Ok(error.message())
    }

    /// Runs the command, which fails. Returns the error.
    pub async fn failed(&self, flags: &[&str]) -> Result<String> {
        let error = self.error(flags).await?;
        ensure!(matches!(error, CommandError::Failed(_)), "{error:?}");
        Ok(error.message())
    }

    /// Runs the command, and returns its output or its error.
    pub async fn ended(&self, flags: &[&str]) -> Result<Result<String, String>> {
        let ended = self.run(self.world.management.client("capcmi"), flags).await?;
        Ok(ended.map_err(|error| error.message()))
    }

    async fn error(&self, flags: &[&str]) -> Result<CommandError> {
        let ended = self.run(self.world.management.client("capcmi"), flags).await?;
        ended.err().with_context(|| format!("{flags:?} succeeded"))
    }

    async fn run(&self, client: Client, flags: &[&str]) -> Result<Result<String, CommandError>> {
        let namespace = &self.world.namespace;
        let own = [
            "migrate",
            "--cluster",
            "md",
            "--namespace",
            namespace,
            "--drivers-config",
            "-",
        ];
        let line = Line::try_parse_from(own.iter().chain(flags))?;
        let places = Places {
            drivers: drivers(&self.drivers, &self.world, &Trap::counting())?,
            from: client.clone(),
            management: client,
        };
        let printed = Mutex::new(String::new());
        let ended = run(&line.args, places, &|text| {
            let mut lines = printed.lock();
            lines.push_str(text);
            lines.push('\n');
        })
        .await;
        Ok(ended.map(|()| printed.into_inner()))
    }

    /// Runs the command, and kills it when its next write is done. Returns whether it had one; if not, it has
    /// succeeded.
    pub async fn is_cut_off(&self, flags: &[&str]) -> Result<bool> {
        let (is_dead, written) = (AtomicBool::new(false), Arc::new(Notify::new()));
        let (is_dead, signal) = (Arc::new(is_dead), Arc::clone(&written));
        let fate = move |call: &Call| {
            if is_dead.load(Ordering::Relaxed) {
                Fate::Lost
            } else if call.is_write() {
                is_dead.store(true, Ordering::Relaxed);
                signal.notify_one();
                Fate::Unanswered
            } else {
                Fate::Served
            }
        };
        let client = Client::new(self.world.management.service("capcmi", fate), "default");
        tokio::select! {
            ended = self.run(client, flags) => {
                ended?.map_err(|error| anyhow!(error.message()))?;
                Ok(false)
            }
            () = written.notified() => Ok(true),
        }
    }

    /// Waits until there are so many Machines, each with its VM.
    pub async fn runs(&self, count: usize) -> Result<()> {
        eventually(DEADLINE, &format!("{count} machines"), async || {
            let machines = self.ours_of("Machine").list(&ListParams::default()).await?.items;
            let infra = infra_machines(&self.world)
                .list(&ListParams::default())
                .await?
                .items;
            let up = infra.iter().filter(|machine| is_provisioned(machine)).count();
            ensure!(
                (machines.len(), infra.len(), up) == (count, count, count),
                "{} Machines, {up} of {} InfraMachines are up",
                machines.len(),
                infra.len()
            );
            Ok(())
        })
        .await
    }

    /// Since the start, the driver was called to create or delete no VM.
    pub fn changed_no_vm(&self) -> Result<()> {
        let mut calls = self.cloud.calls()?;
        calls.retain(|call| call.phase == Phase::Started && call.operation.writes());
        calls.retain(|call| call.operation != Operation::GenerateMachineClassForMigration);
        ensure!(calls.is_empty(), "{calls:?}");
        Ok(())
    }

    /// Kind and name of all objects of Cluster API and of this provider, except for Clusters.
    pub async fn made(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for object in self.ours().await? {
            names.push(format!("{}/{}", kind_of(&object), object.name_any()));
        }
        Ok(names)
    }

    /// All objects of Cluster API and of this provider, except for Clusters.
    pub async fn ours(&self) -> Result<Vec<DynamicObject>> {
        let kinds = [
            "Machine",
            "MachineSet",
            "MachineDeployment",
            "InfraMachine",
            "InfraMachineTemplate",
        ];
        let mut all = Vec::new();
        for kind in kinds {
            all.extend(self.ours_of(kind).list(&ListParams::default()).await?.items);
        }
        Ok(all)
    }

    /// Objects of a kind of Cluster API or of this provider.
    pub fn ours_of(&self, kind: &str) -> Api<DynamicObject> {
        let (group, version) = if kind.starts_with("Infra") {
            ("infrastructure.capcmi.io", "v1alpha1")
        } else {
            ("cluster.x-k8s.io", "v1beta2")
        };
        objects(&self.world, group, version, kind)
    }

    /// Objects of a kind of machine-controller-manager.
    pub fn theirs_of(&self, kind: &str) -> Api<DynamicObject> {
        objects(&self.world, GROUP, "v1alpha1", kind)
    }

    /// All objects of machine-controller-manager, without their resource versions.
    pub async fn theirs(&self) -> Result<Vec<DynamicObject>> {
        let mut all = Vec::new();
        for kind in ["MachineClass", "MachineDeployment", "MachineSet", "Machine"] {
            all.extend(self.theirs_of(kind).list(&ListParams::default()).await?.items);
        }
        for object in &mut all {
            object.metadata.resource_version = None;
        }
        Ok(all)
    }

    /// The resource versions of all that a run may write, and that no controller goes on writing.
    pub async fn versions(&self) -> Result<Vec<Option<String>>> {
        let mut all = self
            .ours_of("InfraMachineTemplate")
            .list(&ListParams::default())
            .await?
            .items;
        let secrets = objects(&self.world, "", "v1", "Secret");
        all.extend(secrets.list(&ListParams::default()).await?.items);
        for kind in ["MachineClass", "MachineDeployment", "MachineSet", "Machine"] {
            all.extend(self.theirs_of(kind).list(&ListParams::default()).await?.items);
        }
        Ok(all.iter().map(kube::ResourceExt::resource_version).collect())
    }

    /// Applies a merge patch to an object of Cluster API or of this provider.
    pub async fn patch(&self, kind: &str, name: &str, patch: Value) -> Result<()> {
        let patched = self
            .ours_of(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched
            .map(drop)
            .with_context(|| format!("patching {kind} {name}"))
    }

    pub async fn scale(&self, kind: &str, name: &str, replicas: usize) -> Result<()> {
        self.patch(kind, name, json!({"spec": {"replicas": replicas}}))
            .await
    }
}
fn kind_of(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}
