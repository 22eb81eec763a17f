package main

import (
	"context"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Stop asks VMware Tools to shut the guest down.
func (b *backend) Stop(ctx context.Context, vm *cmi.VM) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	err = v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		return virtualMachine(client, vm).ShutdownGuest(ctx)
	})
	switch {
	case isGone(err, refOf(vm)):
		return cmi.ErrGone
	case is[*types.InvalidPowerState](err):
		return nil // it is off
	case is[*types.ToolsUnavailable](err):
		return cmi.Busy("VMware Tools does not run in the guest of %s: it boots, or has none", vm.ID).Because(err)
	}
	return explain(err, "shut down the guest of "+vm.ID)
}

// Start switches the VM on.
func (b *backend) Start(ctx context.Context, vm *cmi.VM) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	return ended(v.start(ctx, vm), vm, "start the VM "+vm.ID)
}

func (v *vcenter) start(ctx context.Context, vm *cmi.VM) error {
	_, err := v.run(ctx, func(ctx context.Context, client *vim25.Client) (*object.Task, error) {
		return virtualMachine(client, vm).PowerOn(ctx)
	})
	if is[*types.InvalidPowerState](err) {
		return nil // it is on
	}
	return err
}

// Restart resets the VM.
func (b *backend) Restart(ctx context.Context, vm *cmi.VM) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	_, err = v.run(ctx, func(ctx context.Context, client *vim25.Client) (*object.Task, error) {
		return virtualMachine(client, vm).Reset(ctx)
	})
	return ended(err, vm, "reset the VM "+vm.ID)
}

// ended explains the error of a change of a VM.
func ended(err error, vm *cmi.VM, action string) error {
	if isGone(err, refOf(vm)) {
		return cmi.ErrGone
	}
	return explain(err, action)
}
