package main

import (
	"context"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Delete switches the VM off, takes the volumes of Kubernetes out of it, and destroys the rest. vCenter never gives the
// reference of a VM to another one.
func (b *backend) Delete(ctx context.Context, vm *cmi.VM) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	_, err = v.run(ctx, func(ctx context.Context, client *vim25.Client) (*object.Task, error) {
		return virtualMachine(client, vm).PowerOff(ctx)
	})
	if err != nil && !is[*types.InvalidPowerState](err) && !is[*types.NotSupported](err) { // a template is off
		return ended(err, vm, "switch off the VM "+vm.ID)
	}
	if err := v.detachVolumes(ctx, vm); err != nil {
		return ended(err, vm, "detach the volumes of the VM "+vm.ID)
	}
	_, err = v.run(ctx, func(ctx context.Context, client *vim25.Client) (*object.Task, error) {
		return virtualMachine(client, vm).Destroy(ctx)
	})
	return ended(err, vm, "delete the VM "+vm.ID)
}

// detachVolumes keeps the volumes that the CSI driver has attached: vCenter would destroy them with the VM.
func (v *vcenter) detachVolumes(ctx context.Context, vm *cmi.VM) error {
	var changes []types.BaseVirtualDeviceConfigSpec
	err := v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		changes = nil
		devices, err := virtualMachine(client, vm).Device(ctx)
		if err != nil {
			return err
		}
		for _, device := range devices.SelectByType((*types.VirtualDisk)(nil)) {
			if device.(*types.VirtualDisk).VDiskId != nil {
				changes = append(changes, change(types.VirtualDeviceConfigSpecOperationRemove, device))
			}
		}
		return nil
	})
	if err != nil || len(changes) == 0 {
		return err
	}
	return v.reconfigure(ctx, vm, types.VirtualMachineConfigSpec{DeviceChange: changes})
}
