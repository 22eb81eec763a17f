//! Creates a machine, or completes a partial one.

use std::sync::Arc;

use cmi_driver::{Code, Machine, Result, SecretValue, Status, tags};
use sha2::{Digest as _, Sha256};
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error, ErrorNumber};
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::{Guests, Look, Lookup, Scope, Vm, look, networks};
use crate::config::{Image, ImageFormat, Network, Size, VirtType, VmPool};
use crate::errors::{of_a_volume, status};
use crate::identity::{MachineKey, Names as _};
use crate::images::{CheckedImage, Images, hex};
use crate::metadata::Record;
use crate::placement::{Held, Reservations};
use crate::seed::{self, Addressing, Instance, Interface};
use crate::spec::{self, GB, VmSpec};
use crate::xml::{self, Bootstrap};

/// The most bytes in one call to libvirt.
const CHUNK: usize = 256 * 1024;
/// libvirt rounds the size of a layer up to this unit.
const KIB: u64 = 1024;
/// The format of bootstrap data that is not for cloud-init.
const IGNITION: &[u8] = b"ignition";

/// A request to create a machine on a host.
#[derive(Debug)]
pub struct MachineRequest {
    /// The machine.
    pub key: MachineKey,
    /// Its provider spec.
    pub spec: VmSpec,
    /// The host, as the configuration names it.
    pub host: String,
    /// How guests run.
    pub virt_type: VirtType,
    /// The pool that it is placed in.
    pub pool: VmPool,
    /// The networks of its interfaces, with their names.
    pub networks: Vec<(String, Network)>,
    /// Its CPUs and memory.
    pub size: Size,
    /// The name of the image in the configuration.
    pub image_name: String,
    /// The image that its root file system is a layer upon.
    pub image: Image,
    /// The bootstrap data.
    pub user_data: Option<SecretValue>,
    /// The format of the bootstrap data, if the caller names one.
    pub format: Option<SecretValue>,
    /// The checksums that were already verified.
    pub images: Images,
    /// Memory of the host that is not for machines, MiB.
    pub reserved_mib: u64,
    /// The memory that is reserved for other machines.
    pub reservations: Arc<Reservations>,
    /// The known addresses of guests.
    pub guests: Arc<Guests>,
}

impl MachineRequest {
    fn is_ignition(&self) -> bool {
        let format = self.format.as_ref();
        format.is_some_and(|format| format.expose() == IGNITION)
    }
}

/// The result of a request that was decided. Any other outcome is an error.
#[derive(Debug)]
pub enum Created {
    /// The machine exists.
    Made(Box<Machine>),
    /// Nothing was created: a domain with the name belongs to another machine, or the host can't have the
    /// machine.
    Refused(Status),
}

/// The result of the checks before the first change.
struct Checked {
    pool: StoragePool,
    /// How each interface gets addresses.
    addressing: Vec<Addressing>,
    image: CheckedImage,
    root_bytes: u64,
    /// Held until the domain counts towards the host's memory.
    _memory: Held,
}

/// Creates the machine, or adopts its domain.
///
/// A failure half-way rolls nothing back. Another process may be creating the same machine from the same
/// volumes, and its guest may already run. A repeated create continues from the existing parts, and a delete
/// removes them.
///
/// # Errors
/// ALREADY_EXISTS when the machine exists with another spec; otherwise the error of the host.
pub fn create(connect: &Connect, request: &MachineRequest) -> Result<Created> {
    match look(connect, &request.key)? {
        Lookup::Ours(vm) => adopt(*vm, request)?,
        Lookup::Other(what) | Lookup::Doubtful(what) => {
            let message = format!("cannot create machine `{}`: there is {what}", request.key.name);
            return Ok(Created::Refused(Status::new(Code::AlreadyExists, message)));
        }
        Lookup::Nothing => match check(connect, request) {
            Ok(checked) => make(connect, request, &checked)?,
            Err(status) if status.code().is_final_for_create() && has_no_disk(connect, request) => {
                return Ok(Created::Refused(status));
            }
            Err(status) => return Err(status),
        },
    }
    match look(connect, &request.key)? {
        Lookup::Ours(vm) => {
            let look = Look::new(connect, &request.guests, Scope::Machine);
            Ok(Created::Made(Box::new(vm.describe(&look)?)))
        }
        // A create must not return NOT_FOUND.
        Lookup::Nothing | Lookup::Other(_) | Lookup::Doubtful(_) => Err(changed_meanwhile(request)),
    }
}

