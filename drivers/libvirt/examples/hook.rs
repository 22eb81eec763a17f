//! The hooks of the conformance suite for this driver. They change the hosts in the driver's configuration as
//! an administrator, a crash or another client might.
//!
//! Usage: `hook CONFIG NAME [ARGUMENT…]`. The hosts are started by `tests/lab/host.sh`. The driver reaches
//! them over the wires of `tests/lab/wire.rs`; the file `fault` in a host's folder controls its wire.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use capcmi_driver_libvirt::Config;
use capcmi_driver_libvirt::identity::{MachineKey, Names as _};
use capcmi_driver_libvirt::metadata::{LOCK_NAMESPACE, NAMESPACE, PREFIX, Record};
use quick_xml::Writer;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

/// Files that change when the driver works on a domain or a volume, but not when a guest runs.
const WRITTEN: [&str; 4] = ["etc/qemu", "etc/qemu/autostart", "lib/qemu", "machines"];
/// A domain that is never started, and reserves all memory of a host.
const BALLAST: &str = "hook-ballast";
const TIB_MIB: u64 = 1024 * 1024;
/// The instruction for a wire, in the folder of its host.
const FAULT: &str = "fault";
/// Marks for answers that get lost, in the folder of a host.
const LOST: [&str; 2] = ["lost-create", "lost-delete"];
/// The number of guest starts that fail, in the folder of a host.
const FAILING_STARTS: &str = "failing-starts";
/// libvirt's number for an internal error.
const INTERNAL_ERROR: u32 = 1;
/// A number without an error in libvirt.
const UNHEARD_OF: u32 = 9999;
const ELEMENT: i32 = virt_sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed();
/// The running domain and its definition.
const AFFECTED: u32 = virt_sys::VIR_DOMAIN_AFFECT_LIVE | virt_sys::VIR_DOMAIN_AFFECT_CONFIG;
/// The sector size of the seed's image.
const SECTOR: usize = 2048;

fn main() -> Result<()> {
    virt::error::clear_error_callback();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (config, hook) = arguments
        .split_first()
        .context("usage: hook CONFIG NAME [ARGUMENT…]")?;
    let config = Config::read(Path::new(config))?;
    let uris: Vec<&str> = config.hosts.values().map(|host| host.uri.as_str()).collect();
    match hook {
        // The driver depends on its hosts.
        ["unavailable" | "unhealthy"] => uris.iter().try_for_each(|uri| stop(uri)),
        ["starting", socket, restart @ ..] => {
            uris.iter().try_for_each(|uri| stop(uri))?;
            run(restart)?;
            eventually(socket, |socket| UnixStream::connect(socket).is_ok())
        }
        ["unknown"] => fault(
            &uris,
            &format!("refuse {UNHEARD_OF} an error of a libvirt to come"),
        ),
        ["internal"] => fault(&uris, &format!("refuse {INTERNAL_ERROR} an invariant is broken")),
        ["slow", milliseconds] => fault(&uris, &format!("slow {milliseconds}")),
        ["loseResponse"] => uris.iter().try_for_each(|uri| {
            let folder = folder(uri)?;
            LOST.iter()
                .try_for_each(|lost| Ok(fs::write(folder.join(lost), "")?))
        }),
        ["failInitialize", times] => uris.iter().try_for_each(|uri| fail_starts(uri, times)),
        ["exhaust"] => uris.iter().try_for_each(|uri| exhaust(uri)),
        ["restore"] => uris.iter().try_for_each(|uri| restore(uri)),
        ["plant", name, cluster, identity] => {
            let key = MachineKey {
                cluster: (*cluster).to_owned(),
                name: (*name).to_owned(),
                identity: (*identity).to_owned(),
            };
            plant(&config, &key)
        }
        ["vanish", name, cluster] => on_domain(&uris, name, cluster, |domain| {
            if domain.is_active()? {
                domain.destroy()?;
            }
            Ok(domain.undefine()?)
        }),
        ["uninitialize", name, cluster] => on_domain(&uris, name, cluster, uninitialize),
        ["lock", name, cluster] => on_domain(&uris, name, cluster, |domain| {
            note_lock(domain, Some("<locked>as asked for</locked>"))
        }),
        ["unlock", name, cluster] => on_domain(&uris, name, cluster, |domain| note_lock(domain, None)),
        ["mutations"] => {
            let changes = uris.iter().map(|uri| last_change(uri));
            let last = changes.collect::<Result<Vec<_>>>()?.into_iter().max();
            println!("{}", last.unwrap_or_default());
            Ok(())
        }
        ["userData", name, cluster] => on_domain(&uris, name, cluster, print_user_data),
        ["vmSpec", name, cluster] => on_domain(&uris, name, cluster, print_vm_spec),
        _ => bail!("there is no hook {}", hook.join(" ")),
    }
}

fn open(uri: &str) -> Result<Connect> {
    Connect::open(Some(uri)).with_context(|| format!("connecting to {uri} failed"))
}

