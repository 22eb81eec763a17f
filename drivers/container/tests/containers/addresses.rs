//! The addresses of running machines: leases, static addresses, virtual IPs, and both families.

use std::fs;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cmi_driver::{AddressType, Driver as _, ListMachinesRequest, MachineRef, PowerState, ProviderId};
use cmi_grpc::client::GrpcDriver;
use serde_json::{Value, json};

use crate::boots::{booted, create, delete, running};
use crate::lab::{Lab, eventually, machine};

/// Bootstrap data that print the network configuration on the console.
const PRINT_NETWORK: &[u8] =
    b"#cloud-config\nruncmd:\n- |\n  {\n    echo \"has $(ip -o -4 address show dev eth0)\"\n    \
    echo \"routes $(ip route show default)\"\n    echo \"asks $(cat /etc/resolv.conf)\"\n    \
    echo \"id $(cat /etc/machine-id)\"\n    echo \"boot of $(hostname) \"\n  } >/dev/console\n";

/// A virtual IP, as kube-vip and keepalived add it.
const VIRTUAL_IP: &str = "192.168.150.40";

/// The IP addresses of a machine in the list.
async fn listed(driver: &GrpcDriver, machine: &MachineRef) -> Result<Vec<String>> {
    let class = machine.class.clone();
    let list = driver.list_machines(ListMachinesRequest { class }).await?;
    let vm = list.into_iter().find(|vm| vm.machine_name == machine.name);
    let vm = vm.context("the list lacks the machine")?;
    ensure!(vm.power_state == Some(PowerState::Running), "{vm:?}");
    let ips = vm.addresses.into_iter();
    let ips = ips.filter(|address| address.kind == AddressType::InternalIP);
    Ok(ips.map(|address| address.address).collect())
}

/// Runs a command in a machine.
fn inside(lab: &Lab, id: &ProviderId, command: &[&str]) -> Result<String> {
    let uuid = id.as_str().rsplit('/').next().context("no UUID")?;
    lab.runc(&[&["exec", uuid], command].concat())
}

/// A router that advertises an IPv6 network on a bridge.
struct Router(Child);