/// Whether the host confirms that the machine's first volume does not exist.
fn has_no_disk(connect: &Connect, request: &MachineRequest) -> bool {
    let found = StoragePool::lookup_by_name(connect, &request.pool.storage_pool)
        .and_then(|pool| StorageVol::lookup_by_name(&pool, &root_volume(&request.key)));
    let nothing = [ErrorNumber::NoStoragePool, ErrorNumber::NoStorageVolume];
    found.is_err_and(|error| nothing.contains(&error.code()))
}

fn root_volume(key: &MachineKey) -> String {
    format!("{}root.qcow2", key.volume_prefix())
}

fn changed_meanwhile(request: &MachineRequest) -> Status {
    let what = format!(
        "another call changed machine `{}` at the same time",
        request.key.name
    );
    Status::new(Code::Aborted, what)
}

/// Checks whether the host can have the machine, and reserves the memory.
fn check(connect: &Connect, request: &MachineRequest) -> Result<Checked> {
    if request.is_ignition() && !request.spec.network_addresses.is_empty() {
        let what = "static addresses require bootstrap data for cloud-init, and this is for Ignition: set \
            them there, without addressesFromPools";
        return Err(Status::new(Code::InvalidArgument, what));
    }
    let memory = super::memory(connect, request.reserved_mib)?;
    let (host, needed) = (&request.host, request.size.memory_mib);
    let held = request
        .reservations
        .hold(request.key.uuid(), host, needed, &memory);
    let held = held.map_err(|free| {
        let what = format!(
            "host `{host}` has {free} MiB of memory for machines, and the machine needs {needed} MiB"
        );
        Status::new(Code::ResourceExhausted, what)
    })?;
    let pool = active_pool(connect, &request.pool.storage_pool)?;
    let addressing = request
        .networks
        .iter()
        .map(|(_, network)| match &network.network {
            Some(name) => networks::addressing(connect, name),
            None => Ok(Addressing::ANY),
        });
    let addressing = addressing.collect::<Result<_>>()?;
    let image = request
        .images
        .check(connect, &request.host, &request.image_name, &request.image)?;
    // libvirt rounds up the same way. Otherwise the volume of an earlier call would seem incomplete.
    let root_bytes = root_bytes(request, &image)?.next_multiple_of(KIB);
    Ok(Checked {
        pool,
        addressing,
        image,
        root_bytes,
        _memory: held,
    })
}

fn adopt(mut vm: Vm, request: &MachineRequest) -> Result<()> {
    vm.ensure_not_being_deleted()?;
    if let Some(field) = vm.record.difference(&request.spec) {
        return Err(Status::new(
            Code::AlreadyExists,
            format!(
                "VM {} of machine `{}` exists, and its /{field} differs from the provider spec",
                vm.record.provider_id, request.key.name
            ),
        ));
    }
    if vm.record.started { Ok(()) } else { vm.start() }
}

fn active_pool(connect: &Connect, name: &str) -> Result<StoragePool> {
    let failed = |error| status(&format!("looking for storage pool `{name}`"), error);
    let pool = StoragePool::lookup_by_name(connect, name).map_err(failed)?;
    if pool.is_active().map_err(failed)? {
        return Ok(pool);
    }
    let what = format!("storage pool `{name}` is not active: start it, and enable its autostart");
    Err(Status::new(Code::FailedPrecondition, what))
}

/// Returns the size of the root file system: at least the image's size, and more if the spec asks for it.
fn root_bytes(request: &MachineRequest, image: &CheckedImage) -> Result<u64> {
    let Some(gigabytes) = request.spec.root_fs_size else {
        return Ok(image.capacity);
    };
    let asked = gigabytes.saturating_mul(GB);
    if asked < image.capacity {
        let what = format!(
            "the provider spec's /rootFsSize is {gigabytes} GB: image `{}` needs at least {} bytes",
            request.image_name, image.capacity
        );
        return Err(Status::new(Code::OutOfRange, what));
    }
    Ok(asked)
}

