//! The hosts from an administrator's view, and their guests from inside the hosts' networks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Output};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use capcmi_driver_libvirt::identity::SCHEME;
use cmi_driver::HostedId;
use futures::Stream;
use kube::api::Api;
use management_cluster::eventually;
use management_cluster::hollow_kubelet::GuestEvent;
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::{Seed, seeded_guests};
use tokio::process::Command;

use crate::cluster::Vm;
use crate::lab::{DEADLINE, HOSTS, Lab};

/// Room for one guest of 128 MiB, MiB.
const ROOM: u64 = 200;

/// The hosts of a lab.
pub struct Hosts<'a> {
    lab: &'a Lab,
}

/// Everything that machines may leave on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    domains: BTreeSet<String>,
    networks: BTreeSet<String>,
    storage_pools: BTreeSet<String>,
    /// Of all storage pools.
    volumes: BTreeSet<String>,
    /// Network devices, including bridges and the devices of guests.
    links: BTreeSet<String>,
    /// Hardware addresses by leased address.
    leases: BTreeMap<String, String>,
}

/// The inventories by host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventories(BTreeMap<&'static str, Inventory>);

impl Inventories {
    /// Removes the lease of a machine.
    pub fn forget_lease(&mut self, vm: &Vm) {
        if let Some(inventory) = self.0.get_mut(vm.host.as_str()) {
            inventory.leases.remove(&vm.address);
        }
    }
}

/// The state of a guest, in its own words.
pub struct Answer {
    /// The seed that it has read.
    pub seed: Seed,
    /// The size of its disk, in sectors of 512 bytes.
    pub root_sectors: u64,
    /// Changes with each boot.
    pub boot_id: String,
}

impl<'a> Hosts<'a> {
    /// The hosts of a lab.
    pub fn of(lab: &'a Lab) -> Self {
        Self { lab }
    }

    /// The lab's configuration, with so much reserved memory that each host has room for one small guest.
    pub fn config_with_room_for_one(&self) -> Result<Value> {
        let mut config: Value = serde_json::from_str(&self.lab.config()?)?;
        for host in HOSTS {
            let mut connect = self.lab.connect(host)?;
            let total_mib = connect.get_node_info()?.memory / 1024;
            connect.close()?;
            config["hosts"][host]["reservedMemoryMib"] = json!(total_mib - ROOM);
        }
        Ok(config)
    }

    /// The inventory of all hosts. It uses sets, since each libvirtd lists in a different order.
    pub async fn inventory(&self) -> Result<Inventories> {
        let mut all = BTreeMap::new();
        for host in HOSTS {
            all.insert(host, self.inventory_of(host).await?);
        }
        Ok(Inventories(all))
    }

    async fn inventory_of(&self, host: &str) -> Result<Inventory> {
        let mut connect = self.lab.connect(host)?;
        let mut domains = BTreeSet::new();
        for domain in connect.list_all_domains(0)? {
            domains.insert(domain.get_name()?);
        }
        let mut networks = BTreeSet::new();
        for network in connect.list_all_networks(0)? {
            networks.insert(network.get_name()?);
        }
        let (mut storage_pools, mut volumes) = (BTreeSet::new(), BTreeSet::new());
        for pool in connect.list_all_storage_pools(0)? {
            storage_pools.insert(pool.get_name()?);
            pool.refresh(0)?;
            for volume in pool.list_all_volumes(0)? {
                volumes.insert(volume.get_path()?);
            }
        }
        connect.close()?;
        let links = inside(&self.network(host)?, &["ip", "-brief", "link"]).await?;
        let name = |line: &str| line.split([' ', '@']).next().unwrap_or_default().to_owned();
        Ok(Inventory {
            domains,
            networks,
            storage_pools,
            volumes,
            links: links.lines().map(name).collect(),
            leases: self.leases(host)?,
        })
    }

    /// The leases of the network's DHCP server, from libvirt's file.
    fn leases(&self, host: &str) -> Result<BTreeMap<String, String>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        struct Lease {
            mac_address: String,
            ip_address: String,
        }
        let text = match fs::read_to_string(self.lab.of(host).join("lib/dnsmasq/virbr0.status")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        if text.trim().is_empty() {
            return Ok(BTreeMap::new());
        }
        let leases: Vec<Lease> = serde_json::from_str(&text).context("reading the leases")?;
        let leases = leases
            .into_iter()
            .map(|lease| (lease.ip_address, lease.mac_address));
        Ok(leases.collect())
    }

