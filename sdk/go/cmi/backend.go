package cmi

import (
	"context"
	"encoding/json"
	"time"
)

// Backend is the VM platform of a driver. Spec is a struct with the fields of the provider spec, or [OpenSpec]; see [Main].
//
// Calls arrive in parallel, at most one of Create, Delete and other changes for each machine. A context ends when the
// caller leaves or its deadline passes; pass it to every request. [SecretsOf] returns the credentials of the call.
//
// Errors of this package, such as [Unavailable], choose the code of the answer. Any other error becomes UNKNOWN, or
// UNAVAILABLE when the platform could not be reached.
type Backend[Spec any] interface {
	// Find returns every VM with the cluster and the name of id, whoever owns it. The result is empty only when
	// the platform confirmed that no VM exists: the caller then creates one.
	Find(ctx context.Context, id Identity, spec Spec) ([]*VM, error)

	// Create makes a VM and stores id.Tags and the name with it, in the request that makes it. Find has
	// returned no VM of this name.
	Create(ctx context.Context, id Identity, spec Spec, boot Bootstrap) (*VM, error)

	// Delete deletes a VM that Find has returned, with its disks and addresses. It may return while the platform
	// is still busy: the package looks the VM up again, and answers OK only when it is gone. It may set vm.State.
	Delete(ctx context.Context, vm *VM) error

	// List returns all VMs of a cluster.
	List(ctx context.Context, cluster string, spec Spec) ([]*VM, error)
}

// Prober is a back end that checks its own health. The check runs every few seconds and should not call the platform.
type Prober interface {
	// Probe returns nil, [ErrStarting], or the reason why the driver cannot serve.
	Probe(ctx context.Context) error
}

// Matcher is a back end that compares a VM with a spec. Without it, the package compares a digest in the tag
// [SpecTag].
type Matcher[Spec any] interface {
	// Match returns a difference for the operator, or the empty string. Fields that Update changes do not count.
	Match(ctx context.Context, vm *VM, spec Spec) (difference string, err error)
}

// Locker is a back end that several driver processes use, and that has a lock for a machine. The package holds the lock
// during each changing call, beside its own lock in memory.
type Locker interface {
	// Lock returns a function that ends the lock, or [Busy] when another process holds it.
	Lock(ctx context.Context, id Identity) (unlock func(), err error)
}

// Stopper is a back end that can ask a guest to stop.
type Stopper interface {
	// Stop asks the guest to stop and does not wait for it.
	Stop(ctx context.Context, vm *VM) error
}

// Starter is a back end that can start a VM that is off. A restart of such a VM calls Start.
type Starter interface {
	// Start starts the VM and does not wait for the guest.
	Start(ctx context.Context, vm *VM) error
}

// Restarter is a back end that can reset a VM whose guest may hang.
type Restarter interface {
	// Restart resets the VM and does not wait for the guest. A repeat may restart the VM once more.
	Restart(ctx context.Context, vm *VM) error
}

// Initializer is a back end with steps that need an existing VM. Its VMs have a reason in VM.Uninitialized until
// they are initialized.
type Initializer[Spec any] interface {
	// Initialize does the missing steps. A repeat does no step again.
	Initialize(ctx context.Context, vm *VM, spec Spec) error
}

// Rechecker is an [Initializer] that cannot always tell from Find whether a VM is initialized. InitializeMachine then calls
// Initialize also without a reason in VM.Uninitialized.
type Rechecker interface {
	// Rechecks has no effect.
	Rechecks()
}

// Cleaner is a back end whose failed creates leave parts without a VM behind, such as a disk.
type Cleaner[Spec any] interface {
	// Clean deletes the parts of a machine that has no VM any longer. DeleteMachine answers OK when it succeeds.
	Clean(ctx context.Context, id Identity, spec Spec) error
}

// Updater is a back end that can change a running VM. Fields with the tag `cmi:"hot"` and all tags are updatable.
type Updater[Spec any] interface {
	// Update compares the VM with change.Spec and changes the rest. A repeat changes nothing.
	Update(ctx context.Context, vm *VM, change Change[Spec]) error
}

// Change is the work of an [Updater].
type Change[Spec any] struct {
	// Spec is the wanted spec, LastApplied the spec of the last successful create or update.
	Spec, LastApplied Spec
	// SetTags are the tags that the VM lacks or has with another value.
	SetTags map[string]string
	// RemoveTags are the names of tags that the last applied spec has and the wanted spec lacks.
	RemoveTags []string
}

// Zoner is a back end with failure domains. Its Spec has a field with the JSON name `failureDomain`, which the caller
// sets.
type Zoner[Spec any] interface {
	// Zones returns the failure domains. The spec may be empty: then the result has all of them.
	Zones(ctx context.Context, spec Spec) ([]Zone, error)
}

// Zone is a failure domain.
type Zone struct {
	Name string
	// ControlPlane says whether control-plane machines may be placed there.
	ControlPlane bool
	Attributes   map[string]string
}

// Sizer is a back end that knows the resources of a machine before it exists, for autoscalers.
type Sizer[Spec any] interface {
	Size(ctx context.Context, spec Spec) (Size, error)
}

// Size is the resources of a machine.
type Size struct {
	// Capacity has Kubernetes quantities by resource name: `cpu: "4"`, `memory: "16Gi"`.
	Capacity map[string]string
	// Architecture is `amd64`, `arm64`, `s390x` or `ppc64le`.
	Architecture string
	// OperatingSystem is `linux` or `windows`.
	OperatingSystem string
}

// Consoler is a back end that records the serial console of a VM.
type Consoler interface {
	// Console returns the latest output. [Forbidden] means that the VM has no console.
	Console(ctx context.Context, vm *VM) ([]byte, error)
}

// VolumeFinder is a back end that recognises its volumes in PersistentVolumes.
type VolumeFinder interface {
	// VolumeID returns the id of the volume, or the empty string for a volume of somebody else.
	VolumeID(ctx context.Context, volume PersistentVolume) (string, error)
}

// PersistentVolume is the spec of a PersistentVolume.
type PersistentVolume struct {
	// Driver and Handle are those of a CSI volume, and empty for others.
	Driver, Handle string
	// Spec is the whole PersistentVolumeSpec.
	Spec json.RawMessage
}

// Migrator is a back end that converts machine classes of machine-controller-manager.
type Migrator interface {
	// Migrate returns class, filled from the provider's own class. The metadata of class stays.
	Migrate(ctx context.Context, from ProviderClass, class json.RawMessage) (json.RawMessage, error)
}

// ProviderClass is a machine class of a platform's own kind, such as AWSMachineClass.
type ProviderClass struct {
	APIGroup, Kind string
	Object         json.RawMessage
}

// Info describes a driver.
type Info struct {
	// Name is in domain name notation, such as `acme.example.com`, with at most 63 bytes.
	Name string
	// Version is a semantic version by custom.
	Version string
	// Manifest has further facts for `capcmi driver info`.
	Manifest map[string]string
	// ConsistencyWindow says for how long the platform may return an outdated state. The caller believes that a
	// VM is gone only after that time.
	ConsistencyWindow time.Duration
	// ListHasState says that List sets Addresses and Power of each VM as Find does. The caller lists every minute, and
	// then sees changes without a call for each VM. Leave it out if that takes List a remote call for each VM.
	ListHasState bool
}
