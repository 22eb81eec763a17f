package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmitest"
)

func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the whole conformance suite")
	}
	var reach access
	text := cmitest.Shared(t, "vcenter", func() string { return newVCenter(t).access.text(t) })
	must(t, json.Unmarshal([]byte(text), &reach))
	secrets := reach.secrets()
	with := func(changes map[string]string) map[string]string {
		changed := map[string]string{}
		for key, value := range secrets {
			changed[key] = value
		}
		for key, value := range changes {
			changed[key] = value
		}
		return changed
	}
	csi := func(driver, handle string) map[string]any {
		return map[string]any{"csi": map[string]string{"driver": driver, "volumeHandle": handle}}
	}
	cmitest.Run(t, info(), newBackend(testSettings()), cmitest.Suite{
		ProviderSpec: map[string]any{
			"datacenter": "DC0", "cluster": cluster, "datastore": datastore, "template": template,
			"networks": []string{network0}, "cpus": 2, "memoryMiB": 2048,
		},
		Secrets:          secrets,
		PublicSecretKeys: []string{serverKey, thumbprintKey},
		BadSecrets: []map[string]string{
			{}, with(map[string]string{passwordKey: "the-wrong-password"}),
			with(map[string]string{usernameKey: "unknown-user-of-vsphere"}),
		},
		RestrictedSecrets: with(map[string]string{usernameKey: guest, passwordKey: guestPassword}),
		InvalidSpecs: []any{
			map[string]any{"memoryMiB": 2049}, map[string]any{"template": "no-such-template"},
			map[string]any{"datacenter": "DC9"}, map[string]any{"datastoreCluster": pod},
		},
		OutOfRangeSpecs:    []any{map[string]any{"dataDisksGiB": []int{0}}, map[string]any{"diskGiB": 1}},
		IncompatibleChange: map[string]any{"cpus": 4},
		QuotaBreakingSpec:  map[string]any{"datastore": fullStore},
		FullFailureDomain:  "full",
		OwnVolumes: []cmitest.Volume{
			{Spec: csi(csiDriver, "volume-1"), ID: "volume-1"}, {Spec: csi(csiDriver, "volume-3"), ID: "volume-3"},
		},
		ForeignVolumes: []any{csi("csi.example.com", "volume-2")},
		LongestName:    253,
		ManyMachines:   25,
	})
}

// UserData lets the suite compare the user data of a VM with the request.
func (b *backend) UserData(ctx context.Context, vm *cmi.VM) ([]byte, error) {
	var text string
	err := b.read(ctx, vm, func(read mo.VirtualMachine) {
		text, _ = object.OptionValueList(read.Config.ExtraConfig).GetString(userDataKey)
	})
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(text)
}

// Uninitialize takes the mark away, as if a crash had come before it.
func (b *backend) Uninitialize(ctx context.Context, vm *cmi.VM) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	return v.reconfigure(ctx, vm, types.VirtualMachineConfigSpec{
		ExtraConfig: []types.BaseOptionValue{option(initializedKey, "")},
	})
}

var errUnconfigured = errors.New("the VM has no configuration")

// read reads the configuration of a VM.
func (b *backend) read(ctx context.Context, vm *cmi.VM, use func(mo.VirtualMachine)) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	return v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		var read mo.VirtualMachine
		ref, properties := vm.Native.(native).ref, []string{"config", "guest", "customValue"}
		if err := property.DefaultCollector(client).RetrieveOne(ctx, ref, properties, &read); err != nil {
			return err
		}
		if read.Config == nil {
			return errUnconfigured
		}
		use(read)
		return nil
	})
}
