package main

import (
	"crypto/sha256"
	"encoding/json"
	"maps"

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

// isCopy says whether a person made the VM as a copy of the machine's VM: it has the record, but not the place.
func (r record) isCopy(name, instance string) bool {
	return name != r.VM && instance != instanceID(r.Cluster, r.Name)
}

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
