//! The images that the disks of machines are layers upon. Each is verified against its checksum before the
//! first machine of a host uses it, and again when its file has changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use cmi_driver::{Code, Result, Status};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use virt::connect::Connect;
use virt::error::ErrorNumber;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use crate::config::Image;
use crate::errors::status;
use crate::storage_pool;

/// How many bytes are read at once.
const CHUNK: usize = 256 * 1024;

/// An image on a host whose checksum was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedImage {
    /// Path of its file on the host.
    pub path: String,
    /// Its size as a guest sees it, bytes.
    pub capacity: u64,
}

/// The checksums that were found in the files of images.
#[derive(Clone, Debug, Default)]
pub struct Images(Arc<Mutex<HashMap<Place, Known>>>);

/// What is known of an image; locked while its file is read.
type Known = Arc<Mutex<Option<State>>>;

/// The place of an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    host: String,
    storage_pool: String,
    volume: String,
}

/// The state of a file, and the checksum that was found in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    stamp: Stamp,
    sha256: String,
}

/// The properties that show a change of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: String,
    capacity: u64,
    modified: Option<String>,
}

impl Images {
    /// Returns the image, if its checksum is the configured one. The whole file is read the first time, and
    /// after a change of the file.
    ///
    /// # Errors
    /// FAILED_PRECONDITION when the image is missing, is another one, or was copied in part; ABORTED while
    /// another job reads the file: jobs that wait would take up the connections of the host.
    pub fn check(&self, connect: &Connect, host: &str, name: &str, image: &Image) -> Result<CheckedImage> {
        let volume = find(connect, host, name, image)?;
        let stamp = stamp(&volume)?;
        let place = Place {
            host: host.to_owned(),
            storage_pool: image.storage_pool.clone(),
            volume: image.volume.clone(),
        };
        let known = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(place).or_default())
        };
        let mut known = match known.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let what = format!("image `{name}` is being read on host `{host}`, to be checked");
                return Err(Status::new(Code::Aborted, what));
            }
        };
        let current = match known.take().filter(|state| state.stamp == stamp) {
            Some(state) => state,
            None => State {
                sha256: checksum(connect, &volume)?,
                stamp: stamp.clone(),
            },
        };
        let found = known.insert(current).sha256.clone();
        if found != image.sha256 {
            return Err(Status::new(
                Code::FailedPrecondition,
                format!(
                    "image `{name}` on host `{host}` has the SHA-256 {found}, and not the configured {}: it \
                        is another one, or was copied in part",
                    image.sha256
                ),
            ));
        }
        Ok(CheckedImage {
            path: stamp.path,
            capacity: stamp.capacity,
        })
    }
}

/// Finds the volume of an image. libvirt sees a file that was copied into the folder of a pool only once it
/// has reread the pool.
fn find(connect: &Connect, host: &str, name: &str, image: &Image) -> Result<StorageVol> {
    let pool = StoragePool::lookup_by_name(connect, &image.storage_pool).map_err(|error| {
        status(
            &format!("looking for the storage pool of image `{name}` on host `{host}`"),
            error,
        )
    })?;
    let missing = |error: &virt::error::Error| error.code() == ErrorNumber::NoStorageVolume;
    let found = match StorageVol::lookup_by_name(&pool, &image.volume) {
        Err(error) if missing(&error) => {
            storage_pool::refresh(&pool, &image.storage_pool)?;
            StorageVol::lookup_by_name(&pool, &image.volume)
        }
        found => found,
    };
    found.map_err(|error| {
        if missing(&error) {
            let what = format!(
                "image `{name}` is missing on host `{host}`: storage pool `{}` has no volume `{}`",
                image.storage_pool, image.volume
            );
            return Status::new(Code::FailedPrecondition, what).with_source(error);
        }
        status(&format!("looking for image `{name}` on host `{host}`"), error)
    })
}

fn stamp(volume: &StorageVol) -> Result<Stamp> {
    #[derive(Deserialize)]
    struct Described {
        capacity: u64,
        target: Target,
    }
    #[derive(Deserialize)]
    struct Target {
        path: String,
        timestamps: Option<Timestamps>,
    }
    #[derive(Deserialize)]
    struct Timestamps {
        mtime: Option<String>,
    }
    let xml = volume
        .get_xml_desc(0)
        .map_err(|error| status("reading the description of an image", error))?;
    let described: Described = quick_xml::de::from_str(&xml).map_err(|error| {
        Status::new(Code::Internal, "libvirt's description of an image can't be read").with_source(error)
    })?;
    Ok(Stamp {
        path: described.target.path,
        capacity: described.capacity,
        modified: described.target.timestamps.and_then(|times| times.mtime),
    })
}

/// Computes the checksum of the whole file. The file is read over the connection, since the host may be
/// another computer.
fn checksum(connect: &Connect, volume: &StorageVol) -> Result<String> {
    let failed = |error| status("reading an image", error);
    let stream = Stream::new(connect, 0).map_err(failed)?;
    volume.download(&stream, 0, 0, 0).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match stream.recv(&mut chunk).map_err(failed)? {
            0 => break,
            read => hash.update(&chunk[..read]),
        }
    }
    stream.finish().map_err(failed)?;
    Ok(hex(&hash.finalize()))
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}