fn make(connect: &Connect, request: &MachineRequest, checked: &Checked) -> Result<()> {
    let Checked {
        pool,
        addressing,
        image,
        root_bytes,
        ..
    } = checked;
    let key = &request.key;
    let id = key.vm_id(&request.host).to_string();
    let prefix = key.volume_prefix();
    let root = root_volume(key);
    let backing = (image.path.as_str(), request.image.format);
    let layer = xml::Volume {
        name: &root,
        capacity: *root_bytes,
        format: ImageFormat::Qcow2,
        backing: Some(backing),
    };
    let root_path = path(&have_volume(connect, request, pool, &layer)?)?;
    let data = request
        .user_data
        .as_ref()
        .map_or([].as_slice(), SecretValue::expose);
    let is_ignition = request.is_ignition();
    let macs = key.macs(request.networks.len());
    let networks: Vec<_> = request.networks.iter().map(|(name, _)| name).collect();
    let interfaces = macs.iter().zip(addressing).enumerate();
    let interfaces = interfaces.map(|(index, (mac, addressing))| Interface {
        mac: mac.clone(),
        addressing: *addressing,
        addresses: spec::addresses_of(&request.spec.network_addresses, index, &networks)
            .into_iter()
            .cloned()
            .collect(),
    });
    let instance = Instance {
        id: key.uuid().to_string(),
        hostname: key.hostname(),
        provider_id: id.clone(),
        interfaces: interfaces.collect(),
    };
    let seed = if is_ignition {
        data.to_vec()
    } else {
        seed::image(&instance, data)?
    };
    // The content determines the name. A second process may create the same machine with renewed bootstrap
    // data, and must not overwrite the file of a running guest.
    let digest = hex(&Sha256::digest(data)[..8]);
    let seed_name = format!(
        "{prefix}{}-{digest}",
        if is_ignition { "ignition" } else { "seed" }
    );
    let seed_path = filled_volume(connect, request, pool, &seed_name, &seed)?;
    let console = xml::Volume {
        name: &request.key.console_volume(),
        capacity: 0,
        format: ImageFormat::Raw,
        backing: None,
    };
    let console_path = path(&have_volume(connect, request, pool, &console)?)?;
    let data_paths = data_volumes(connect, request, pool)?;
    let interfaces = macs.iter().zip(&request.networks);
    let interfaces: Vec<_> = interfaces
        .map(|(mac, (_, network))| xml::Interface { mac, network })
        .collect();
    let record = new_record(request, id, *root_bytes);
    let domain = xml::Domain {
        name: &key.domain_name(),
        uuid: &key.uuid().to_string(),
        virt_type: request.virt_type,
        record: &record,
        cpus: request.size.cpus,
        memory_mib: request.size.memory_mib,
        current_memory_mib: request.spec.memory_mib.unwrap_or(request.size.memory_mib),
        cpu_shares: request.spec.cpu_shares,
        firmware: request.image.firmware,
        direct_boot: request.image.direct_boot.as_ref(),
        root_path: &root_path,
        bootstrap: if is_ignition {
            Bootstrap::Ignition {
                path: &seed_path,
                hostname: &instance.hostname,
                provider_id: &instance.provider_id,
            }
        } else {
            Bootstrap::Seed(&seed_path)
        },
        console_path: &console_path,
        data_paths: &data_paths,
        interfaces: &interfaces,
    };
    let xml = domain.to_xml()?;
    define(connect, request, &xml, record)
}

/// Returns the metadata of a domain that was not started yet.
fn new_record(request: &MachineRequest, provider_id: String, root_bytes: u64) -> Record {
    Record {
        name: request.key.name.clone(),
        cluster: request.key.cluster.clone(),
        identity: request.key.identity.clone(),
        provider_id,
        created_at: jiff::Timestamp::now(),
        started: false,
        started_at: None,
        deleting: false,
        vm_pool: request.spec.vm_pool.clone(),
        size: request.spec.size.clone(),
        root_fs_bytes: root_bytes,
        disks_gb: request.spec.disk_sizes().collect(),
        networks: request.networks.iter().map(|(name, _)| name.clone()).collect(),
        network_addresses: request.spec.network_addresses.clone(),
        image: request.image_name.clone(),
        host: request.host.clone(),
        tags: tags::own(&request.spec.tags),
    }
}

/// Returns the paths of the volumes of the data disks, and creates them if necessary.
fn data_volumes(connect: &Connect, request: &MachineRequest, pool: &StoragePool) -> Result<Vec<String>> {
    let sizes = request.spec.disk_sizes().enumerate();
    let paths = sizes.map(|(index, gigabytes)| {
        let volume = xml::Volume {
            name: &request.key.data_volume(index),
            capacity: gigabytes.saturating_mul(GB).next_multiple_of(KIB),
            format: ImageFormat::Qcow2,
            backing: None,
        };
        path(&have_volume(connect, request, pool, &volume)?)
    });
    paths.collect()
}

