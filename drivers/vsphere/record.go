package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Keys of a VM's extra configuration. The guest reads and writes keys that begin with `guestinfo.`, so the identity is not
// among them.
const (
	recordKey      = "capcmi.machine"
	initializedKey = "capcmi.initialized"
)

// Lengths of a VM's name in vCenter.
const (
	maxVMName   = 80
	tokenDigits = 8
)

// record says which machine a VM is. The request that makes the VM stores it, so no crash leaves a VM without one. vCenter
// keeps it on every move and rename. Custom attributes come later and are for people only.
type record struct {
	Cluster string            `json:"cluster"`
	Name    string            `json:"name"`
	VM      string            `json:"vm"`
	Zone    string            `json:"zone,omitempty"`
	Tags    map[string]string `json:"tags"`
}

func newRecord(id cmi.Identity, zone string) record {
	return record{Cluster: id.Cluster, Name: id.Name, VM: vmName(id), Zone: zone, Tags: maps.Clone(id.Tags)}
}

// vmName returns the VM's name in vCenter, which is unique in its folder. So vCenter refuses the second of two requests
// for a machine, even if the first one is still running.
func vmName(id cmi.Identity) string {
	name := id.Name
	if most := maxVMName - tokenDigits - 1; len(name) > most {
		name = name[:most]
	}
	return name + "-" + id.Token()[:tokenDigits]
}

// instanceID returns the instance UUID of a machine's VM. vCenter's index finds the VM by it in every folder. Machine
// objects with the same name share it.
func instanceID(cluster, name string) string {
	sum := sha256.Sum256([]byte(cluster + "\x00" + name))
	return uuid.NewSHA1(uuid.NameSpaceOID, sum[:]).String()
}

// biosID returns the BIOS UUID of a new VM, which is different for each machine object.
func biosID(id cmi.Identity) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(id.Token())).String()
}

// errBroken is about a VM whose record cannot be read, or that has lost it.
var errBroken = errors.New("the record of the VM is broken")

func isBroken(err error) bool { return errors.Is(err, errBroken) }

func broken(name string) error {
	return cmi.Internal("the VM %s has no valid record in its extra configuration, key %s, so its machine is not known: "+
		"restore the key, or delete the VM", name, recordKey).Because(errBroken)
}

// readRecord returns false for a text that no driver has written.
func readRecord(text string) (record, bool) {
	var read record
	err := json.Unmarshal([]byte(text), &read)
	isWhole := read.Cluster != "" && read.Name != "" && read.VM != "" && read.Tags[cmi.ClusterTag] == read.Cluster
	return read, err == nil && isWhole
}

// isCopy says whether a person made the VM as a copy of the machine's VM: it has the record, but not the place.
func (r record) isCopy(name, instance string) bool {
	return name != r.VM && !r.isIndexed(instance)
}

// isIndexed says whether vCenter's index has the VM as that of the machine.
func (r record) isIndexed(instance string) bool { return instance == instanceID(r.Cluster, r.Name) }

// withoutCopies leaves out copies in other folders, which may also have the name of the machine's VM: vCenter gives no two
// VMs the same instance UUID.
func withoutCopies(vms []*cmi.VM) []*cmi.VM {
	indexed := map[string]bool{}
	for _, vm := range vms {
		if of := vm.Native.(native); of.isIndexed {
			indexed[of.record.key()] = true
		}
	}
	return slices.DeleteFunc(vms, func(vm *cmi.VM) bool {
		of := vm.Native.(native)
		return !of.isIndexed && indexed[of.record.key()]
	})
}

// key identifies the machine object.
func (r record) key() string { return r.Cluster + "/" + r.VM }

func (r record) option() (types.BaseOptionValue, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, cmi.Internal("cannot encode the record of %s", r.Name).Because(err)
	}
	return option(recordKey, string(text)), nil
}

func option(key, value string) types.BaseOptionValue {
	return &types.OptionValue{Key: key, Value: value}
}
