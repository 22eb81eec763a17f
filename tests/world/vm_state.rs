//! Addresses and power of a VM that runs: the status follows the VM for its whole life.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations::REFRESH;
use capcmi::api::conditions::{READY, VIRTUAL_MACHINE_RUNNING, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::{Address, AddressType, Operation};
use cmi_simulated::VmId;
use kube::api::{Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::audit::{Write, writes};
use crate::support::by_hand::{event, message, says};
use crate::support::fleet::{node_is, objects};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, Stage, World};

const A_DAY: Duration = Duration::from_hours(24);
/// Longer than every wait of the provider.
const HOURS: Duration = Duration::from_hours(4);
/// The interval of lists.
const INTERVAL: Duration = Duration::from_mins(1);
/// Many times as long as the interval of lists.
const A_WHILE: Duration = Duration::from_mins(5);

/// A machine that runs in a simulated cloud.
struct Life {
    world: World,
    cloud: Cloud,
    provider: Provider,
    replica: Replica,
    machine: ByHand,
}

impl Life {
    /// Brings the machine up. `cloud` is the configuration of the cloud, and `power` the power policy.
    async fn begin(
        case: &str,
        config: Value,
        power: Value,
        provider: impl FnOnce(Provider) -> Provider,
    ) -> Result<Self> {
        let world = World::new(case).await?;
        let cloud = Cloud::new(&world);
        let plain = Provider::new(cloud.drivers(config));
        let provider = provider(plain.with(|options| options.inventory_interval = INTERVAL));
        let replica = provider.start(&world).await?;
        let machine = Stage::set(&world).await?.machine("m");
        let machine = machine.infra("/spec/powerPolicy", power).create().await?;
        machine.provisioned().await?;
        Ok(Self {
            world,
            cloud,
            provider,
            replica,
            machine,
        })
    }

    async fn plain(case: &str) -> Result<Self> {
        Self::begin(case, json!({}), json!(null), |provider| provider).await
    }

    /// A driver whose lists have no state, and a provider that refreshes at most so many machines.
    async fn without_state_in_lists(case: &str, max: usize) -> Result<Self> {
        let config = json!({"listHasState": false});
        Self::begin(case, config, json!(null), |provider| {
            provider.with(|options| options.max_refreshed_machines = max)
        })
        .await
    }

    fn vm(&self) -> Result<VmId> {
        Ok(self.cloud.vms()?.first().context("there is no VM")?.id)
    }

    fn set_ips(&self, ips: &[&str]) -> Result<()> {
        let address = |ip: &&str| Address {
            kind: AddressType::InternalIP,
            address: (*ip).to_owned(),
        };
        let addresses = ips.iter().map(address).collect();
        Ok(self.cloud.console()?.set_addresses(self.vm()?, addresses)?)
    }

    /// Changes the spec of the Cluster.
    async fn cluster(&self, spec: Value) -> Result<()> {
        let clusters = objects(&self.world, "cluster.x-k8s.io", "v1beta2", "Cluster");
        let patch = Patch::Merge(json!({"spec": spec}));
        let patched = clusters.patch("c", &PatchParams::default(), &patch).await;
        patched.context("patching the Cluster").map(drop)
    }

    fn switch(&self, on: bool) -> Result<()> {
        Ok(self.cloud.console()?.switch(self.vm()?, on)?)
    }

    /// Waits until the status shows these IP addresses.
    async fn shows(&self, ips: &[&str]) -> Result<InfraMachine> {
        let shown = |machine: &InfraMachine| shown_ips(machine) == ips;
        self.machine.until(&format!("the addresses {ips:?}"), shown).await
    }

    async fn shown(&self) -> Result<Vec<String>> {
        Ok(shown_ips(&self.machine.get().await?))
    }

    /// Asks for a look-up with an annotation that has not had this value yet, and waits for the look-up.
    async fn refresh(&self, value: impl std::fmt::Debug) -> Result<()> {
        let look_ups = self.look_ups()?;
        let annotation = json!({"metadata": {"annotations": {REFRESH: format!("{value:?}")}}});
        self.machine.patch(annotation).await?;
        eventually(DEADLINE, "a look-up", async || {
            ensure!(self.look_ups()? > look_ups, "there was none");
            Ok(())
        })
        .await
    }

    fn look_ups(&self) -> Result<usize> {
        self.cloud.count(Operation::GetMachineStatus, "m")
    }

    fn starts(&self) -> Result<usize> {
        self.cloud.count(Operation::RestartMachine, "m")
    }

    /// The number of writes to the machine's status.
    fn status_writes(&self) -> usize {
        let writes = writes(&self.world);
        let is_status = |write: &&Write| write.resource == "inframachines/status";
        writes.iter().filter(is_status).count()
    }
}

fn shown_ips(machine: &InfraMachine) -> Vec<String> {
    let addresses = machine.status.iter().flat_map(|status| &status.addresses);
    addresses
        .filter(|address| address.type_.ends_with("IP"))
        .map(|address| address.address.clone())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn each_change_of_addresses_costs_a_look_up_and_a_write() -> Result<()> {
    let life = Life::plain("addresses").await?;
    tokio::time::sleep(A_WHILE).await;
    let (mut writes, mut look_ups) = (life.status_writes(), life.look_ups()?);
    let changes = [
        (&["10.9.0.2"][..], &["10.9.0.2"][..]),
        (&["10.9.0.2", "fd00::2"], &["10.9.0.2", "fd00::2"]),
        (&["10.9.0.3", "fe80::1", "127.0.0.1"], &["10.9.0.3"]),
    ];
    for (ips, expected) in changes {
        life.set_ips(ips)?;
        life.shows(expected).await?;
        tokio::time::sleep(A_WHILE).await;
        let costs = (life.status_writes() - writes, life.look_ups()? - look_ups);
        ensure!(costs == (1, 1), "{ips:?}: {costs:?} writes and look-ups");
        (writes, look_ups) = (life.status_writes(), life.look_ups()?);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_list_that_changes_nothing_in_the_status_costs_nothing() -> Result<()> {
    let life = Life::plain("silent").await?;
    life.set_ips(&["10.9.0.2"])?;
    life.shows(&["10.9.0.2"]).await?;
    tokio::time::sleep(A_WHILE).await;
    let costs = (life.status_writes(), life.look_ups()?);
    // A silent guest agent, and an address of no use.
    for ips in [&[][..], &["10.9.0.2", "fe80::1"]] {
        life.set_ips(ips)?;
        tokio::time::sleep(A_WHILE).await;
        ensure!(life.shown().await? == ["10.9.0.2"], "{ips:?}");
    }
    ensure!(
        (life.status_writes(), life.look_ups()?) == costs,
        "it was looked up"
    );
    Ok(())
}

/// The endpoint moves between machines. On a machine whose guest agent is silent, it is all that is seen.
#[tokio::test(start_paused = true)]
async fn the_endpoint_of_the_cluster_is_no_address_of_a_machine() -> Result<()> {
    let life = Life::plain("endpoint").await?;
    node_is(&life.world, "m", "True").await?;
    let endpoint = json!({"host": "10.9.0.100", "port": 6443});
    life.cluster(json!({"controlPlaneEndpoint": endpoint})).await?;
    life.set_ips(&["10.9.0.2"])?;
    life.shows(&["10.9.0.2"]).await?;
    let writes = life.status_writes();
    for ips in [&["10.9.0.2", "10.9.0.100"][..], &["10.9.0.100"], &[]] {
        life.set_ips(ips)?;
        life.refresh(ips).await?;
        tokio::time::sleep(A_WHILE).await;
        ensure!(
            life.shown().await? == ["10.9.0.2"],
            "{ips:?}: {:?}",
            life.shown().await?
        );
    }
    ensure!(life.status_writes() == writes, "it was written");
    life.set_ips(&["10.9.0.100", "10.9.0.3"])?;
    life.shows(&["10.9.0.3"]).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_family_of_the_services_comes_first() -> Result<()> {
    let life = Life::plain("families").await?;
    // Nothing else changes the machine.
    node_is(&life.world, "m", "True").await?;
    life.set_ips(&["fd00::2", "10.9.0.2"])?;
    life.shows(&["10.9.0.2", "fd00::2"]).await?;
    tokio::time::sleep(A_WHILE).await;
    let services = json!({"cidrBlocks": ["fd01::/112", "10.96.0.0/12"]});
    life.cluster(json!({"clusterNetwork": {"services": services}}))
        .await?;
    life.shows(&["fd00::2", "10.9.0.2"]).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_restart_finds_what_changed_meanwhile() -> Result<()> {
    let mut life = Life::plain("meanwhile").await?;
    life.replica.terminate().await?;
    life.set_ips(&["10.9.0.2"])?;
    life.replica = life.provider.start(&life.world).await?;
    life.shows(&["10.9.0.2"]).await?;

    // A guest agent that is silent at the restart costs no address.
    life.replica.terminate().await?;
    life.set_ips(&[])?;
    life.replica = life.provider.start(&life.world).await?;
    life.refresh("restarted").await?;
    tokio::time::sleep(A_WHILE).await;
    ensure!(life.shown().await? == ["10.9.0.2"], "{:?}", life.shown().await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_state_in_lists_is_asked_every_ten_minutes() -> Result<()> {
    let life = Life::without_state_in_lists("slow", 1).await?;
    tokio::time::sleep(A_WHILE).await;
    let (look_ups, writes) = (life.look_ups()?, life.status_writes());
    tokio::time::sleep(Duration::from_mins(100)).await;
    ensure!(
        life.look_ups()? == look_ups + 10,
        "{} look-ups",
        life.look_ups()? - look_ups
    );
    ensure!(life.status_writes() == writes, "a fleet at rest was written");
    life.set_ips(&["10.9.0.2"])?;
    tokio::time::sleep(Duration::from_mins(11)).await;
    ensure!(life.shown().await? == ["10.9.0.2"], "{:?}", life.shown().await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_large_fleet_is_not_looked_up_machine_by_machine() -> Result<()> {
    let life = Life::without_state_in_lists("large", 0).await?;
    tokio::time::sleep(A_WHILE).await;
    let look_ups = life.look_ups()?;
    tokio::time::sleep(HOURS).await;
    ensure!(life.look_ups()? == look_ups, "it was looked up");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_annotation_or_a_node_that_recovers_refreshes_a_machine() -> Result<()> {
    let life = Life::without_state_in_lists("asked", 0).await?;
    life.set_ips(&["10.9.0.2"])?;
    let annotation = json!({"metadata": {"annotations": {REFRESH: "1"}}});
    life.machine.patch(annotation).await?;
    life.shows(&["10.9.0.2"]).await?;

    node_is(&life.world, "m", "True").await?;
    node_is(&life.world, "m", "Unknown").await?;
    tokio::time::sleep(A_WHILE).await;
    life.set_ips(&["10.9.0.3"])?;
    node_is(&life.world, "m", "True").await?;
    life.shows(&["10.9.0.3"]).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_new_vm_is_polled_for_its_first_address() -> Result<()> {
    let no_lists = |provider: Provider| provider.with(|options| options.inventory_interval = A_DAY);
    let life = Life::begin("first", json!({"addressSeconds": 100}), json!(null), no_lists).await?;
    tokio::time::sleep(Duration::from_secs(99)).await;
    ensure!(life.shown().await?.is_empty(), "an address came early");
    let look_ups = life.look_ups()?;
    ensure!((6..=10).contains(&look_ups), "{look_ups} look-ups in 99 s");
    tokio::time::sleep(Duration::from_secs(32)).await;
    ensure!(life.shown().await?.len() == 1, "no address after 131 s");
    Ok(())
}

/// A driver whose lists have no state gets the same polls.
#[tokio::test(start_paused = true)]
async fn the_poll_for_an_address_ends_after_15_minutes() -> Result<()> {
    for has_state in [true, false] {
        let limits = |provider: Provider| {
            provider.with(|options| {
                options.inventory_interval = A_DAY;
                options.max_refreshed_machines = 0;
            })
        };
        let config = json!({"addressSeconds": 80_000, "listHasState": has_state});
        let life = Life::begin("never", config, json!(null), limits).await?;
        tokio::time::sleep(Duration::from_mins(16)).await;
        let look_ups = life.look_ups()?;
        ensure!((30..=40).contains(&look_ups), "{look_ups} look-ups in 16 minutes");
        tokio::time::sleep(Duration::from_hours(2)).await;
        ensure!(life.look_ups()? == look_ups, "it is still polled");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_switched_off_says_so_and_stays_ready() -> Result<()> {
    let life = Life::plain("power").await?;
    let is_on = |machine: &InfraMachine| says(machine, VIRTUAL_MACHINE_RUNNING, "True", "Running");
    life.switch(false)?;
    let is_off = |machine: &InfraMachine| says(machine, VIRTUAL_MACHINE_RUNNING, "False", "PoweredOff");
    let shown = life.machine.until("a VM that is off", is_off).await?;
    ensure!(says(&shown, READY, "True", "Ready"), "{:?}", shown.status);
    let status = shown.status.context("no status")?;
    ensure!(status.power_state.as_deref() == Some("Stopped"), "{status:?}");
    event(&life.world, "m", "PoweredOff").await?;
    let series = r#"phase="Provisioned",driver="simulated",namespace="power",reason="PoweredOff"} 1"#;
    ensure!(
        life.replica.metrics().contains(series),
        "{}",
        life.replica.metrics()
    );
    tokio::time::sleep(HOURS).await;
    ensure!(life.starts()? == 0, "nobody asked for a start");

    life.switch(true)?;
    life.machine.until("a VM that is on", is_on).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_to_be_on_is_started_at_a_limited_rate() -> Result<()> {
    let life = Life::begin("policy", json!({}), json!("AlwaysOn"), |provider| provider).await?;
    let is_running = |machine: &InfraMachine| says(machine, VIRTUAL_MACHINE_RUNNING, "True", "Running");
    let is_off = |machine: &InfraMachine| says(machine, VIRTUAL_MACHINE_RUNNING, "False", "PoweredOff");
    life.switch(false)?;
    life.machine.until("a VM that is off", is_off).await?;
    event(&life.world, "m", "PoweredOff").await?;
    event(&life.world, "m", "Restarted").await?;
    ensure!(life.starts()? == 1, "{} starts", life.starts()?);
    let is_on = |machine: &InfraMachine| {
        let status = machine.status.as_ref();
        status.and_then(|status| status.power_state.as_deref()) == Some("Running")
    };
    life.machine.until("a VM that was started", is_on).await?;

    // An update in between does not allow an earlier start.
    life.switch(false)?;
    life.machine.respecify("labels", json!({"round": "1"})).await?;
    tokio::time::sleep(Duration::from_mins(3)).await;
    ensure!(life.starts()? == 1, "it was started again too soon");
    tokio::time::sleep(Duration::from_mins(3)).await;
    ensure!(life.starts()? == 2, "{} starts", life.starts()?);
    life.machine
        .until("a VM that was started again", is_running)
        .await?;

    // A driver that cannot start the VM is asked every five minutes.
    life.cloud
        .fail(json!([{"operation": "RestartMachine", "code": "Unavailable"}]))?;
    life.switch(false)?;
    tokio::time::sleep(Duration::from_mins(31)).await;
    let starts = life.starts()? - 2;
    ensure!((5..=7).contains(&starts), "{starts} starts in 31 minutes");
    event(&life.world, "m", "Unavailable").await?;
    Ok(())
}

/// A field without effect would be accepted in silence.
#[tokio::test(start_paused = true)]
async fn a_later_power_policy_starts_the_vm_or_is_refused() -> Result<()> {
    let always_on = json!({"spec": {"powerPolicy": "AlwaysOn"}});
    let life = Life::begin("policy-later", json!({}), json!(null), |provider| provider).await?;
    life.switch(false)?;
    let is_off = |machine: &InfraMachine| says(machine, VIRTUAL_MACHINE_RUNNING, "False", "PoweredOff");
    life.machine.until("a VM that is off", is_off).await?;
    life.machine.patch(always_on.clone()).await?;
    let is_on = |machine: &InfraMachine| says(machine, VIRTUAL_MACHINE_RUNNING, "True", "Running");
    life.machine.until("a VM that was started", is_on).await?;
    ensure!(life.starts()? == 1, "{} starts", life.starts()?);

    let without = json!({"disabledCalls": ["RestartMachine"]});
    let life = Life::begin("policy-refused", without, json!(null), |provider| provider).await?;
    life.machine.patch(always_on).await?;
    let is_refused = |machine: &InfraMachine| {
        says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "False", "InvalidArgument")
            && message(machine, VIRTUAL_MACHINE_UP_TO_DATE).contains("powerPolicy: AlwaysOn")
    };
    life.machine.until("a refused policy", is_refused).await?;
    Ok(())
}

/// A guest that was shut down for its deletion is off, and stays off.
#[tokio::test(start_paused = true)]
async fn a_vm_is_not_started_during_its_deletion_or_a_pause() -> Result<()> {
    let config = json!({"deleteSeconds": 600});
    let life = Life::begin("deletion", config, json!(null), |provider| provider).await?;
    life.switch(false)?;
    let is_off = |machine: &InfraMachine| says(machine, VIRTUAL_MACHINE_RUNNING, "False", "PoweredOff");
    life.machine.until("a VM that is off", is_off).await?;
    let paused = |value: Value| json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": value}}});
    life.cluster(json!({"paused": true})).await?;
    life.machine
        .patch(json!({"spec": {"powerPolicy": "AlwaysOn"}}))
        .await?;
    tokio::time::sleep(HOURS).await;
    ensure!(
        life.starts()? == 0,
        "it was started during a pause of the Cluster"
    );
    life.machine.patch(paused(json!(""))).await?;
    life.cluster(json!({"paused": false})).await?;
    tokio::time::sleep(HOURS).await;
    ensure!(life.starts()? == 0, "it was started during a pause");
    life.machine.delete().await?;
    life.machine.patch(paused(json!(null))).await?;
    life.machine.gone().await?;
    ensure!(life.starts()? == 0, "it was started during its deletion");
    Ok(())
}
