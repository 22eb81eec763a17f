//! The NoCloud data for cloud-init: user data, metadata and network configuration.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use cmi_driver::Result;

use crate::config::Subnet;
use crate::errors::status;
use crate::identity::Names as _;
use crate::record::Record;

/// The folder in a root file system where cloud-init looks for the data.
pub const FOLDER: &str = "var/lib/cloud/seed/nocloud";

/// Writes the data into the upper layer of a machine. Only root may read it: it holds secrets.
pub fn write(upper: &Path, record: &Record, gateway: Option<Subnet>, user_data: &[u8]) -> Result<()> {
    let folder = upper.join(FOLDER);
    let failed = |error| status("writing the bootstrap data", error);
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .map_err(failed)?;
    for (name, content) in [
        ("meta-data", meta_data(record).as_bytes()),
        ("network-config", network_config(record, gateway).as_bytes()),
        ("user-data", user_data),
    ] {
        let file = folder.join(name);
        fs::write(&file, content)
            .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o600)))
            .map_err(failed)?;
    }
    Ok(())
}

/// Returns the instance metadata. The host name is quoted, since YAML reads `1001` as a number and `no` as
/// false.
fn meta_data(record: &Record) -> String {
    let key = record.key();
    format!(
        "instance-id: {}\nlocal-hostname: \"{}\"\nprovider_id: {}\n",
        key.uuid(),
        key.hostname(),
        key.machine_id(&record.host)
    )
}

/// Returns the network configuration of the only interface. The bridge is the gateway of a given address.
fn network_config(record: &Record, gateway: Option<Subnet>) -> String {
    let addresses = match (record.address, gateway) {
        (Some(address), Some(gateway)) => format!(
            "addresses: [{address}/{}]\n    gateway4: {}\n    nameservers: {{addresses: [{}]}}",
            gateway.prefix, gateway.address, gateway.address
        ),
        (None, _) | (_, None) => "dhcp4: true".to_owned(),
    };
    format!("version: 2\nethernets:\n  eth0:\n    {addresses}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn only_root_reads_the_bootstrap_data() {
        let upper = tempfile::tempdir().unwrap();
        write(upper.path(), &record(), None, b"\xff secret").unwrap();
        let folder = upper.path().join(FOLDER);
        assert_eq!(fs::read(folder.join("user-data")).unwrap(), b"\xff secret");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("user-data"))), (0o700, 0o600));
        // An overlay takes the modes of its upper layer.
        assert_eq!(mode(&upper.path().join("var")), 0o755);
        let meta_data = fs::read_to_string(folder.join("meta-data")).unwrap();
        let id = record().key().machine_id("host-a");
        assert!(meta_data.contains(&format!("provider_id: {id}\n")), "{meta_data}");
    }

    #[test]
    fn an_address_is_given_or_comes_by_dhcp() {
        let gateway = Subnet::try_from("192.168.150.1/24".to_owned()).ok();
        assert!(network_config(&record(), gateway).ends_with("eth0:\n    dhcp4: true\n"));
        let given = Record {
            address: "192.168.150.20".parse().ok(),
            ..record()
        };
        let config = network_config(&given, gateway);
        assert!(
            config.contains("addresses: [192.168.150.20/24]\n    gateway4: 192.168.150.1\n"),
            "{config}"
        );
    }
}
