//go:build unix

package mcmbridge

import (
	"context"
	"testing"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmitest"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/mcmbridge/internal/fakecloud"
)

// hooked adds the hooks that only the platform can serve.
type hooked struct {
	*bridge
	cloud *fakecloud.Driver
}

func (h hooked) UserData(_ context.Context, vm *cmi.VM) ([]byte, error) {
	found, err := h.cloud.Read(vm.ID)
	return found.UserData, err
}

func (h hooked) Uninitialize(_ context.Context, vm *cmi.VM) error {
	found, err := h.cloud.Read(vm.ID)
	if err != nil {
		return err
	}
	found.Initialized = false
	return h.cloud.Write(found)
}

func (h hooked) Changes(context.Context) (int, error) { return h.cloud.Changes() }

// MCM's fake driver keeps the contract behind the bridge, under every fault that a hook can cause.
func TestFakeDriverOfMCMKeepsTheContract(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the whole conformance suite")
	}
	info := cmi.Info{Name: "fake.example.com", Version: "v0.1.0"}
	cloud := &fakecloud.Driver{Folder: cmitest.Shared(t, "folder", t.TempDir)}
	backend := hooked{newBridge(info, cloud, []Option{Provider(fakecloud.Provider)}), cloud}
	cmitest.Run(t, info, backend, cmitest.Suite{
		ProviderSpec:       map[string]any{"size": "small"},
		MandatoryFields:    []string{"/size"},
		Secrets:            map[string]string{"token": fakecloud.Token},
		BadSecrets:         []map[string]string{{}, {"token": "the-wrong-token"}},
		RestrictedSecrets:  map[string]string{"token": fakecloud.NoRights},
		InvalidSpecs:       []any{map[string]any{"size": "huge"}, map[string]any{"size": 7}},
		OutOfRangeSpecs:    []any{map[string]any{"diskGB": 5000}},
		QuotaBreakingSpec:  map[string]any{"diskGB": 999},
		IncompatibleChange: map[string]any{"size": "large"},
		OwnVolumes:         []cmitest.Volume{volume("one"), volume("two")},
		ForeignVolumes: []any{
			map[string]any{"csi": map[string]string{"driver": "csi.example.com", "volumeHandle": "other"}},
		},
		Migration: &cmitest.Migration{
			APIGroup: "example.com",
			Kind:     "FakeClass",
			Class:    map[string]any{"spec": map[string]any{"size": "large"}},
			Expected: map[string]any{
				"metadata": map[string]any{"name": "kept"}, "provider": "FakeProvider",
				"providerSpec": map[string]any{"size": "large"},
			},
			Broken: []any{map[string]any{"spec": map[string]any{"size": 7}}, map[string]any{}},
		},
		UniqueNames:  true,
		LongestName:  253,
		ManyMachines: 60,
	})
}

func volume(id string) cmitest.Volume {
	csi := map[string]string{"driver": fakecloud.VolumeDriver, "volumeHandle": id}
	return cmitest.Volume{Spec: map[string]any{"csi": csi}, ID: id}
}
