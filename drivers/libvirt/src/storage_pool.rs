//! Refreshes what libvirt knows of a storage pool: libvirt does not notice what other programs put there.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cmi_driver::{Code, Result, Status};
use virt::storage_pool::StoragePool;

use crate::errors::status;

/// How long a refresh is retried while the pool is busy. A job of the driver keeps a pool busy for much less.
const BUSY_FOR: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Has libvirt reread an active pool. libvirt refuses that while it makes a volume there, so the refresh is
/// retried for a while: a volume that libvirt has not seen could not be deleted, and would be left.
///
/// # Errors
/// ABORTED when libvirt keeps refusing; those of the host.
pub fn refresh(pool: &StoragePool, name: &str) -> Result<()> {
    let deadline = Instant::now() + BUSY_FOR;
    loop {
        let Err(error) = pool.refresh(0) else {
            return Ok(());
        };
        let refused = status(&format!("reading storage pool `{name}` again"), error);
        // A busy pool has no error number of its own: libvirt reports an internal error, or an invalid
        // operation. A pool that can't be read is made inactive by libvirt.
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
