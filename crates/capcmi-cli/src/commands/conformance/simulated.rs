//! The simulated driver as the suite's own example: a complete configuration, and every hook.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use serde_json::json;
use tempfile::TempDir;

use cmi_conformance::{Config, Hook, HookCall, Hooks};
use cmi_simulated::{CloudConsole, Condition, PlantedVm, SimulatedConfig, SimulatedDriver, Vm, VmId};

/// The suite's configuration for the driver.
const CONFIG: &str = include_str!("simulated.yaml");
/// The configuration of the cloud, which is fast and has a pool and a zone without capacity.
const CLOUD: &str = "
zones: [zone-a, zone-b, zone-c, zone-full]
pools:
  default: {subnet: 10.100.0.0/16, zoneCapacity: {zone-full: 0}}
  full: {subnet: 10.101.0.0/24, capacity: 0}
bootSeconds: 0.02
bootJitterSeconds: 0
shutDownSeconds: 0.03
deleteSeconds: 0.03
addsMachineTag: true
credentials:
  token: conformance-token-of-an-operator
  readOnlyToken: conformance-token-of-a-reader
  powerlessToken: conformance-token-without-rights
";

/// A simulated driver, with the configuration and hooks that the suite needs.
pub struct Simulated {
    /// The driver.
    pub driver: Arc<SimulatedDriver>,
    /// The suite's configuration for the driver.
    pub config: Config,
    /// The hooks that cause its faults.
    pub hooks: Arc<dyn Hooks>,
}

/// The hooks: a faults file that only this driver reads, and the console of its cloud.
pub struct SimulatedHooks {
    driver: Arc<SimulatedDriver>,
    console: CloudConsole,
    folder: TempDir,
}

impl Simulated {
    /// Creates a driver with its own cloud.
    ///
    /// # Errors
    /// The files of the driver cannot be created.
    pub fn new() -> Result<Self> {
        let folder =
            TempDir::with_prefix("capcmi-conformance-").context("cannot create a folder for faults")?;
        let mut cloud: SimulatedConfig = serde_saphyr::from_str(CLOUD)?;
        cloud.faults_file = Some(folder.path().join("faults"));
        cloud.call_log = Some(folder.path().join("calls"));
        let mut config = Config::read(CONFIG)?;
        config.logs = vec![folder.path().join("calls")];
        let driver = Arc::new(SimulatedDriver::new(cloud)?);
        let console = driver.console();
        let hooks = SimulatedHooks {
            driver: Arc::clone(&driver),
            console,
            folder,
        };
        Ok(Self {
            driver,
            config,
            hooks: Arc::new(hooks),
        })
    }
}

impl SimulatedHooks {
    /// Replaces the faults by one rename, so that no call reads a partial file.
    fn faults(&self, yaml: &str) -> Result<()> {
        let (new, path): (PathBuf, PathBuf) = (
            self.folder.path().join("faults.new"),
            self.folder.path().join("faults"),
        );
        fs::write(&new, yaml).context("cannot write the faults")?;
        fs::rename(&new, &path).context("cannot replace the faults")
    }

    fn vm(&self, call: &HookCall) -> Result<VmId> {
        self.console
            .look(|cloud, _| cloud.named(&call.cluster, &call.machine).next().map(|vm| vm.id))?
            .with_context(|| format!("cluster {} has no VM {}", call.cluster, call.machine))
    }

    /// Returns the fields that UpdateMachine can change, and the tags, which it cannot change.
    fn vm_spec(&self, call: &HookCall) -> Result<Vec<u8>> {
        let id = self.vm(call)?;
        let has = |vm: &Vm| json!({"labels": vm.labels, "tags": vm.tags});
        let has = self.console.look(|cloud, _| cloud.vm(id).map(has))?;
        Ok(has.context("the VM does not exist")?.to_string().into_bytes())
    }

    fn user_data(&self, call: &HookCall) -> Result<Vec<u8>> {
        let id = self.vm(call)?;
        let data = self
            .console
            .look(|cloud, _| cloud.vm(id).map(|vm| vm.user_data.expose().to_vec()))?;
        data.context("the VM does not exist")
    }
}

#[async_trait]
impl Hooks for SimulatedHooks {
    fn supports(&self, _hook: Hook) -> bool {
        true
    }

    async fn run(&self, call: &HookCall) -> Result<Vec<u8>> {
        match call.hook {
            Hook::Unavailable => self.faults("[{code: Unavailable}]")?,
            Hook::Unknown => self.faults("[{code: Unknown}]")?,
            Hook::Internal => self.faults("[{code: Internal}]")?,
            Hook::Slow => self.faults(&format!("[{{latencyMs: {}}}]", call.amount))?,
            Hook::LoseResponse => self.faults(
                "[{operation: CreateMachine, count: 1, loseResponse: Unavailable},
                  {operation: DeleteMachine, count: 1, loseResponse: Unavailable}]",
            )?,
            Hook::FailInitialize => self.faults(&format!(
                "[{{operation: InitializeMachine, count: {}, code: Uninitialized}}]",
                call.amount
            ))?,
            Hook::Unhealthy => self.faults("[{operation: Probe, code: FailedPrecondition}]")?,
            Hook::Starting => self.faults("[{operation: Probe, notReady: true}]")?,
            Hook::Exhaust => self.console.set_quota(Some(0))?,
            Hook::Restore => {
                self.faults("[]")?;
                self.console.set_quota(None)?;
            }
            Hook::Restart => self.driver.restart(),
            Hook::Plant => {
                let planted = PlantedVm::new(&call.cluster, &call.machine, &call.identity);
                return Ok(self.console.plant(planted)?.into_bytes());
            }
            Hook::Lock => self.console.set_condition(self.vm(call)?, Condition::Locked)?,
            Hook::Unlock => self.console.set_condition(self.vm(call)?, Condition::Sound)?,
            Hook::Vanish => self.console.vanish(self.vm(call)?)?,
            Hook::Uninitialize => self.console.set_source_dest_check(self.vm(call)?, true)?,
            Hook::Mutations => return Ok(self.console.mutations()?.to_string().into_bytes()),
            Hook::UserData => return self.user_data(call),
            Hook::VmSpec => return self.vm_spec(call),
        }
        Ok(Vec::new())
    }
}
