//! `capcmi migrate`: turns machines of machine-controller-manager into machines of Cluster API, with their
//! VMs.

mod print;
mod read;
mod undo;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::Args;
use kube::api::DynamicObject;
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use self::print::{described, listed};
use crate::migration::controller::Stopped;
use crate::migration::error::WriteError;
use crate::migration::health_checks::health_checks;
use crate::migration::plan::{Destination, plan};
use crate::migration::source::{CLASS, Source};
use crate::migration::write;
use capcmi::api::{annotations, cluster_api};
use capcmi::apiserver::dynamic;
use capcmi::driver::Settings;
use capcmi::manager::cli::drivers::BuiltDrivers;
use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _, api_server, drivers};
use cmi_driver::{
    Capabilities, Driver, GenerateMachineClassForMigrationRequest, MachineClassKind, Operation,
};

/// Migrate the machines of Gardener's machine-controller-manager to Cluster API. Their VMs are adopted and
/// not touched; a run that was cut off is taken up by the next, and one after the end does nothing.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag of its own
pub struct MigrateArgs {
    /// Drivers file.
    #[arg(long, env = "CAPCMI_DRIVERS_CONFIG", value_name = "FILE")]
    drivers_config: PathBuf,
    /// Driver that has the VMs; required if the file has several.
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// Existing Cluster that the machines become part of.
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Kubeconfig of the management cluster. Default: KUBECONFIG, ~/.kube/config or the pod's service
    /// account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Cluster.
    #[arg(short, long, default_value = "default", value_name = "NAMESPACE")]
    namespace: String,
    /// Kubeconfig of the cluster with the objects of machine-controller-manager. Default: the management
    /// cluster.
    #[arg(long, value_name = "FILE", conflicts_with = "filename")]
    from_kubeconfig: Option<PathBuf>,
    /// Namespace of these objects. Default: the namespace of the Cluster or, with --filename, all of the
    /// files.
    #[arg(long, value_name = "NAMESPACE")]
    from_namespace: Option<String>,
    /// Read these objects and their Secrets from a YAML or JSON file. Can be repeated.
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Secret in the namespace with the bootstrap data of new machines, instead of `userData` of the classes.
    #[arg(long, value_name = "NAME")]
    bootstrap_secret: Option<String>,
    /// Copy Secrets that a class names in another namespace. The author of a class may not be allowed to read
    /// them.
    #[arg(long)]
    secrets_of_other_namespaces: bool,
    /// Confirm that machine-controller-manager and its provider's controller are scaled to 0. Nothing is
    /// written without this flag, or while a Lease shows a running one.
    #[arg(long)]
    machine_controller_manager_is_stopped: bool,
    /// Undo a migration, with the same flags: delete its objects and keep the VMs for
    /// machine-controller-manager. Nothing is undone if a machine changed after the migration. Reads the
    /// cluster of machine-controller-manager, not files.
    #[arg(long, conflicts_with = "filename")]
    undo: bool,
    /// Print the plan and write nothing.
    #[arg(long)]
    dry_run: bool,
}

/// The drivers and clusters of a migration.
pub struct Places {
    /// The drivers of the drivers file.
    pub drivers: BuiltDrivers,
    /// The management cluster.
    pub management: Client,
    /// The cluster with the objects of machine-controller-manager.
    pub from: Client,
}

pub(super) async fn execute(args: MigrateArgs) -> Result<(), CommandError> {
    let drivers = drivers::load(&args.drivers_config)?;
    let management = client(args.kubeconfig.clone()).await?;
    let from = match &args.from_kubeconfig {
        None => management.clone(),
        Some(path) => client(Some(path.clone())).await?,
    };
    let places = Places {
        drivers,
        management,
        from,
    };
    run(&args, places, &print_line).await
}