impl Router {
    fn start(lab: &Lab, bridge: &str, address: &str) -> Result<Self> {
        let added = lab
            .inside("ip")
            .args(["address", "add", address, "dev", bridge, "nodad"])
            .status()?;
        ensure!(added.success(), "the bridge has no address");
        let router = lab
            .inside("dnsmasq")
            .args([
                "--conf-file=/dev/null",
                "--keep-in-foreground",
                "--bind-dynamic",
                "--port=0",
            ])
            .args([
                "--except-interface=lo",
                "--enable-ra",
                "--leasefile-ro",
                "--pid-file",
                "--user=root",
            ])
            .arg(format!("--interface={bridge}"))
            .arg(format!("--dhcp-range=::,constructor:{bridge},ra-only"))
            .stdin(Stdio::null())
            .spawn()?;
        Ok(Self(router))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("the router could not be ended: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_address_comes_with_gateway_and_dns_and_no_lease() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let pool = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "nodes"});
    let given = json!({"address": "192.168.150.20", "prefix": 24, "gateway": "192.168.150.1", "pool": pool});
    let change = json!({"image": "debian", "networkAddresses": [given]});
    let fixed = machine("fixed", &change, PRINT_NETWORK);
    create(&driver, &fixed).await?;
    booted(&lab, "fixed", 1).await?;
    let console = lab.console("fixed")?;
    for words in [
        "inet 192.168.150.20/24 ",
        "routes default via 192.168.150.1 ",
        "nameserver 192.168.150.1",
    ] {
        ensure!(console.contains(words), "{words} is not in {console}");
    }
    ensure!(running(&driver, &fixed).await? == ["192.168.150.20"]);
    ensure!(listed(&driver, &fixed).await? == ["192.168.150.20"]);
    let leases = fs::read_to_string(lab.state().dnsmasq("leases"))?;
    ensure!(!leases.contains("192.168.150."), "{leases}");
    delete(&driver, &fixed).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// Two machines boot a Debian.
#[tokio::test(flavor = "multi_thread")]
async fn clones_with_one_machine_id_have_leases_of_their_own() -> Result<()> {
    let lab = Lab::prepared().await?;
    let mut config: Value = serde_json::from_str(&fs::read_to_string(lab.at("driver.yaml"))?)?;
    let image = config["images"]["debian"].as_str().context("no image")?;
    let baked = lab.at("state-of-clones");
    let copied = Command::new("cp").args(["-al", image]).arg(&baked).status()?;
    ensure!(copied.success(), "the image was not copied");
    // The copy has hard links.
    let machine_id = baked.join("etc/machine-id");
    fs::remove_file(&machine_id)?;
    fs::write(&machine_id, "0123456789abcdef0123456789abcdef\n")?;
    config["images"]["debian"] = json!(baked);
    lab.configure(&config)?;
    lab.start_driver()?;
    let driver = lab.client().await?;
    let clones = ["clone-a", "clone-b"].map(|name| machine(name, &json!({"image": "debian"}), PRINT_NETWORK));
    let mut all = Vec::new();
    for clone in &clones {
        create(&driver, clone).await?;
    }
    for clone in &clones {
        booted(&lab, &clone.name, 1).await?;
        let console = lab.console(&clone.name)?;
        ensure!(
            console.contains("id 0123456789abcdef0123456789abcdef"),
            "{console}"
        );
        all.extend(running(&driver, clone).await?);
    }
    ensure!(all.len() == 2 && all[0] != all[1], "{all:?}");
    for clone in &clones {
        delete(&driver, clone).await?;
    }
    fs::remove_dir_all(baked)?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_follows_another_lease() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let moved = machine("moved", &json!({}), b"");
    let id = create(&driver, &moved).await?.provider_id;
    let before = running(&driver, &moved).await?;
    ensure!(listed(&driver, &moved).await? == before, "{before:?}");
    // Another client identifier gets another lease.
    inside(&lab, &id, &["ip", "address", "flush", "dev", "eth0"])?;
    let request = [
        "udhcpc",
        "-f",
        "-q",
        "-n",
        "-i",
        "eth0",
        "-s",
        "/etc/udhcpc",
        "-x",
        "0x3d:00abcdef",
    ];
    inside(&lab, &id, &request)?;
    let after = listed(&driver, &moved).await?;
    ensure!(after.len() == 1 && after != before, "{before:?}, {after:?}");
    ensure!(running(&driver, &moved).await? == after);
    delete(&driver, &moved).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// The provider leaves it out, because it knows the endpoint of the Cluster.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_shows_a_virtual_ip_on_its_holder() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let machines = ["holder", "heir"].map(|name| machine(name, &json!({}), b""));
    let mut own = Vec::new();
    for machine in &machines {
        let id = create(&driver, machine).await?.provider_id;
        own.push((id, running(&driver, machine).await?));
    }
    let with_vip = |own: &[String]| [own, &[VIRTUAL_IP.to_owned()]].concat();
    let vip = format!("{VIRTUAL_IP}/32");
    let change =
        |at: usize, how: &str| inside(&lab, &own[at].0, &["ip", "address", how, &vip, "dev", "eth0"]);
    let [holder, heir] = &machines;
    change(0, "add")?;
    ensure!(listed(&driver, holder).await? == with_vip(&own[0].1));
    ensure!(listed(&driver, heir).await? == own[1].1);
    change(0, "del")?;
    change(1, "add")?;
    ensure!(listed(&driver, holder).await? == own[0].1);
    ensure!(listed(&driver, heir).await? == with_vip(&own[1].1));
    for machine in &machines {
        delete(&driver, machine).await?;
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_on_a_dual_stack_network_has_both_families() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let _router = Router::start(&lab, "br-lab", "fd00:77::1/64")?;
    let dual = machine("dual", &json!({}), b"");
    create(&driver, &dual).await?;
    let seen = eventually("both families", async || {
        let seen = listed(&driver, &dual).await?;
        ensure!(seen.len() == 2, "{seen:?}");
        Ok(seen)
    })
    .await?;
    ensure!(
        seen[0].starts_with("192.168.150.") && seen[1].starts_with("fd00:77:"),
        "{seen:?}"
    );
    ensure!(running(&driver, &dual).await? == seen);
    delete(&driver, &dual).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// The bridge is not the driver's, and nothing on it answers DHCP requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_on_an_ipv6_network_runs_and_has_its_address() -> Result<()> {
    let lab = Lab::prepared().await?;
    let mut config: Value = serde_json::from_str(&fs::read_to_string(lab.at("driver.yaml"))?)?;
    config["bridge"] = json!({"name": "br-six"});
    lab.configure(&config)?;
    let made = lab
        .inside("ip")
        .args(["link", "add", "br-six", "up", "type", "bridge"])
        .status()?;
    ensure!(made.success(), "there is no bridge");
    let _router = Router::start(&lab, "br-six", "fd00:66::1/64")?;
    lab.start_driver()?;
    let driver = lab.client().await?;
    let six = machine("six", &json!({}), b"");
    create(&driver, &six).await?;
    let seen = running(&driver, &six).await?;
    ensure!(seen.len() == 1 && seen[0].starts_with("fd00:66:"), "{seen:?}");
    ensure!(listed(&driver, &six).await? == seen);
    delete(&driver, &six).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
