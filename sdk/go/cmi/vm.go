package cmi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// Tags that the caller sets on the VMs of a machine.
const (
	// ClusterTag holds the id of the cluster.
	ClusterTag = "kubernetes.io/cluster"
	// RoleTag holds `control-plane` or `node`.
	RoleTag = "kubernetes.io/role"
	// MachineTag holds the id of the machine object. A new object with the same name has another id.
	MachineTag = "capcmi.io/machine"
	// SpecTag holds a digest of the provider spec that a VM was made from. This package sets it.
	SpecTag = "capcmi.io/spec"
)

// Identity says which machine a call is about.
type Identity struct {
	// Cluster is the id of the cluster.
	Cluster string
	// Name is the machine's name, unique within its cluster: a DNS subdomain of at most 253 bytes.
	Name string
	// Machine is the id of the machine object. It is empty for an adopted VM that lacks [MachineTag].
	Machine string
	// Tags are the tags that the VM must have: the owner's, the user's and SpecTag.
	Tags map[string]string
}

// String returns the name and the cluster for messages.
func (id Identity) String() string {
	return fmt.Sprintf("machine %s of cluster %s", id.Name, id.Cluster)
}

// Token returns a client token for platforms that accept one: requests with the same token make at most one VM.
func (id Identity) Token() string {
	sum := sha256.Sum256([]byte(id.Cluster + "\x00" + id.Name + "\x00" + id.Machine + faults.Salt))
	return hex.EncodeToString(sum[:16])
}

// StaticAddress is an address that a VM must have from its creation. A Spec gets them if it has an optional field with
// the JSON name `networkAddresses`, a list of this type. The caller sets it; users can't.
type StaticAddress struct {
	Address string `json:"address"`
	// Prefix is the length of the prefix of the address's network.
	Prefix int `json:"prefix"`
	// Gateway is empty in a network without one.
	Gateway string `json:"gateway,omitempty"`
	// Network is the network of the VM, as users of the driver name it. Empty: the first one.
	Network string `json:"network,omitempty"`
	// Pool is the pool that the address is from.
	Pool AddressPool `json:"pool"`
}

// AddressPool is a pool of addresses.
type AddressPool struct {
	APIGroup string `json:"apiGroup"`
	Kind     string `json:"kind"`
	Name     string `json:"name"`
}

// VM is a virtual machine that exists.
type VM struct {
	// ID is the ProviderID, equal to Node.spec.providerID: at most 512 bytes, unique and stable.
	ID string
	// Name is the machine's name that Create was called with.
	Name string
	// NodeName is the name that the Node will have. Empty: Name.
	NodeName string
	// Tags are the VM's tags, as the platform has them. They include those that Create stored.
	Tags map[string]string

	// Addresses are the known addresses.
	Addresses []Address
	// Power is the power state.
	Power Power
	// Zone is the failure domain of the VM.
	Zone string
	// CreatedAt is when the platform made the VM.
	CreatedAt time.Time

	// Uninitialized is the reason why the VM needs Initialize. Empty: it does not.
	Uninitialized string
	// Locked is the reason why the platform forbids every operation on the VM. Empty: it does not.
	Locked string
	// State is returned by [StateOf] in the next call about this machine: at most 4 KiB, and it can be lost.
	State []byte
	// Native is for the back end, which gets its own value back from Find.
	Native any
}

func (vm *VM) nodeName() string {
	if vm.NodeName == "" {
		return vm.Name
	}
	return vm.NodeName
}

// check finds values that the caller would not accept.
func (vm *VM) check() error {
	switch {
	case vm.ID == "" || len(vm.ID) > maxID:
		return Internal("the driver reports a VM with a ProviderID of %d bytes, which must be 1 to %d", len(vm.ID), maxID)
	case vm.nodeName() == "" || len(vm.nodeName()) > maxName:
		return Internal("the driver reports the VM %s with a node name of %d bytes, which must be 1 to %d",
			vm.ID, len(vm.nodeName()), maxName)
	case len(vm.State) > maxState:
		return Internal("the driver reports the VM %s with a state of %d bytes, which may be %d", vm.ID, len(vm.State), maxState)
	}
	return nil
}

func ids(vms []*VM) string {
	all := make([]string, len(vms))
	for i, vm := range vms {
		all[i] = vm.ID
	}
	return strings.Join(slices.Sorted(slices.Values(all)), ", ")
}

// Address is an address of a VM.
type Address struct {
	Type AddressType
	Text string
}

// AddressType is the type of an address, as in a Node's status.
type AddressType int

// The types of addresses.
const (
	HostName AddressType = iota + 1
	ExternalIP
	InternalIP
	ExternalDNS
	InternalDNS
)

// Power is the power state of a VM.
type Power int

// The power states. Failed: the VM will not run again.
const (
	PowerUnknown Power = iota
	Starting
	Running
	Stopping
	Stopped
	Failed
)

// Bootstrap is the first-boot data of a VM. It is a secret: it contains a token that lets a Node join.
type Bootstrap struct {
	// UserData is the data, byte for byte.
	UserData Secret
	// Format is `cloud-config` or `ignition`. Empty: unknown.
	Format string
}

// Secret is a value that formatting and JSON never show.
type Secret []byte

const redacted = "[redacted]"

// String hides the value.
func (Secret) String() string { return redacted }

// Format hides the value from every verb of package fmt.
func (Secret) Format(state fmt.State, _ rune) { fmt.Fprint(state, redacted) }

// MarshalText hides the value from encoders, such as those of JSON and slog.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Secrets are the credentials of a call by key.
type Secrets map[string]Secret

// Need returns the secret of a key without line ends behind it, or an UNAUTHENTICATED error that names the key.
func (s Secrets) Need(key string) (string, error) {
	value, known := s[key]
	switch text := strings.TrimRight(string(value), "\r\n"); {
	case strings.TrimSpace(text) != "":
		return text, nil
	case known:
		return "", Unauthenticated("the key %s of the Secret is empty", key)
	case len(s) == 0:
		return "", Unauthenticated("the Secret needs the key %s; it has no keys", key)
	default:
		keys := strings.Join(slices.Sorted(maps.Keys(s)), ", ")
		return "", Unauthenticated("the Secret needs the key %s; it has: %s", key, keys)
	}
}
