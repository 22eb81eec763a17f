//! The base images of machine disks. The driver verifies the checksum of an image before the first machine on
//! a host uses it, and again when its file changes.

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

/// Bytes in one read.
const CHUNK: usize = 256 * 1024;

/// An image on a host whose checksum was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedImage {
    /// Path of its file on the host.
    pub path: String,
    /// Its size as a guest sees it, bytes.
    pub capacity: u64,
}

/// The computed checksums of image files.
#[derive(Clone, Debug, Default)]
pub struct Images(Arc<Mutex<HashMap<Place, Known>>>);

/// The last computed checksum, if any. Locked while a job reads the file.
type Known = Arc<Mutex<Option<State>>>;

/// The location of an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    host: String,
    storage_pool: String,
    volume: String,
}

/// The state of a file, and its computed checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    stamp: Stamp,
    sha256: String,
}

/// Properties that change when the file changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: String,
    capacity: u64,
    modified: Option<String>,
}

impl Images {
    /// Returns the image if its checksum matches the configuration. Reads the whole file the first time, and
    /// again after it has changed.
    ///
    /// # Errors
    /// FAILED_PRECONDITION when the image is missing, differs or is incomplete. ABORTED while another job
    /// reads the file: waiting jobs would occupy all connections to the host.
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
                let what = format!("image `{name}` is being read on host `{host}` to verify its checksum");
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
                    "image `{name}` on host `{host}` has the SHA-256 {found} instead of the configured {}: \
                        copy the image again, or correct the configuration",
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

/// Finds the volume of an image. If a file was copied into the pool's folder, libvirt sees it only after a
/// refresh.
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
                "image `{name}` is missing on host `{host}`: copy it into storage pool `{}` as volume `{}`",
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
        Status::new(Code::Internal, "cannot parse libvirt's description of an image").with_source(error)
    })?;
    Ok(Stamp {
        path: described.target.path,
        capacity: described.capacity,
        modified: described.target.timestamps.and_then(|times| times.mtime),
    })
}

/// Computes the checksum of the whole file. Reads it over the connection, since the host may be another
/// computer.
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
