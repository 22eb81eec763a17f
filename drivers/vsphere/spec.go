package main

import (
	"context"
	"strconv"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// spec is the provider spec.
type spec struct {
	placement

	CPUs         int32   `json:"cpus" cmi:"min=1,max=960" jsonschema:"number of virtual CPUs"`
	MemoryMiB    int64   `json:"memoryMiB" cmi:"min=128,max=25165824" jsonschema:"memory in MiB"`
	DiskGiB      int64   `json:"diskGiB,omitempty" cmi:"min=1,max=63488" jsonschema:"size of the first disk"`
	DataDisksGiB []int64 `json:"dataDisksGiB,omitempty" jsonschema:"sizes of further, empty disks"`

	CustomAttributes bool `json:"customAttributes,omitempty" jsonschema:"show the machine in custom attributes"`

	FailureDomain string `json:"failureDomain,omitempty" jsonschema:"name of a failure domain of the driver"`
}

// The largest virtual disk.
const mostDiskGiB = 62 << 10

// Validate checks rules that do not depend on the failure domain.
func (s *spec) Validate() error {
	if s.MemoryMiB%4 != 0 {
		return cmi.Invalid("/memoryMiB", "is %d and must be a multiple of 4", s.MemoryMiB)
	}
	for i, size := range s.DataDisksGiB {
		if size < 1 || size > mostDiskGiB {
			return cmi.OutOfRange("/dataDisksGiB/"+strconv.Itoa(i), "is %d; a disk has 1 to %d GiB", size, mostDiskGiB)
		}
	}
	return nil
}

// Size returns the resources of a machine. A user who may not read vCenter gets none.
func (b *backend) Size(ctx context.Context, s spec) (cmi.Size, error) {
	if err := b.authorized(ctx); err != nil {
		return cmi.Size{}, err
	}
	return cmi.Size{
		Capacity: map[string]string{
			"cpu": strconv.FormatInt(int64(s.CPUs), 10), "memory": strconv.FormatInt(s.MemoryMiB, 10) + "Mi",
		},
		Architecture:    "amd64",
		OperatingSystem: "linux",
	}, nil
}
