// A driver in Go on the kit of sdk/go. Its back end is a folder with a file for each VM.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// spec is the provider spec. The kit adds the tags.
type spec struct {
	VMPool     string `json:"vmPool" jsonschema:"any name"`
	Size       string `json:"size" cmi:"enum=small|large"`
	RootFsSize uint32 `json:"rootFsSize,omitempty" jsonschema:"size of the root file system in GB; 10 by default"`
}

const leastRootFsGB = 10

// mostRootFsGB has the largest root file system of each size.
var mostRootFsGB = map[string]uint32{"small": 100, "large": 1000}

func (s *spec) SetDefaults() { s.RootFsSize = leastRootFsGB }

func (s *spec) Validate() error {
	if most := mostRootFsGB[s.Size]; s.RootFsSize < leastRootFsGB || s.RootFsSize > most {
		return cmi.OutOfRange("/rootFsSize", "is %d; a VM of /size %s has %d to %d", s.RootFsSize, s.Size, leastRootFsGB, most)
	}
	return nil
}

func main() {
	folder := os.Getenv("GO_DRIVER_CLOUD")
	if folder == "" {
		fmt.Fprintln(os.Stderr, "GO_DRIVER_CLOUD must name the folder with the VMs")
		os.Exit(1)
	}
	cloud, err := openCloud(folder)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cmi.Main(cmi.Info{Name: "go-driver.example.com", Version: "0.1.0"}, &backend{cloud})
}

// backend connects the kit with the cloud.
type backend struct{ cloud *cloud }

// Find returns the VMs of a machine.
func (b *backend) Find(ctx context.Context, id cmi.Identity, _ spec) ([]*cmi.VM, error) {
	return b.vms(ctx, func(r record) bool { return r.cluster() == id.Cluster && r.Machine == id.Name })
}

// List returns the VMs of a cluster.
func (b *backend) List(ctx context.Context, cluster string, _ spec) ([]*cmi.VM, error) {
	return b.vms(ctx, func(r record) bool { return r.cluster() == cluster })
}

func (b *backend) vms(ctx context.Context, wanted func(record) bool) ([]*cmi.VM, error) {
	records, err := b.cloud.read(ctx, wanted)
	vms := make([]*cmi.VM, len(records))
	for i, record := range records {
		vms[i] = record.vm()
	}
	return vms, err
}

// Create writes the file of a VM.
func (b *backend) Create(_ context.Context, id cmi.Identity, spec spec, boot cmi.Bootstrap) (*cmi.VM, error) {
	made := newRecord(id, spec, boot)
	return made.vm(), b.cloud.write(made)
}

// Delete removes the file of a VM.
func (b *backend) Delete(_ context.Context, vm *cmi.VM) error {
	return b.cloud.remove(vm.Native.(record))
}

// Stop stops the guest, which takes no time here.
func (b *backend) Stop(_ context.Context, vm *cmi.VM) error {
	stopped := vm.Native.(record)
	stopped.Stopped = true
	return b.cloud.write(stopped)
}

// Lock keeps other processes away, too. A back end that other computers use needs its own lock, a client token or a
// unique name.
func (b *backend) Lock(_ context.Context, id cmi.Identity) (unlock func(), err error) {
	return b.cloud.lock(id)
}