/// Runs the command in these places. The flags that name files for them have no effect. `print_line` receives
/// the output.
///
/// # Errors
/// Why the migration is not possible, or its first failure.
pub async fn run(args: &MigrateArgs, places: Places, print_line: &dyn Fn(&str)) -> Result<(), CommandError> {
    let client = places.management;
    let (settings, driver) = driver(args, places.drivers)?;
    let driver_name = settings.name.clone();
    let declared = driver.get_plugin_capabilities().await;
    let declared =
        declared.with_context(|| format!("cannot get the capabilities of driver {driver_name}"))?;
    let capabilities = declared.capabilities;
    if !capabilities.supports(Operation::GetMachineStatus) {
        return Err(CommandError::Misconfigured(anyhow!(
            "driver {driver_name} does not implement GetMachineStatus, which is required to confirm the \
                adopted VMs"
        )));
    }
    let from = Origin::of(args, places.from);
    let mut source = match &from {
        Origin::Files(paths) => read::files(paths, args.from_namespace.as_deref()).misconfigured()?,
        Origin::Cluster { client, namespace } => {
            read::cluster(client, namespace, args.secrets_of_other_namespaces).await?
        }
    };
    if source.machines.is_empty() && source.sets.is_empty() && source.deployments.is_empty() {
        return Err(CommandError::Misconfigured(anyhow!(
            "nothing to migrate: {} has no Machine, MachineSet or MachineDeployment of machine.sapcloud.io",
            from.in_words()
        )));
    }
    convert(&mut source, &driver_name, &*driver, &capabilities).await?;
    let target = Destination {
        namespace: args.namespace.clone(),
        cluster: args.cluster.clone(),
        driver: driver_name,
        bootstrap_secret: args.bootstrap_secret.clone(),
        secrets_of_other_namespaces: args.secrets_of_other_namespaces,
    };
    ensure_cluster_exists(&client, &target).await?;
    let migration = plan(&source, &target, &capabilities).map_err(|problems| {
        CommandError::Misconfigured(anyhow!(
            "nothing was written, because the migration is not possible:{}",
            listed(&problems)
        ))
    })?;
    if args.undo {
        let undo = undo::Undo {
            args,
            client: &client,
            from: &from,
            migration: &migration,
            target: &target,
            print_line,
        };
        return undo.run(settings, driver).await;
    }
    let marks = matches!(from, Origin::Cluster { .. });
    let progress = write::progress(&client, &migration, marks).await?;
    let checks = health_checks(&client, &migration, &progress, &target).await?;
    print_line(described(&migration, &progress, &target, &checks).trim_end());
    if args.dry_run {
        print_line("\nNothing was written (--dry-run).");
        return Ok(());
    }
    if progress.is_complete(&migration) {
        print_line("\nEverything was already migrated.");
    } else {
        let old = from.stopped(args).await?;
        print_line("");
        write::write(
            &client,
            &migration,
            &progress,
            old.as_ref(),
            &target.mark(),
            print_line,
        )
        .await
        .map_err(failed)?;
    }
    if let Origin::Cluster { client, namespace } = &from {
        write::mark(client, namespace, &migration, &target.mark()).await?;
    }
    print_line(
        "Wait for the condition Ready of the InfraMachines. Do not start machine-controller-manager again, \
            and do not delete its objects before their finalizers are removed: see \
            docs/how-to/migrate-from-machine-controller-manager.md.",
    );
    Ok(())
}

/// Where the objects of machine-controller-manager are.
enum Origin {
    Files(Vec<PathBuf>),
    Cluster { client: Client, namespace: String },
}

impl Origin {
    fn of(args: &MigrateArgs, from: Client) -> Self {
        if !args.filename.is_empty() {
            return Self::Files(args.filename.clone());
        }
        let namespace = args.from_namespace.as_ref().unwrap_or(&args.namespace).clone();
        Self::Cluster {
            client: from,
            namespace,
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Files(_) => "the input of --filename".to_owned(),
            Self::Cluster { namespace, .. } => format!("namespace {namespace}"),
        }
    }

    /// Checks that machine-controller-manager is stopped: a running controller would delete the VMs, through
    /// its own objects or as orphans. Returns `None` if the objects come from files.
    async fn stopped(&self, args: &MigrateArgs) -> Result<Option<Stopped>, CommandError> {
        if !args.machine_controller_manager_is_stopped {
            return Err(CommandError::Misconfigured(anyhow!(
                "machine-controller-manager may be running and would delete the migrated VMs: scale it and \
                    its provider's controller to 0, and confirm with --machine-controller-manager-is-stopped"
            )));
        }
        match self {
            Self::Files(_) => Ok(None),
            Self::Cluster { client, namespace } => {
                Stopped::at(client, namespace).await.map(Some).map_err(failed)
            }
        }
    }
}

async fn client(kubeconfig: Option<PathBuf>) -> Result<Client, CommandError> {
    Client::try_from(api_server(kubeconfig).await?).misconfigured()
}

