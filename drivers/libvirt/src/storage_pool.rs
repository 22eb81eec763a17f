//! Refreshes a storage pool: libvirt does not notice volumes that other programs put there.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cmi_driver::{Code, Result, Status};
use virt::storage_pool::StoragePool;

use crate::errors::status;

/// How long a refresh is retried. A job of the driver keeps a pool busy for a much shorter time.
const BUSY_FOR: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Refreshes an active pool. libvirt refuses this while it creates a volume in the pool, so the refresh is
/// retried for a while. Without it, a volume that libvirt does not know could not be deleted, and would
/// remain.
///
/// # Errors
/// ABORTED when the pool stays busy; otherwise the error of the host.
pub fn refresh(pool: &StoragePool, name: &str) -> Result<()> {
    let deadline = Instant::now() + BUSY_FOR;
    loop {
        let Err(error) = pool.refresh(0) else {
            return Ok(());
        };
        let refused = status(&format!("refreshing storage pool `{name}`"), error);
        // libvirt has no error number for a busy pool: it reports an internal error or an invalid operation.
        // libvirt deactivates a pool that it can't read.
        let may_be_busy = [Code::Internal, Code::FailedPrecondition, Code::Aborted].contains(&refused.code());
        if !may_be_busy || !pool.is_active().is_ok_and(|is_active| is_active) {
            return Err(refused);
        }
        if Instant::now() >= deadline {
            return Err(Status::new(Code::Aborted, refused.message()).with_source(refused));
        }
        sleep(BETWEEN_TRIES);
    }
}
