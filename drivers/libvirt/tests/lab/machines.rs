//! Calls about machines, and their domains and volumes on the hosts.

use anyhow::Result;
use capcmi_driver_libvirt::LibvirtDriver;
use capcmi_driver_libvirt::identity::{MachineKey, Names as _};
use capcmi_driver_libvirt::metadata::{NAMESPACE, PREFIX, Record};
use cmi_driver::{
    Code, CreateMachineRequest, DeleteMachineRequest, Driver as _, GetMachineStatusRequest, LastKnownState,
    Machine, MachineRef, PowerState, ProviderId,
};
use virt::connect::Connect;
use virt::domain::Domain;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;

use super::CLUSTER;

/// The kind of metadata that consists of an XML element.
pub const ELEMENT: i32 = virt_sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed();

/// Creates a machine, with the state from an earlier answer.
pub async fn create_with(
    driver: &LibvirtDriver,
    machine: &MachineRef,
    last_known_state: Option<LastKnownState>,
) -> cmi_driver::Result<Machine> {
    let request = CreateMachineRequest {
        machine: machine.clone(),
        last_known_state,
    };
    driver.create_machine(request).await
}

/// Creates a machine. If the first call only places it, a second one passes the placement record.
pub async fn create(driver: &LibvirtDriver, machine: &MachineRef) -> cmi_driver::Result<Machine> {
    let first = create_with(driver, machine, None).await;
    match placed(&first) {
        Some(state) => create_with(driver, machine, Some(state)).await,
        None => first,
    }
}

/// The placement record of a create that placed the machine without creating it.
pub fn placed(answer: &cmi_driver::Result<Machine>) -> Option<LastKnownState> {
    let status = answer.as_ref().err()?;
    let placed = status.code() == Code::Aborted && status.message().contains("is placed on host");
    // The answer promises that no VM can appear later, so a deletion need not wait.
    assert!(!placed || status.has_no_side_effects(), "{status:?}");
    status.last_known_state().cloned().filter(|_| placed)
}

/// Deletes a machine.
pub async fn delete(
    driver: &LibvirtDriver,
    machine: &MachineRef,
    id: Option<&ProviderId>,
) -> cmi_driver::Result<()> {
    let request = DeleteMachineRequest {
        machine: machine.clone(),
        provider_id: id.cloned(),
        last_known_state: None,
    };
    driver.delete_machine(request).await.map(drop)
}

/// Queries the state of a machine.
pub async fn status(
    driver: &LibvirtDriver,
    machine: &MachineRef,
    id: Option<&ProviderId>,
) -> cmi_driver::Result<Machine> {
    let request = GetMachineStatusRequest {
        machine: machine.clone(),
        provider_id: id.cloned(),
    };
    driver.get_machine_status(request).await
}

/// Whether the machine has an address or will get one.
pub fn is_up(machine: &Machine) -> bool {
    [Some(PowerState::Starting), Some(PowerState::Running)].contains(&machine.power_state)
}

/// The code of an error.
pub fn code<T>(answer: &cmi_driver::Result<T>) -> Option<Code> {
    answer.as_ref().err().map(cmi_driver::Status::code)
}

/// The identity of a machine, which determines its names and ids.
pub fn key(machine: &MachineRef) -> MachineKey {
    MachineKey {
        cluster: CLUSTER.to_owned(),
        name: machine.name.clone(),
        identity: format!("{}-1", machine.name),
    }
}

/// The domain of a machine on a host.
pub fn domain(connect: &Connect, machine: &MachineRef) -> Result<Domain> {
    Ok(Domain::lookup_by_name(connect, &key(machine).domain_name())?)
}

/// Changes the metadata of a domain, to simulate a driver that was killed.
pub fn note(domain: &Domain, change: impl FnOnce(Record) -> Record) -> Result<()> {
    let record = Record::parse(&domain.get_metadata(ELEMENT, Some(NAMESPACE), 0)?)?;
    let element = change(record).to_element()?;
    domain.set_metadata(ELEMENT, Some(&element), Some(PREFIX), Some(NAMESPACE), 0)?;
    Ok(())
}

/// The volumes of a machine whose names contain a word.
pub fn volumes(connect: &Connect, machine: &MachineRef, word: &str) -> Result<Vec<StorageVol>> {
    let pool = StoragePool::lookup_by_name(connect, "machines")?;
    let (prefix, mut found) = (key(machine).volume_prefix(), Vec::new());
    for volume in pool.list_all_volumes(0)? {
        let name = volume.get_name()?;
        if name.starts_with(&prefix) && name.contains(word) {
            found.push(volume);
        }
    }
    Ok(found)
}
