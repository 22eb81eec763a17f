//! `capcmi migrate --undo`: returns the VMs to machine-controller-manager.
//!
//! The look-up of a VM does not use [`capcmi::reconcile::driver_query`]: the command waits for its permit,
//! and uses the credentials of machine-controller-manager, if any.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use kube::Client;

use super::print::{headed, listed};
use super::{MigrateArgs, Origin, failed};
use crate::migration::plan::{Destination, Migration, Object};
use crate::migration::source::text;
use crate::migration::undo::{self, MigratedObjects, Vm};
use crate::observed_vm::{ObservedVm, observe_vm};
use capcmi::apiserver::leadership::Leadership;
use capcmi::driver::{ConfiguredDriver, Priority, Settings};
use capcmi::manager::cli::{CommandError, ResultExt as _};
use capcmi::telemetry::metrics::Metrics;
use cmi_driver::{Driver, MachineClass, MachineRef};

/// The inputs of an undo.
pub(super) struct Undo<'a> {
    pub args: &'a MigrateArgs,
    pub client: &'a Client,
    pub from: &'a Origin,
    pub migration: &'a Migration,
    pub target: &'a Destination,
    pub print_line: &'a dyn Fn(&str),
}

impl Undo<'_> {
    pub(super) async fn run(&self, settings: Settings, driver: Arc<dyn Driver>) -> Result<(), CommandError> {
        let print_line = self.print_line;
        // A command is no replica, and does not have to be the leader.
        let driver = &ConfiguredDriver::new(
            settings,
            driver,
            Leadership::unelected(),
            Arc::new(Metrics::new()),
        );
        let remains = self.examined(driver, "nothing was undone").await?;
        if remains.is_nothing(self.migration) {
            print_line("Nothing of this migration exists, so there is nothing to undo.");
            return Ok(());
        }
        print_line(self.described(&remains).trim_end());
        if self.args.dry_run {
            print_line("\nNothing was written (--dry-run).");
            return Ok(());
        }
        let old = self.from.stopped(self.args).await?;
        let old = old
            .context("the objects of machine-controller-manager come from files")
            .misconfigured()?;
        print_line("");
        undo::pause(self.client, self.migration, &remains)
            .await
            .map_err(failed)?;
        // Cluster API may have worked on the objects until they were paused.
        self.examined(driver, "all objects are paused, and no VM was released")
            .await?;
        undo::release(self.client, self.migration, self.target, &old, print_line)
            .await
            .map_err(failed)?;
        print_line(
            "machine-controller-manager owns all VMs again. Check the VMs at the back end, then start \
                machine-controller-manager and its provider's controller.",
        );
        Ok(())
    }

    /// Returns the objects of the migration that exist, unless something prevents the undo.
    async fn examined(
        &self,
        driver: &ConfiguredDriver,
        so_far: &str,
    ) -> Result<MigratedObjects, CommandError> {
        let remains = MigratedObjects::of(self.client, self.migration, self.target).await;
        let remains = remains.map_err(failed)?;
        let vms = if remains.is_nothing(self.migration) {
            BTreeMap::new()
        } else {
            self.vms(driver, &remains).await
        };
        let problems = remains.problems(self.migration, &vms);
        if problems.is_empty() {
            return Ok(remains);
        }
        Err(CommandError::Misconfigured(anyhow!(
            "{so_far}, because objects changed since the migration:{}",
            listed(&problems)
        )))
    }

    /// Asks the driver about every VM, also where the InfraMachine does not exist: an earlier run may have
    /// released the VM, or the InfraMachine was deleted together with it.
    async fn vms(&self, driver: &ConfiguredDriver, remains: &MigratedObjects) -> BTreeMap<String, Vm> {
        let groups = self.migration.groups.iter();
        let mut vms = BTreeMap::new();
        for object in groups.flat_map(|group| group.of_kind("InfraMachine")) {
            let class = match self.class_of(object, remains) {
                Ok(class) => with_credentials(driver, class).await,
                Err(why) => Err(why),
            };
            let vm = match class {
                Ok(class) => observe(driver, object, class).await,
                Err(why) => Vm::Unknown(why),
            };
            vms.insert(object.name.clone(), vm);
        }
        vms
    }

    /// Returns the class for the look-up of a VM: the class of machine-controller-manager, with the applied
    /// provider spec from the InfraMachine's record, if there is one.
    ///
    /// # Errors
    /// The recorded provider spec cannot be read.
    fn class_of(&self, object: &Object, remains: &MigratedObjects) -> Result<MachineClass, String> {
        let from = text(
            &object.body,
            "/metadata/annotations/cluster.x-k8s.io~1cloned-from-name",
        );
        let mut classes = self.migration.classes.iter();
        let class = classes.find(|class| class.key.name == from);
        let mut mcm_class = class.map(|class| class.mcm_class.clone()).unwrap_or_default();
        let applied = remains.applied_spec(object).map_err(|error| error.to_string())?;
        if let Some(applied) = applied {
            mcm_class.provider_spec = applied;
        }
        Ok(mcm_class)
    }

    fn described(&self, remains: &MigratedObjects) -> String {
        let groups = self.migration.groups.iter();
        let machines = groups.flat_map(|group| group.of_kind("InfraMachine"));
        let released = machines.filter(|object| remains.has(object)).count();
        let Destination {
            namespace,
            cluster,
            driver,
            ..
        } = self.target;
        let mut text = format!(
            "Cluster {namespace}/{cluster}, driver {driver}: {released} VMs are released and not changed\n"
        );
        let line = |object: &Object| {
            let what = match (remains.has(object), object.kind) {
                (false, _) => "is gone ",
                (true, "InfraMachine") => "release ",
                (true, _) => "delete  ",
            };
            format!("{what} {object}")
        };
        for group in &self.migration.groups {
            headed(&mut text, &group.from, group.objects(), line);
        }
        for class in &self.migration.classes {
            let from = format!("{} {}", class.key.kind, class.key.name);
            headed(&mut text, &from, class.objects.iter(), line);
        }
        text
    }
}

/// Adds the driver's own credentials where the class has none, as a reconcile does.
async fn with_credentials(
    driver: &ConfiguredDriver,
    mut class: MachineClass,
) -> Result<MachineClass, String> {
    if class.secrets.iter().next().is_none() {
        class.secrets = driver.credentials().await.map_err(|error| error.to_string())?;
    }
    Ok(class)
}

/// Asks the driver whether the VM that the migration has found exists.
async fn observe(driver: &ConfiguredDriver, object: &Object, class: MachineClass) -> Vm {
    let id = text(&object.body, "/spec/providerID");
    let permit = driver.acquire(Priority::Upkeep, &object.name).await;
    if let Err(status) = permit.fetch_capabilities().await {
        return Vm::Unknown(format!("{}: {}", status.code(), status.message()));
    }
    let machine = MachineRef::new(&object.name, class);
    let found = match observe_vm(&permit, machine, id.parse().ok()).await {
        Ok(ObservedVm::Present(machine) | ObservedVm::Uninitialized(machine)) => machine.provider_id,
        Ok(ObservedVm::Absent) => return Vm::Absent,
        Err(status) => return Vm::Unknown(format!("{}: {}", status.code(), status.message())),
    };
    if found.as_str() == id {
        Vm::Present
    } else {
        Vm::Unknown(format!("the driver reports VM {found}, expected {id}"))
    }
}