/// Defines and starts the domain. Adopts a domain that another process has defined in the time between:
/// defining it again would change it.
fn define(connect: &Connect, request: &MachineRequest, xml: &str, record: Record) -> Result<()> {
    match look(connect, &request.key)? {
        Lookup::Nothing => {}
        Lookup::Ours(vm) => return adopt(*vm, request),
        Lookup::Other(_) | Lookup::Doubtful(_) => return Err(changed_meanwhile(request)),
    }
    let domain = Domain::define_xml(connect, xml).map_err(|error| match look(connect, &request.key) {
        // Not ALREADY_EXISTS: with that code there is nothing to delete, but the volumes exist.
        Ok(Lookup::Other(_) | Lookup::Doubtful(_)) => changed_meanwhile(request).with_source(error),
        _ => status("defining the domain", error),
    })?;
    Vm { domain, record }.start()
}

/// Returns the volume with this name, and creates it if necessary.
///
/// A process that was killed half-way may have left an incomplete volume. It is replaced, unless a domain
/// that may use it exists by now. Another process, configured with another image, may have created the same
/// machine since the first look-up.
fn have_volume(
    connect: &Connect,
    request: &MachineRequest,
    pool: &StoragePool,
    wanted: &xml::Volume<'_>,
) -> Result<StorageVol> {
    let doing = format!("making volume `{}`", wanted.name);
    match StorageVol::lookup_by_name(pool, wanted.name) {
        Ok(there) => {
            if is_whole(&there, wanted).map_err(|error| of_a_volume(&doing, error))? {
                return Ok(there);
            }
            match look(connect, &request.key)? {
                Lookup::Nothing => {}
                Lookup::Ours(_) | Lookup::Other(_) | Lookup::Doubtful(_) => {
                    return Err(changed_meanwhile(request));
                }
            }
            there.delete(0).map_err(|error| of_a_volume(&doing, error))?;
        }
        Err(error) if error.code() == ErrorNumber::NoStorageVolume => {}
        Err(error) => return Err(status(&doing, error)),
    }
    StorageVol::create_xml(pool, &wanted.to_xml()?, 0).map_err(|error| status(&doing, error))
}

/// Whether a volume has the wanted size and backing image. A volume without a wanted capacity holds data that
/// a guest has written, so any size is right.
fn is_whole(there: &StorageVol, wanted: &xml::Volume<'_>) -> std::result::Result<bool, Error> {
    if wanted.capacity != 0 && there.get_info()?.capacity != wanted.capacity {
        return Ok(false);
    }
    Ok(match wanted.backing {
        Some((path, _)) => there.get_xml_desc(0)?.contains(&path_element(path)),
        None => true,
    })
}

/// A path in libvirt's XML.
fn path_element(path: &str) -> String {
    format!("<path>{}</path>", quick_xml::escape::partial_escape(path))
}

/// Creates a volume with this content, and returns its path. Writes the content even if the volume exists,
/// since it may be incomplete.
fn filled_volume(
    connect: &Connect,
    request: &MachineRequest,
    pool: &StoragePool,
    name: &str,
    content: &[u8],
) -> Result<String> {
    // Another process may be creating or deleting the same volume.
    let failed = |error: Error| of_a_volume(&format!("writing volume `{name}`"), error);
    let volume = have_volume(
        connect,
        request,
        pool,
        &xml::Volume {
            name,
            capacity: content.len() as u64,
            format: ImageFormat::Raw,
            backing: None,
        },
    )?;
    if !content.is_empty() {
        let stream = Stream::new(connect, 0).map_err(failed)?;
        volume
            .upload(&stream, 0, content.len() as u64, 0)
            .map_err(failed)?;
        let mut rest = content;
        while !rest.is_empty() {
            let sent = stream.send(&rest[..rest.len().min(CHUNK)]).map_err(failed)?;
            rest = &rest[sent..];
        }
        stream.finish().map_err(failed)?;
    }
    path(&volume)
}

fn path(volume: &StorageVol) -> Result<String> {
    volume
        .get_path()
        .map_err(|error| of_a_volume("reading the path of a volume", error))
}
