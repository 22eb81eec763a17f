package main

import (
	"context"
	"testing"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmitest"
)

func TestConformance(t *testing.T) {
	cmitest.Run(t, info, &backend{cmitest.Shared(t, "folder", t.TempDir)}, cmitest.Suite{
		ProviderSpec:       map[string]any{"size": "small"},
		IncompatibleChange: map[string]any{"size": "large"},
		LongestName:        253,
		ManyMachines:       25,
	})
}

// UserData lets the suite compare the user data of a VM with the request.
func (b *backend) UserData(_ context.Context, vm *cmi.VM) ([]byte, error) {
	return vm.Native.(instance).UserData, nil
}
