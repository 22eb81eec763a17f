//! The contract between this provider and a virtual machine back end, in terms of VMs.
//!
//! This crate does not know Kubernetes objects or gRPC. The calls and their meaning come from the driver
//! contract (create, delete, status, list, volume ids, class migration), the Common Machine Interface (shut
//! down, identity) and post-create initialization (initialize, update).
//!
//! # Guarantees a driver gives
//! * A machine is found by its name **inside the cluster** that the tag `kubernetes.io/cluster` of the
//!   provider spec names; no call ever touches a VM of another cluster, or a VM of the same name with another
//!   identity tag.
//! * Every call may be repeated, and may be dropped at any await point, without creating a second VM.
//! * An error carries the code of the call's error table and a sentence for an operator, without secret
//!   values.
//! * A driver that takes credentials from the class's secrets uses no others instead. Without the credentials
//!   that it needs, a call is answered UNAUTHENTICATED. Other credentials may belong to another account, and
//!   its "there is no such VM" would make the provider forget a VM.
//!
//! # Assumptions a driver may make
//! * Secrets hold the bootstrap data under [`USER_DATA`] and its format under [`USER_DATA_FORMAT`].
//! * The provider spec is the user's JSON object with tags, failure domain and static addresses
//!   injected.
//!
//! # Help for a driver
//! A [`Backend`] needs four methods: [`BackendDriver`] makes the calls of a driver of them. A driver that
//! offers more calls implements [`Driver`]: [`ProviderSpec::decode`] and [`fields`] read the provider spec,
//! [`MachineKey`] knows the VMs of a machine, and [`Locks`] keep changes of one machine apart. The crate
//! `cmi-grpc` serves both.

#![deny(missing_docs)]

mod backend;
mod calls;
mod capabilities;
mod catch_panic;
mod class;
mod code;
mod dns;
mod error_chain;
pub mod fields;
mod hosted_id;
mod locks;
mod machine_key;
mod messages;
mod named_enum;
mod operation;
mod redact;
mod request;
pub mod secret_forms;
mod spec_schema;
mod static_address;
mod status;
pub mod tags;

/// The attribute that an `impl` of [`Driver`] needs.
pub use async_trait::async_trait;

pub use backend::{Backend, BackendDriver, DecodedClass, Vm};
pub use capabilities::{Capabilities, DeclaredCapabilities, JsonPointer, ParseJsonPointerError};
pub use catch_panic::{catch_panic, is_in_call};
pub use class::{MachineClass, ProviderSpec, SecretValue, Secrets, USER_DATA, USER_DATA_FORMAT};
pub use code::{Code, ParseCodeError};
pub use dns::{is_dns_label, is_dns_subdomain};
pub use error_chain::ErrorChain;
pub use hosted_id::HostedId;
pub use locks::{HeldLock, Locks};
pub use machine_key::MachineKey;
pub use messages::*;
pub use operation::Operation;
pub use request::Request;
pub use spec_schema::{InvalidSpecSchema, SpecSchema};
pub use static_address::{AddressPool, StaticAddress};
pub use status::{ParseStatusError, Status};

/// The result of a call: the response, or a [`Status`] that describes the failure.
pub type Result<T> = std::result::Result<T, Status>;

