package main

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Initialize completes a VM, starts it and marks it as initialized. A repeat does the missing steps.
func (b *backend) Initialize(ctx context.Context, vm *cmi.VM, s spec) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	where, err := b.placement(s)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		action string
		do     func() error
	}{
		{"complete", func() error { return v.complete(ctx, vm, s, where) }},
		{"set custom attributes of", func() error { return v.showAttributes(ctx, vm, s) }},
		{"start", func() error { return v.start(ctx, vm) }},
		{"mark", func() error { return v.mark(ctx, vm) }},
	} {
		if err := step.do(); err != nil {
			return incomplete(vm, step.action, err)
		}
	}
	return nil
}

// incomplete explains a failed step. The VM exists, so it is neither full nor invalid: the step is tried again.
func incomplete(vm *cmi.VM, action string, err error) error {
	text := reason(err)
	if isGone(err, refOf(vm)) {
		return cmi.ErrGone
	}
	if text == "" || hasExpired(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return explain(err, action+" the VM "+vm.ID)
	}
	return cmi.Uninitialized("vCenter could not %s the VM %s: %s%s", action, vm.ID, text, privilege(err)).Because(err)
}

// complete gives the guest the ProviderID that vCenter has chosen, and a VM of a content library item its devices. A VM
// that runs has been completed.
func (v *vcenter) complete(ctx context.Context, vm *cmi.VM, s spec, where placement) error {
	if vm.Native.(native).on {
		return nil
	}
	var config types.VirtualMachineConfigSpec
	err := v.do(ctx, func(ctx context.Context, client *vim25.Client) (err error) {
		config, err = missing(ctx, client, vm, s, where)
		return err
	})
	if err != nil || len(config.ExtraConfig) == 0 && len(config.DeviceChange) == 0 {
		return err
	}
	return v.reconfigure(ctx, vm, config)
}

// missing returns the changes that complete a new VM.
func missing(
	ctx context.Context, client *vim25.Client, vm *cmi.VM, s spec, where placement,
) (types.VirtualMachineConfigSpec, error) {
	var config types.VirtualMachineConfigSpec
	var read mo.VirtualMachine
	ref := refOf(vm)
	properties := []string{"config.hardware.device", "config.extraConfig"}
	if err := property.DefaultCollector(client).RetrieveOne(ctx, ref, properties, &read); err != nil {
		return config, err
	}
	if read.Config == nil {
		return config, unready(vm.Name)
	}
	metadata, err := metadataFor(vm.Name, strings.TrimPrefix(vm.ID, providerID("")))
	if err != nil {
		return config, err
	}
	extra := object.OptionValueList(read.Config.ExtraConfig)
	if has, ok := extra.GetString(metadataKey); ok && has != base64.StdEncoding.EncodeToString(metadata) {
		config.ExtraConfig = encoded(metadataKey, metadata)
	}
	if where.LibraryItem == "" {
		return config, nil // the request that cloned it had the changes
	}
	search := lookup{ctx: ctx, client: client}
	networks := search.networks(where)
	if search.err != nil {
		return config, search.err
	}
	if config.DeviceChange, err = deviceChanges(read.Config.Hardware.Device, s, networks); err != nil {
		return config, cmi.Uninitialized("the VM %s cannot have the devices of the ProviderSpec: %v", vm.ID, err)
	}
	return config, nil
}

// mark records that the VM has been started, so that nobody starts it again after it was switched off. A template made
// from the VM inherits the mark, so it names the VM.
func (v *vcenter) mark(ctx context.Context, vm *cmi.VM) error {
	return v.reconfigure(ctx, vm, types.VirtualMachineConfigSpec{
		ExtraConfig: []types.BaseOptionValue{option(initializedKey, vm.Native.(native).record.VM)},
	})
}

func (v *vcenter) reconfigure(ctx context.Context, vm *cmi.VM, config types.VirtualMachineConfigSpec) error {
	_, err := v.run(ctx, func(ctx context.Context, client *vim25.Client) (*object.Task, error) {
		return virtualMachine(client, vm).Reconfigure(ctx, config)
	})
	return err
}

// Custom attributes, for people who look at the VM in the vSphere Client.
const (
	clusterAttribute = "capcmi.io/cluster"
	machineAttribute = "capcmi.io/machine-name"
)

func (v *vcenter) showAttributes(ctx context.Context, vm *cmi.VM, s spec) error {
	if !s.CustomAttributes {
		return nil
	}
	return v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		manager, err := object.GetCustomFieldsManager(client)
		if err != nil {
			return err
		}
		for _, shown := range [][2]string{{clusterAttribute, vm.Tags[cmi.ClusterTag]}, {machineAttribute, vm.Name}} {
			key, err := attribute(ctx, manager, shown[0])
			if err != nil {
				return err
			}
			if err := manager.Set(ctx, refOf(vm), key, shown[1]); err != nil {
				return err
			}
		}
		return nil
	})
}

// attribute returns the key of a custom attribute, and defines it the first time.
func attribute(ctx context.Context, manager *object.CustomFieldsManager, name string) (int32, error) {
	key, found, err := definedAttribute(ctx, manager, name)
	if err != nil || found {
		return key, err
	}
	made, err := manager.Add(ctx, name, vmType, nil, nil)
	switch {
	case err == nil:
		return made.Key, nil
	case !is[*types.DuplicateName](err):
		return 0, err
	}
	// Another call has defined it.
	if key, found, again := definedAttribute(ctx, manager, name); again != nil || found {
		return key, again
	}
	return 0, err
}

func definedAttribute(ctx context.Context, manager *object.CustomFieldsManager, name string) (int32, bool, error) {
	fields, err := manager.Field(ctx)
	if err != nil {
		return 0, false, err
	}
	at := slices.IndexFunc(fields, func(field types.CustomFieldDef) bool { return strings.EqualFold(field.Name, name) })
	if at < 0 {
		return 0, false, nil
	}
	return fields[at].Key, true, nil
}
