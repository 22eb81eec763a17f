//! The system of a node: bootstrap data, kernel settings, and no trace of an earlier machine.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::Root;
use super::root::has_extension;

/// Drivers pass bootstrap data on a disk.
const DATA_SOURCES: [&str; 2] = ["NoCloud", "ConfigDrive"];

#[derive(Deserialize)]
struct CloudConfig {
    datasource_list: Option<Vec<String>>,
}

/// cloud-init runs and reads the data source of a driver.
pub(super) fn cloud_init(root: &Root) -> Result<String> {
    root.program("cloud-init")?;
    let disabled = root.has("etc/cloud/cloud-init.disabled")?;
    ensure!(
        !disabled,
        "/etc/cloud/cloud-init.disabled turns cloud-init off: remove the file"
    );
    let Some((file, sources)) = data_sources(root)? else {
        return Ok("with its default data sources".to_owned());
    };
    let known = sources
        .iter()
        .find(|source| DATA_SOURCES.contains(&source.as_str()));
    let known = known.with_context(|| {
        format!(
            "datasource_list in /{file} is {sources:?}: add NoCloud or ConfigDrive, as your driver needs it"
        )
    })?;
    Ok(format!("with the data source {known}"))
}

/// The data sources of the last file that has them, and the file.
fn data_sources(root: &Root) -> Result<Option<(String, Vec<String>)>> {
    let names = root.names("etc/cloud/cloud.cfg.d")?;
    let files = names.iter().filter(|name| has_extension(name, "cfg")).rev();
    let files = files.map(|name| format!("etc/cloud/cloud.cfg.d/{name}"));
    for file in files.chain(["etc/cloud/cloud.cfg".to_owned()]) {
        let config: Option<CloudConfig> = serde_saphyr::from_str(&root.text(&file)?)
            .with_context(|| format!("/{file} is no YAML: correct the file"))?;
        if let Some(sources) = config.and_then(|config| config.datasource_list) {
            return Ok(Some((file, sources)));
        }
    }
    Ok(None)
}

/// A Pod network needs modules and forwarding.
pub(super) fn kernel(root: &Root) -> Result<String> {
    let modules = root.texts("etc/modules-load.d")? + &root.texts("usr/lib/modules-load.d")?;
    let modules = modules + &root.text("etc/modules")?;
    for module in ["overlay", "br_netfilter"] {
        let is_loaded = modules.lines().any(|line| line.trim() == module);
        ensure!(
            is_loaded,
            "/etc/modules-load.d does not load {module}: add it to a file there"
        );
    }
    let settings = root.texts("etc/sysctl.d")? + &root.texts("usr/lib/sysctl.d")?;
    let settings = (settings + &root.text("etc/sysctl.conf")?).replace(' ', "");
    ensure!(
        settings.lines().any(|line| line == "net.ipv4.ip_forward=1"),
        "/etc/sysctl.d does not turn forwarding on: add net.ipv4.ip_forward = 1 to a file there"
    );
    Ok("loads overlay and br_netfilter, forwards packets".to_owned())
}

/// The kubelet refuses to start with swap.
pub(super) fn swap(root: &Root) -> Result<String> {
    for (number, line) in (1..).zip(root.text("etc/fstab")?.lines()) {
        let is_swap = !line.starts_with('#') && line.split_whitespace().nth(2) == Some("swap");
        ensure!(
            !is_swap,
            "/etc/fstab turns swap on in line {number}: remove the line"
        );
    }
    for name in root.names("etc/systemd/system")? {
        ensure!(
            !has_extension(&name, "swap"),
            "/etc/systemd/system/{name} turns swap on: remove the unit"
        );
    }
    Ok("none".to_owned())
}

/// With an empty file, systemd generates an id for each machine.
pub(super) fn machine_id(root: &Root) -> Result<String> {
    let id = root.text("etc/machine-id")?;
    let is_empty = matches!(id.trim(), "" | "uninitialized");
    ensure!(
        is_empty,
        "/etc/machine-id has an id, which all machines would share: empty the file"
    );
    Ok("none".to_owned())
}

/// Keys in an image are known to everybody with access to the image.
pub(super) fn host_keys(root: &Root) -> Result<String> {
    for name in root.names("etc/ssh")? {
        let is_key = name.starts_with("ssh_host_");
        ensure!(
            !is_key,
            "/etc/ssh/{name} is a key that all machines would share: remove it"
        );
    }
    Ok("none".to_owned())
}