/// A virtual machine back end.
///
/// Create and delete are required; every other call has a default that answers UNIMPLEMENTED, and the
/// controller then uses its fallback (DRV-26, DRV-33, DRV-40, DRV-48). A driver declares its calls in
/// [`Capabilities`], so the caller does not have to try them.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Counts how often the driver was lost and reached again, or was replaced on the same connection. Then
    /// its earlier declarations may no longer be true. Makes no call. 0 before the first connection, and
    /// always for a driver in this process.
    fn connection_generation(&self) -> u64 {
        0
    }

    /// Name and version of the driver, for logs, metrics and `capcmi driver info`.
    async fn get_plugin_info(&self) -> Result<PluginInfo>;

    /// The declared calls and behaviour. Constant during the [`Driver::connection_generation`] in the answer.
    /// A driver in this process converts its [`Capabilities`] with `into()`.
    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities>;

    /// Whether the driver itself can serve calls now. The driver need not check its back end. If it does, it
    /// answers FAILED_PRECONDITION while the back end is unreachable.
    async fn probe(&self) -> Result<Readiness>;

    /// Checks, as far as possible, that this call could leave this process now. Makes no call on the back
    /// end. The caller checks this before it writes a record that would be wrong if the call were never sent.
    async fn prepare_call(&self, _operation: Operation) -> Result<()> {
        Ok(())
    }

    /// Creates the VM with this name, or adopts the VM of an earlier call whose answer was lost.
    ///
    /// OK when a compatible VM of the same identity exists (DRV-10); ALREADY_EXISTS when the VM with this
    /// name has other parameters or another identity (DRV-CR-06). Any error other than `Uninitialized` may or
    /// may not have created the VM. Only INVALID_ARGUMENT, ALREADY_EXISTS and OUT_OF_RANGE mean that no VM
    /// was created, and only the codes of [`Code::is_final_for_create`] mean that none will be created later.
    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine>;

    /// Deletes the VM and its resources. OK when there is no VM (DRV-19); UNAUTHENTICATED without the
    /// credentials that the driver needs to check for it.
    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse>;

    /// Reads the VM without changing anything (DRV-29). NOT_FOUND only when the back end confirmed that the
    /// VM does not exist (DRV-30); `Uninitialized`, with the machine in [`Status::machine`], when it waits
    /// for [`Driver::initialize_machine`] (INI-18). The class is the class that a create would get, without
    /// bootstrap data.
    async fn get_machine_status(&self, _request: GetMachineStatusRequest) -> Result<Machine> {
        Err(Status::unimplemented(Operation::GetMachineStatus))
    }

    /// All VMs of the class's cluster (DRV-34), and none of another (DRV-03).
    async fn list_machines(&self, _request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        Err(Status::unimplemented(Operation::ListMachines))
    }

    /// Performs the one-time initialization of a VM that exists; may be repeated (INI-22).
    async fn initialize_machine(&self, _request: InitializeMachineRequest) -> Result<Machine> {
        Err(Status::unimplemented(Operation::InitializeMachine))
    }

    /// Requests the guest to stop, before the VM is deleted. OK when the guest has stopped, or has accepted
    /// to stop (CMI-127). In the second case, [`Machine::power_state`] tells whether it still runs, if the
    /// driver knows. A driver that waits for the guest itself answers ABORTED while the guest is stopping.
    /// The VM still exists afterwards.
    async fn shut_down_machine(&self, _request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        Err(Status::unimplemented(Operation::ShutDownMachine))
    }

    /// Changes the hot-updatable fields of the VM from the last applied to the given provider spec
    /// (UPD-01..UPD-03).
    async fn update_machine(&self, _request: UpdateMachineRequest) -> Result<()> {
        Err(Status::unimplemented(Operation::UpdateMachine))
    }

    /// Restarts a VM whose Node has stopped reporting, by force if necessary: its guest may hang and ignore
    /// requests. Switches on a VM that is off. OK when the back end has accepted the order; the call does not
    /// wait for the guest to be up again. ABORTED while an earlier restart is running counts as OK.
    ///
    /// The VM stays the same: its id, its Node's name, its tags and its disks stay; its addresses may change.
    /// NOT_FOUND when no VM has this name and identity: the call creates none. A repeated call may restart
    /// the VM once more, and does no other harm. UNAVAILABLE and a lost answer count as one of the restarts
    /// that the remediation allows, unless the error is marked [`Status::with_no_side_effects`].
    async fn restart_machine(&self, _request: RestartMachineRequest) -> Result<()> {
        Err(Status::unimplemented(Operation::RestartMachine))
    }

    /// Returns the latest output of the VM's serial console, or of its log if the back end has no console.
    /// Changes nothing. NOT_FOUND when no VM has this name and identity; FAILED_PRECONDITION when the VM has
    /// no console.
    async fn get_console(&self, _request: GetConsoleRequest) -> Result<Console> {
        Err(Status::unimplemented(Operation::GetConsole))
    }

    /// Returns the volume ids of the given PersistentVolume specs, and leaves out volumes of other back ends
    /// (DRV-42..DRV-45).
    async fn get_volume_ids(&self, _request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        Err(Status::unimplemented(Operation::GetVolumeIds))
    }

    /// Fills a machine class from a class of the back end's own kind (DRV-47..DRV-51).
    async fn generate_machine_class_for_migration(
        &self,
        _request: GenerateMachineClassForMigrationRequest,
    ) -> Result<serde_json::Map<String, serde_json::Value>> {
        Err(Status::unimplemented(Operation::GenerateMachineClassForMigration))
    }

    /// Lists the failure domains that a machine of this class may request.
    async fn list_zones(&self, _request: ListZonesRequest) -> Result<Vec<Zone>> {
        Err(Status::unimplemented(Operation::ListZones))
    }

    /// Returns the resources of one machine of this class, for scaling from zero.
    async fn describe_class(&self, _request: DescribeClassRequest) -> Result<ClassDescription> {
        Err(Status::unimplemented(Operation::DescribeClass))
    }
}
