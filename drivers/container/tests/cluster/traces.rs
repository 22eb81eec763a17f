//! The traces that machines leave on their host.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use capcmi_driver_container::state::StateFolder;

/// The mount point of the control groups.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// All that belongs to machines, as text.
#[derive(Debug)]
pub struct Traces {
    /// Processes of machines, in other namespaces than this one, and of the driver.
    processes: BTreeSet<String>,
    /// Mounts, and so also the namespaces that a file keeps.
    mounts: BTreeSet<String>,
    interfaces: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    files: BTreeSet<String>,
    /// Addresses that the DHCP server has given.
    leases: BTreeSet<String>,
}

impl Traces {
    /// Looks at the host and at the driver's state folder.
    ///
    /// # Errors
    /// When something can't be read.
    pub fn find(folder: &Path) -> Result<Self> {
        let mut files = BTreeSet::new();
        for kept in ["machines", "scratch", "runtime"] {
            walk(&folder.join(kept), &mut files)?;
        }
        let lines = |path: &str, field: fn(&str) -> Option<&str>| -> Result<BTreeSet<String>> {
            let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
            Ok(text.lines().filter_map(field).map(str::to_owned).collect())
        };
        Ok(Self {
            processes: processes()?
                .into_values()
                .flatten()
                .chain(of_driver(folder)?)
                .collect(),
            mounts: lines("/proc/self/mountinfo", |line| line.split(' ').nth(4))?,
            interfaces: lines("/proc/self/net/dev", |line| Some(line.split_once(':')?.0.trim()))?,
            cgroups: empty_cgroups()?,
            files,
            leases: leases(folder)?,
        })
    }
}

impl Traces {
    /// The traces that were not there before.
    pub fn since<'a>(&'a self, before: &'a Self) -> Vec<&'a String> {
        let kinds: [fn(&Self) -> &BTreeSet<String>; 6] = [
            |traces| &traces.processes,
            |traces| &traces.mounts,
            |traces| &traces.interfaces,
            |traces| &traces.cgroups,
            |traces| &traces.files,
            |traces| &traces.leases,
        ];
        kinds
            .iter()
            .flat_map(|kind| kind(self).difference(kind(before)))
            .collect()
    }
}

/// The lines of leases; none before the first machine.
fn leases(folder: &Path) -> Result<BTreeSet<String>> {
    let text = match fs::read_to_string(StateFolder::new(folder).dnsmasq("leases")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.context("reading the leases")?,
    };
    let leases = text.lines().filter(|line| !line.starts_with("duid"));
    Ok(leases.map(str::to_owned).collect())
}

/// The cgroups of machines without a process. Those with processes may be of another driver on this host:
/// the processes of this one's machines are found by themselves.
fn empty_cgroups() -> Result<BTreeSet<String>> {
    let mut empty = BTreeSet::new();
    let root = Path::new(CGROUPS);
    for hierarchy in folders(root)?.into_iter().chain([String::new()]) {
        for name in folders(&root.join(&hierarchy))? {
            let cgroup = root.join(&hierarchy).join(&name);
            if name.starts_with("capcmi-") && !has_process(&cgroup)? {
                empty.insert(cgroup.display().to_string());
            }
        }
    }
    Ok(empty)
}

fn has_process(cgroup: &Path) -> Result<bool> {
    let mut all = BTreeSet::from([cgroup.display().to_string()]);
    walk(cgroup, &mut all)?;
    let processes = |cgroup: &String| fs::read_to_string(Path::new(cgroup).join("cgroup.procs"));
    // A cgroup can end in the meantime.
    Ok(all
        .iter()
        .filter_map(|cgroup| processes(cgroup).ok())
        .any(|processes| !processes.is_empty()))
}

/// The memory of each machine's processes, bytes, with shared pages divided between those that share them.
///
/// # Errors
/// When `/proc` can't be read.
pub fn memory() -> Result<Vec<u64>> {
    let mut machines = Vec::new();
    for processes in processes()?.into_values() {
        let pss = processes.iter().filter_map(|process| {
            let (pid, _) = process.split_once(' ')?;
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok()
        });
        machines.push(pss.sum::<u64>() * 1024);
    }
    Ok(machines)
}

/// The numbers of the processes of machines with a name.
///
/// # Errors
/// When `/proc` can't be read.
pub fn processes_called(name: &str) -> Result<Vec<String>> {
    let processes = processes()?.into_values().flatten();
    let called = processes.filter_map(|process| {
        let (pid, its_name) = process.split_once(' ')?;
        (its_name == name).then(|| pid.to_owned())
    });
    Ok(called.collect())
}

/// The processes (number and name) outside of this PID namespace, by the cgroup of their machine.
fn processes() -> Result<BTreeMap<String, Vec<String>>> {
    let own = pid_namespace("self").context("this process has no namespace")?;
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for entry in folders(Path::new("/proc"))? {
        // A process can end in the meantime.
        if pid_namespace(&entry).is_some_and(|namespace| namespace != own) {
            let name = fs::read_to_string(format!("/proc/{entry}/comm")).unwrap_or_default();
            let process = format!("{entry} {}", name.trim());
            found.entry(machine_of(&entry)).or_default().push(process);
        }
    }
    Ok(found)
}

/// The processes (number and name) that the driver starts beside machines: conmon and dnsmasq. They have the
/// state folder among their arguments.
fn of_driver(folder: &Path) -> Result<Vec<String>> {
    let folder = format!("{}/", folder.display());
    let mut found = Vec::new();
    for entry in folders(Path::new("/proc"))? {
        // A process can end in the meantime.
        let command = fs::read(format!("/proc/{entry}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(&folder) {
            let name = fs::read_to_string(format!("/proc/{entry}/comm")).unwrap_or_default();
            found.push(format!("{entry} {}", name.trim()));
        }
    }
    Ok(found)
}

/// The name of a machine's cgroup, from the paths of a process.
fn machine_of(process: &str) -> String {
    let cgroups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let mut names = cgroups.split(['/', '\n']);
    let machine = names.find(|name| name.starts_with("capcmi-"));
    machine.unwrap_or_default().to_owned()
}

fn pid_namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/pid")).ok()
}

/// The names of the folders in a folder; none if it is gone.
///
/// # Errors
/// When it can't be read.
pub fn folders(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn walk(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for name in folders(folder)? {
        let path = folder.join(name);
        found.insert(path.display().to_string());
        walk(&path, found)?;
    }
    Ok(())
}
