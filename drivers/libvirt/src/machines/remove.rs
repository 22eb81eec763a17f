//! Removes a machine, or the rest of a machine after an interrupted deletion.

use cmi_driver::{Code, Result, Status};
use virt::connect::Connect;
use virt::error::ErrorNumber;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;

use super::{DomainMatch, Lookup, Vm, domain_of, look};
use crate::errors::{of_a_volume, status};
use crate::identity::{MachineKey, Names as _};
use crate::metadata::Record;
use crate::storage_pool;

/// Removes the machine: first its volumes, then its domain. The machine exists as long as its domain does.
/// A repeated call removes the rest.
///
/// # Errors
/// Returns the errors of the host.
pub fn delete(connect: &Connect, key: &MachineKey, storage_pools: &[String]) -> Result<()> {
    match look(connect, key)? {
        Lookup::Ours(mut vm) => {
            vm.ensure_not_locked()?;
            vm.switch_off()?;
            remove_volumes(connect, key, storage_pools)?;
            vm.undefine()?;
            ensure_gone(connect, key)
        }
        // The volumes have the machine object's UUID in their names, so they are this machine's in any case.
        Lookup::Nothing | Lookup::Other(_) => {
            remove_volumes(connect, key, storage_pools)?;
            ensure_not_defined(connect, key)
        }
        Lookup::Doubtful(what) => {
            let what = format!(
                "cannot delete machine `{}`: its volumes may be in use by {what}",
                key.name
            );
            Err(Status::new(Code::FailedPrecondition, what))
        }
    }
}

/// Removes the machine from a host that is not expected to have it. A host that does not answer, or cannot
/// serve the look-up, counts as down: the deletion on the machine's own host must not wait for it. If the
/// machine is found here, it is removed.
///
/// # Errors
/// Returns the errors of the removal.
pub fn delete_where_it_can_not_be(connect: &Connect, key: &MachineKey) -> Result<()> {
    let unseen = |status: Status| {
        tracing::debug!(
            machine = key.name,
            %status,
            "cannot search a host that is not expected to have the machine"
        );
        Ok(())
    };
    match domain_of(connect, key) {
        Err(status) => unseen(status),
        Ok(DomainMatch::ByUuid(_) | DomainMatch::ByName(_)) => delete(connect, key, &[]),
        Ok(DomainMatch::Nothing) => match volumes(connect, key) {
            Ok(found) if found.is_empty() => Ok(()),
            Ok(found) => {
                remove(found)?;
                ensure_not_defined(connect, key)
            }
            Err(status) => unseen(status),
        },
    }
}

/// Ends a domain that another process has defined or started while its volumes were removed: a domain that
/// runs while it is undefined exists until it ends.
fn ensure_gone(connect: &Connect, key: &MachineKey) -> Result<()> {
    let Lookup::Ours(vm) = look(connect, key)? else {
        return Ok(());
    };
    vm.destroy()?;
    let what = format!("another call started machine `{}` during its deletion", key.name);
    Err(Status::new(Code::Aborted, what))
}

/// Returns ABORTED where another process has defined the domain while its volumes were removed, with the
/// paths that it knew of them: the repeat finds the domain, and removes it.
fn ensure_not_defined(connect: &Connect, key: &MachineKey) -> Result<()> {
    match look(connect, key)? {
        Lookup::Nothing | Lookup::Other(_) => Ok(()),
        Lookup::Ours(_) | Lookup::Doubtful(_) => {
            let what = format!("another call created machine `{}` during its deletion", key.name);
            Err(Status::new(Code::Aborted, what))
        }
    }
}

/// Removes the machine's volumes from every pool: its spec may have named another one.
fn remove_volumes(connect: &Connect, key: &MachineKey, storage_pools: &[String]) -> Result<()> {
    for name in storage_pools {
        refresh(connect, name)?;
    }
    remove(volumes(connect, key)?)
}

/// Finds the machine's volumes in the active pools.
pub(super) fn volumes(connect: &Connect, key: &MachineKey) -> Result<Vec<StorageVol>> {
    let failed = |error| status("looking for the volumes of the machine", error);
    let mut found = Vec::new();
    let pools = connect
        .list_all_storage_pools(virt_sys::VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE)
        .map_err(failed)?;
    for pool in pools {
        for volume in pool.list_all_volumes(0).map_err(failed)? {
            if key.has_volume(&volume.get_name().map_err(failed)?) {
                found.push(volume);
            }
        }
    }
    Ok(found)
}

fn remove(volumes: Vec<StorageVol>) -> Result<()> {
    for volume in volumes {
        match volume.delete(0) {
            Ok(()) => {}
            Err(error) if error.code() == ErrorNumber::NoStorageVolume => {}
            Err(error) => return Err(of_a_volume("deleting a volume of the machine", error)),
        }
    }
    Ok(())
}

/// Has libvirt reread a pool: libvirt does not know of console logs that its log daemon has put aside, nor of
/// snapshots outside of the disk. A pool that does not exist has no volumes. An inactive pool is an error,
/// since its volumes are not visible.
fn refresh(connect: &Connect, name: &str) -> Result<()> {
    let failed = |error| status(&format!("looking for storage pool `{name}`"), error);
    let pool = match StoragePool::lookup_by_name(connect, name) {
        Err(error) if error.code() == ErrorNumber::NoStoragePool => return Ok(()),
        found => found.map_err(failed)?,
    };
    if pool.is_active().map_err(failed)? {
        return storage_pool::refresh(&pool, name);
    }
    let what = format!("storage pool `{name}` is not active, and may have volumes of the machine: start it");
    Err(Status::new(Code::FailedPrecondition, what))
}

impl Vm {
    fn switch_off(&mut self) -> Result<()> {
        if !self.record.deleting {
            let record = Record {
                deleting: true,
                ..self.record.clone()
            };
            self.note(record)?;
        }
        // Otherwise a host that restarts during the deletion would start the domain.
        if self.is_persistent()? {
            self.domain
                .set_autostart(false)
                .map_err(|error| status("disabling the autostart of the domain", error))?;
        }
        self.destroy()
    }

    fn undefine(&self) -> Result<()> {
        let with_all = virt_sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            | virt_sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            | virt_sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
            | virt_sys::VIR_DOMAIN_UNDEFINE_NVRAM;
        match self.domain.undefine_flags(with_all) {
            Ok(()) => Ok(()),
            Err(error) if error.code() == ErrorNumber::NoDomain => Ok(()),
            Err(error) => Err(status("undefining the domain", error)),
        }
    }
}