    /// Waits until the hosts have exactly these machines.
    pub async fn have(&self, vms: &[Vm]) -> Result<()> {
        eventually(DEADLINE, "hosts with these machines alone", async || {
            for host in HOSTS {
                let here = vms.iter().filter(|vm| vm.host == host);
                let expected: BTreeSet<_> = here.map(|vm| vm.uuid.clone()).collect();
                let mut connect = self.lab.connect(host)?;
                let mut there = BTreeSet::new();
                for domain in connect.list_all_domains(0)? {
                    there.insert(domain.get_uuid_string()?);
                }
                connect.close()?;
                ensure!(there == expected, "{host} has {there:?} and not {expected:?}");
                for file in fs::read_dir(self.lab.of(host).join("machines"))? {
                    let name = file?.file_name().to_string_lossy().into_owned();
                    let is_expected = expected.iter().any(|uuid| name.contains(uuid.as_str()));
                    ensure!(is_expected, "{host} has {name}");
                }
            }
            Ok(())
        })
        .await
    }

    /// Kills the QEMU of a machine, like the kernel when memory is short. Waits until libvirt has noticed,
    /// which takes much less time than the provider needs to see a silent Node.
    pub async fn kill(&self, vm: &Vm) -> Result<()> {
        let mut connect = self.lab.connect(&vm.host)?;
        let uuid = uuid::Uuid::parse_str(&vm.uuid)?;
        let domain = virt::domain::Domain::lookup_by_uuid(&connect, uuid)?;
        let pid = self
            .lab
            .of(&vm.host)
            .join(format!("run/qemu/{}.pid", domain.get_name()?));
        let pid = fs::read_to_string(&pid).with_context(|| format!("reading {}", pid.display()))?;
        let killed = Program::new("kill").args(["-KILL", pid.trim()]).status()?;
        ensure!(killed.success(), "QEMU, process {pid}, could not be killed");
        eventually(DEADLINE, "a domain that does not run", async || {
            ensure!(!domain.is_active()?, "it runs");
            Ok(())
        })
        .await?;
        connect.close()?;
        Ok(())
    }

    /// Queries the guest of a machine.
    pub async fn ask(&self, vm: &Vm) -> Result<Answer> {
        let network = self.network(&vm.host)?;
        let sectors = get(&network, &vm.address, "root-sectors").await?;
        Ok(Answer {
            seed: seed(&network, &vm.address).await?,
            root_sectors: sectors.trim().parse()?,
            boot_id: get(&network, &vm.address, "boot-id").await?,
        })
    }

    /// Events of these machines' guests: they boot and vanish.
    pub fn guests(&self, machines: Api<InfraMachine>) -> Result<impl Stream<Item = GuestEvent> + use<>> {
        let networks = HOSTS.map(|host| Ok((host, self.network(host)?)));
        let networks: Arc<BTreeMap<_, _>> = Arc::new(networks.into_iter().collect::<Result<_>>()?);
        Ok(seeded_guests(machines, move |provider_id, address| {
            let networks = Arc::clone(&networks);
            async move {
                let id = HostedId::parse(SCHEME, &provider_id)?;
                let network = networks.get(id.host.as_str()).context("no such host")?;
                seed(network, &address).await
            }
        }))
    }

    /// The network namespace of a host.
    fn network(&self, host: &str) -> Result<PathBuf> {
        Ok(self.namespaces(host)?.join("net"))
    }

    fn namespaces(&self, host: &str) -> Result<PathBuf> {
        let pid = fs::read_to_string(self.lab.of(host).join("run/libvirtd.pid"))?;
        Ok(PathBuf::from(format!("/proc/{}/ns", pid.trim())))
    }

    /// Runs a program on a host. The host's libvirt has its usual socket there.
    pub async fn on(&self, host: &str, command: &[&str]) -> Result<Output> {
        let namespaces = self.namespaces(host)?;
        let output = Command::new("nsenter")
            .arg(format!("--net={}", namespaces.join("net").display()))
            .arg(format!("--mount={}", namespaces.join("mnt").display()))
            .args(command)
            // It may name another libvirt on this computer.
            .env_remove("LIBVIRT_DEFAULT_URI")
            .kill_on_drop(true)
            .output();
        Ok(output.await?)
    }

    /// Defines a domain without a machine on each host.
    pub fn define_a_domain_of_the_user(&self) -> Result<()> {
        for host in HOSTS {
            let mut connect = self.lab.connect(host)?;
            let xml = "<domain type='qemu'><name>of-the-user</name><memory unit='MiB'>64</memory>\
                       <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>";
            virt::domain::Domain::define_xml(&connect, xml)?;
            connect.close()?;
        }
        Ok(())
    }
}

/// The seed that a guest has read.
async fn seed(network: &Path, address: &str) -> Result<Seed> {
    let meta_data = get(network, address, "meta-data").await?;
    Seed::read(&meta_data, get(network, address, "user-data").await?)
}

/// Queries a guest from inside its network.
async fn get(network: &Path, address: &str, file: &str) -> Result<String> {
    let url = format!("http://{address}/{file}");
    inside(network, &["curl", "-sSf", "--max-time", "2", &url]).await
}

/// The output of a program that runs in a host's network.
async fn inside(network: &Path, command: &[&str]) -> Result<String> {
    let output = Command::new("nsenter")
        .arg(format!("--net={}", network.display()))
        .args(command)
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