/// The folder of a host, found by its socket.
fn folder(uri: &str) -> Result<PathBuf> {
    let (_, socket) = uri.split_once("socket=").context("the URI has no socket")?;
    let folder = Path::new(socket).ancestors().nth(2);
    folder
        .map(Path::to_owned)
        .context("the socket is in no host's folder")
}

/// Kills libvirtd, and keeps it down.
fn stop(uri: &str) -> Result<()> {
    let folder = folder(uri)?;
    fs::write(folder.join("down"), "")?;
    let pid = fs::read_to_string(folder.join("run/libvirtd.pid")).context("libvirtd has no process id")?;
    let killed = Command::new("kill").args(["-KILL", pid.trim()]).status()?;
    ensure!(killed.success(), "libvirtd, process {pid}, could not be killed");
    eventually(uri, |uri| Connect::open(Some(uri)).is_err())
}

fn restore(uri: &str) -> Result<()> {
    let folder = folder(uri)?;
    for undone in ["down", FAULT, FAILING_STARTS].iter().chain(&LOST) {
        match fs::remove_file(folder.join(undone)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    eventually(uri, |uri| {
        let Ok(mut connect) = Connect::open(Some(uri)) else {
            return false;
        };
        if let Ok(ballast) = Domain::lookup_by_name(&connect, BALLAST) {
            return ballast.undefine().is_ok();
        }
        connect.close().is_ok()
    })
}

/// Runs a command of the hook's arguments.
fn run(command: &[&str]) -> Result<()> {
    let (program, arguments) = command
        .split_first()
        .context("which command restarts the driver?")?;
    let ended = Command::new(program).args(arguments).status()?;
    ensure!(ended.success(), "{program} failed");
    Ok(())
}

/// Sets the instruction for the wires. They may read the file at any time, so it is replaced atomically.
fn fault(uris: &[&str], what: &str) -> Result<()> {
    for uri in uris {
        let folder = folder(uri)?;
        let unfinished = folder.join("unfinished-fault");
        fs::write(&unfinished, what)?;
        fs::rename(unfinished, folder.join(FAULT))?;
    }
    Ok(())
}

/// Makes this number of guest starts fail. Existing guests become unstarted, so that there are starts to
/// fail.
fn fail_starts(uri: &str, times: &str) -> Result<()> {
    for domain in open(uri)?.list_all_domains(0)? {
        uninitialize(&domain)?;
    }
    fs::write(folder(uri)?.join(FAILING_STARTS), times)?;
    Ok(())
}

/// Locks or unlocks a domain, like an administrator with `virsh metadata`.
fn note_lock(domain: &Domain, lock: Option<&str>) -> Result<()> {
    let key = lock.map(|_| "lock");
    domain.set_metadata(ELEMENT, lock, key, Some(LOCK_NAMESPACE), AFFECTED)?;
    Ok(())
}

fn eventually(what: &str, mut probe: impl FnMut(&str) -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !probe(what) {
        ensure!(
            Instant::now() < deadline,
            "{what} did not reach the expected state in time"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The time of libvirt's last write, in nanoseconds. It increases with each change.
fn last_change(uri: &str) -> Result<u128> {
    let folder = folder(uri)?;
    let mut last = 0;
    for written in WRITTEN
        .map(|name| folder.join(name))
        .into_iter()
        .filter(|path| path.exists())
    {
        last = last.max(written_at(&written)?);
    }
    for entry in fs::read_dir(folder.join("etc/qemu"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "xml") {
            last = last.max(written_at(&path)?);
        }
    }
    Ok(last)
}

fn written_at(path: &Path) -> Result<u128> {
    let modified = fs::metadata(path)?.modified()?;
    Ok(modified.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos())
}

fn exhaust(uri: &str) -> Result<()> {
    let xml = format!(
        "<domain type='qemu'><name>{BALLAST}</name><memory unit='MiB'>{TIB_MIB}</memory>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
    );
    Domain::define_xml(&open(uri)?, &xml)?;
    Ok(())
}

/// Defines a domain as if another driver process had created it, without disks and off. The host must not
/// have a domain with the name yet.
fn plant(config: &Config, key: &MachineKey) -> Result<()> {
    let free =
        |uri: &str| Ok::<_, anyhow::Error>(Domain::lookup_by_name(&open(uri)?, &key.domain_name()).is_err());
    for (host, at) in &config.hosts {
        if free(&at.uri)? {
            return plant_on(&at.uri, host, config, key);
        }
    }
    bail!(
        "every host has a VM of machine {} in cluster {}",
        key.name,
        key.cluster
    )
}

fn plant_on(uri: &str, host: &str, config: &Config, key: &MachineKey) -> Result<()> {
    let pool = config.vm_pools.keys().next().context("there is no pool")?;
    let record = Record {
        name: key.name.clone(),
        cluster: key.cluster.clone(),
        identity: key.identity.clone(),
        provider_id: key.vm_id(host).to_string(),
        created_at: jiff::Timestamp::now(),
        started: true,
        started_at: Some(jiff::Timestamp::now()),
        deleting: false,
        vm_pool: pool.clone(),
        size: "small".to_owned(),
        root_fs_bytes: 0,
        disks_gb: Vec::new(),
        networks: vec!["default".to_owned()],
        network_addresses: Vec::new(),
        image: "tiny".to_owned(),
        host: host.to_owned(),
        tags: BTreeMap::new(),
    };
    let mut metadata = Writer::new(Vec::new());
    record.write(&mut metadata)?;
    let metadata = String::from_utf8(metadata.into_inner())?;
    let xml = format!(
        "<domain type='qemu'><name>{}</name><uuid>{}</uuid><metadata>{metadata}</metadata>\
         <memory unit='MiB'>128</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>",
        key.domain_name(),
        key.uuid()
    );
    Domain::define_xml(&open(uri)?, &xml)?;
    Ok(())
}

/// Calls `work` with the domain of a machine, on the host that has it.
fn on_domain(uris: &[&str], name: &str, cluster: &str, work: impl Fn(&Domain) -> Result<()>) -> Result<()> {
    let key = MachineKey {
        cluster: cluster.to_owned(),
        name: name.to_owned(),
        identity: String::new(),
    };
    let mut found = 0;
    for uri in uris {
        if let Ok(domain) = Domain::lookup_by_name(&open(uri)?, &key.domain_name()) {
            work(&domain)?;
            found += 1;
        }
    }
    ensure!(found > 0, "there is no VM {name} in cluster {cluster}");
    Ok(())
}

/// Leaves a domain like a driver that was killed between definition and start.
fn uninitialize(domain: &Domain) -> Result<()> {
    if domain.is_active()? {
        domain.destroy()?;
    }
    let record =
        Record::parse(&domain.get_metadata(ELEMENT, Some(NAMESPACE), 0)?).map_err(anyhow::Error::msg)?;
    let record = Record {
        started: false,
        started_at: None,
        ..record
    };
    let element = record.to_element().map_err(anyhow::Error::msg)?;
    domain.set_metadata(
        ELEMENT,
        Some(&element),
        Some(PREFIX),
        Some(NAMESPACE),
        virt_sys::VIR_DOMAIN_AFFECT_CONFIG,
    )?;
    Ok(())
}

/// Prints the hot-updatable fields. The definition has changed only after the running domain, so it is read.
fn print_vm_spec(domain: &Domain) -> Result<()> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Defined {
        /// KiB.
        current_memory: u64,
    }
    let record =
        Record::parse(&domain.get_metadata(ELEMENT, Some(NAMESPACE), 0)?).map_err(anyhow::Error::msg)?;
    let xml = domain.get_xml_desc(virt_sys::VIR_DOMAIN_XML_INACTIVE)?;
    let defined: Defined = quick_xml::de::from_str(&xml)?;
    let spec = serde_json::json!({"tags": record.tags, "memoryMib": defined.current_memory / 1024});
    println!("{spec}");
    Ok(())
}

/// Prints the user data of the domain's seed.
fn print_user_data(domain: &Domain) -> Result<()> {
    let prefix = format!("capcmi-{}-seed-", domain.get_uuid_string()?);
    let connect = domain.get_connect()?;
    let pool = StoragePool::lookup_by_name(&connect, "machines")?;
    let seeds = pool.list_all_volumes(0)?;
    let seed = seeds
        .iter()
        .find(|volume| volume.get_name().is_ok_and(|name| name.starts_with(&prefix)))
        .context("the machine has no seed")?;
    let image = download(&connect, seed)?;
    std::io::stdout().write_all(user_data(&image)?)?;
    Ok(())
}

fn download(connect: &Connect, volume: &StorageVol) -> Result<Vec<u8>> {
    let stream = Stream::new(connect, 0)?;
    volume.download(&stream, 0, 0, 0)?;
    let (mut content, mut chunk) = (Vec::new(), vec![0; 65536]);
    loop {
        match stream.recv(&mut chunk)? {
            0 => break,
            read => content.extend_from_slice(&chunk[..read]),
        }
    }
    stream.finish()?;
    Ok(content)
}

/// The content of `user-data`: the last of three sorted files in the Joliet root folder.
fn user_data(image: &[u8]) -> Result<&[u8]> {
    let number = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("the seed ends early")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let descriptor = (16..32)
        .map(|sector| sector * SECTOR)
        .find(|at| image.get(*at) == Some(&2));
    let descriptor = descriptor.context("the seed has no Joliet names")?;
    let (mut at, length) = (number(descriptor + 158)? * SECTOR, number(descriptor + 166)?);
    let end = at + length;
    let mut last = None;
    while at < end && image[at] != 0 {
        last = Some((number(at + 2)? * SECTOR, number(at + 10)?));
        at += usize::from(image[at]);
    }
    let (from, size) = last.context("the seed is empty")?;
    image.get(from..from + size).context("the seed ends early")
}