/// Returns the driver that has the VMs.
fn driver(args: &MigrateArgs, all: BuiltDrivers) -> Result<(Settings, Arc<dyn Driver>), CommandError> {
    let names: Vec<_> = all.iter().map(|(settings, _)| settings.name.clone()).collect();
    let wanted = match (&args.driver, names.as_slice()) {
        (Some(name), _) => name.clone(),
        (None, [only]) => only.clone(),
        (None, _) => {
            return Err(CommandError::Misconfigured(anyhow!(
                "several drivers are configured: choose the one that has the VMs with --driver: {}",
                names.join(", ")
            )));
        }
    };
    let found = all.into_iter().find(|(settings, _)| *settings.name == *wanted);
    let file = args.drivers_config.display();
    found
        .with_context(|| format!("{file} has no driver {wanted}"))
        .misconfigured()
}

/// Has the driver convert the classes of a provider's own kind, as the CMI specification defines it.
async fn convert(
    source: &mut Source,
    name: &str,
    driver: &dyn Driver,
    capabilities: &Capabilities,
) -> Result<(), CommandError> {
    for key in source.used_classes().into_iter().filter(|key| key.kind != CLASS) {
        let Some(own) = source.classes.get(&key).cloned() else {
            continue;
        };
        let what = format!("{} {}", key.kind, key.name);
        if !capabilities.supports(Operation::GenerateMachineClassForMigration) {
            return Err(CommandError::Misconfigured(anyhow!(
                "driver {name} does not implement GenerateMachineClassForMigration, which {what} requires: \
                    migrate it to a MachineClass first"
            )));
        }
        let mut fields = serde_json::Map::new();
        let metadata = own.get("metadata").cloned().unwrap_or_default();
        fields.insert("metadata".to_owned(), metadata.clone());
        let request = GenerateMachineClassForMigrationRequest {
            provider_specific_machine_class: own,
            machine_class: fields,
            class_kind: MachineClassKind {
                api_group: crate::migration::source::GROUP.to_owned(),
                kind: key.kind.clone(),
            },
        };
        let class = driver.generate_machine_class_for_migration(request).await;
        let mut class = class.with_context(|| format!("driver {name} cannot convert {what}"))?;
        // The metadata stays: the driver does not decide which object the class is.
        class.insert("metadata".to_owned(), metadata);
        source.classes.insert(key, class);
    }
    Ok(())
}

/// Checks that the Cluster exists and can take machines. The user creates it first, as Cluster API requires.
async fn ensure_cluster_exists(client: &Client, target: &Destination) -> Result<(), CommandError> {
    let api = dynamic(
        client,
        &target.namespace,
        cluster_api::GROUP,
        "v1beta2",
        "Cluster",
    );
    let what = format!("Cluster {}/{}", target.namespace, target.cluster);
    let found = api.get_opt(&target.cluster).await;
    let found = found.with_context(|| format!("cannot read {what}"))?;
    let Some(found) = found else {
        return Err(CommandError::Misconfigured(anyhow!(
            "{what} does not exist: create it first, with an InfraCluster, the endpoint of the control \
                plane, and Secret {}-kubeconfig",
            target.cluster
        )));
    };
    match unfit(&found) {
        Some(why) => Err(CommandError::Misconfigured(anyhow!("{what} {why}"))),
        None => Ok(()),
    }
}

/// Returns why a Cluster can't take machines; `None` where it can.
fn unfit(cluster: &DynamicObject) -> Option<&'static str> {
    if cluster.metadata.deletion_timestamp.is_some() {
        Some("is being deleted, and would delete the VMs: use another Cluster")
    } else if cluster.data["spec"]["paused"] == Value::Bool(true) {
        Some("is paused by spec.paused: resume it")
    } else if cluster.annotations().contains_key(annotations::PAUSED) {
        Some("is paused by annotation cluster.x-k8s.io/paused: remove it")
    } else {
        None
    }
}

fn failed(error: WriteError) -> CommandError {
    match error {
        WriteError::Running(_) => CommandError::Misconfigured(error.into()),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_that_is_paused_or_deleted_takes_up_no_machines() {
        let unfit = |metadata: Value, spec: Value| {
            let cluster = json!({"metadata": metadata, "spec": spec});
            super::unfit(&serde_json::from_value(cluster).unwrap()).unwrap_or("nothing")
        };
        assert_eq!(unfit(json!({}), json!({"paused": false})), "nothing");
        assert!(unfit(json!({}), json!({"paused": true})).contains("spec.paused"));
        let annotated = json!({"annotations": {"cluster.x-k8s.io/paused": ""}});
        assert!(unfit(annotated, json!({})).contains("annotation"));
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert!(unfit(deleted, json!({})).contains("being deleted"));
    }
}
