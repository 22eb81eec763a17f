//! What libvirt knows of a storage pool: it does not notice what other programs put there.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cmi_driver::{Code, Result, Status};
use virt::storage_pool::StoragePool;

use crate::errors::status;

/// For how long a pool may be busy. A job of the driver's keeps it for much less.
const BUSY_FOR: Duration = Duration::from_secs(5);
/// The pause between two tries.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Has libvirt look what is in an active pool. It refuses that while it makes a volume there, which is waited
/// for: what it has not seen could not be deleted, and would be left.
///
/// # Errors
/// ABORTED when it goes on refusing; those of the host.
pub fn refresh(pool: &StoragePool, name: &str) -> Result<()> {
    let deadline = Instant::now() + BUSY_FOR;
    loop {
        let Err(error) = pool.refresh(0) else {
            return Ok(());
        };
        let refused = status(&format!("reading storage pool `{name}` again"), error);
        // That it is busy has no number of its own: it is an internal error of libvirt's, or an operation
        // that is invalid. A pool that can't be read has libvirt switch it off.
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
