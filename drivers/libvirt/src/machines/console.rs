//! Reads the serial console of a machine.

use cmi_driver::{Code, Console, Result, Status};
use virt::connect::Connect;
use virt::error::{Error, ErrorNumber};
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::{find, remove};
use crate::errors::status;
use crate::identity::{MachineKey, Names as _};

/// The bytes of one read.
const CHUNK: usize = 16 * 1024;

/// Reads the end of the console's log.
///
/// # Errors
/// NOT_FOUND when the host has no VM of the machine; FAILED_PRECONDITION when its log is gone.
pub fn console(connect: &Connect, key: &MachineKey) -> Result<Console> {
    find(connect, key)?;
    let name = key.console_volume();
    let mut volumes = remove::volumes(connect, key)?.into_iter();
    let Some(log) = volumes.find(|volume| volume.get_name().is_ok_and(|found| found == name)) else {
        let message = format!("the console log `{name}` is in no active storage pool");
        return Err(Status::new(Code::FailedPrecondition, message));
    };
    let output = end_of(connect, &log).map_err(|error| failure(&name, error))?;
    Ok(Console::new(&output))
}

/// Reads the last bytes of a volume. libvirt reads the size of the file again for each `get_info`.
fn end_of(connect: &Connect, log: &StorageVol) -> std::result::Result<Vec<u8>, Error> {
    let most = Console::MAX_BYTES;
    let from = log.get_info()?.capacity.saturating_sub(most as u64);
    let stream = Stream::new(connect, 0)?;
    log.download(&stream, from, 0, 0)?;
    let (mut output, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    // The guest may write faster than this reads.
    while output.len() < 2 * most {
        let read = stream.recv(&mut chunk)?;
        if read == 0 {
            stream.finish()?;
            return Ok(output);
        }
        output.extend_from_slice(&chunk[..read]);
    }
    stream.abort()?;
    Ok(output)
}

fn failure(name: &str, error: Error) -> Status {
    let doing = format!("reading the console log `{name}`");
    if error.code() == ErrorNumber::NoStorageVolume {
        return Status::new(
            Code::FailedPrecondition,
            format!("{doing} failed: the volume no longer exists"),
        );
    }
    status(&doing, error)
}
