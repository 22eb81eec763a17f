package main

import (
	"context"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Create makes a VM that is off and has its record. Initialize starts it: a crash or a deadline between the two leaves
// a VM that Find returns as uninitialized.
func (b *backend) Create(ctx context.Context, id cmi.Identity, s spec, boot cmi.Bootstrap) (*cmi.VM, error) {
	where, err := b.placement(s)
	if err == nil {
		err = where.check()
	}
	if err != nil {
		return nil, err
	}
	v, err := b.vcenter(ctx)
	if err != nil {
		return nil, err
	}
	order, err := newOrder(id, s, boot)
	if err != nil {
		return nil, err
	}
	var to target
	err = v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		to, err = resolve(ctx, client, where)
		return err
	})
	if err != nil {
		return nil, explain(err, "look up where to place "+id.Name)
	}
	ref, err := v.make(ctx, order, to)
	if err != nil {
		return nil, err
	}
	return v.made(ctx, ref, order)
}

// order is a VM to be made.
type order struct {
	name string
	spec spec
	// config has the size, the identity and the bootstrap data.
	config types.VirtualMachineConfigSpec
}

func newOrder(id cmi.Identity, s spec, boot cmi.Bootstrap) (order, error) {
	kept, err := newRecord(id, s.FailureDomain).option()
	if err != nil {
		return order{}, err
	}
	data, err := guestInfo(id, boot)
	if err != nil {
		return order{}, err
	}
	return order{vmName(id), s, types.VirtualMachineConfigSpec{
		Uuid:         biosID(id),
		InstanceUuid: instanceID(id.Cluster, id.Name),
		NumCPUs:      s.CPUs,
		MemoryMB:     s.MemoryMiB,
		// Storage drivers find disks by their UUIDs.
		Flags:       &types.VirtualMachineFlagInfo{DiskUuidEnabled: types.NewBool(true)},
		ExtraConfig: append(data, kept),
	}}, nil
}

// make makes the VM of an order, from a template or from a content library item.
func (v *vcenter) make(ctx context.Context, order order, to target) (ref types.ManagedObjectReference, err error) {
	if to.template == nil {
		ref, err = v.deploy(ctx, order, to)
	} else {
		ref, err = v.clone(ctx, order, to)
	}
	if err != nil && ctx.Err() == nil {
		if taken := v.taken(ctx, order, to); taken != nil {
			return ref, taken
		}
	}
	return ref, explain(err, "make the VM "+order.name)
}

func (v *vcenter) clone(ctx context.Context, order order, to target) (types.ManagedObjectReference, error) {
	var clone types.VirtualMachineCloneSpec
	err := v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		devices, err := object.NewVirtualMachine(client, *to.template).Device(ctx)
		if err != nil {
			return err
		}
		config := order.config
		if config.DeviceChange, err = deviceChanges(devices, order.spec, to.networks); err != nil {
			return err
		}
		clone = types.VirtualMachineCloneSpec{
			Location: types.VirtualMachineRelocateSpec{
				Folder: &to.folder, Pool: &to.pool, Datastore: to.datastore,
			},
			Config: &config,
		}
		if to.datastoreCluster == nil {
			return nil
		}
		clone.Location.Datastore, err = recommended(ctx, client, order.name, to, clone)
		return err
	})
	if err != nil {
		return types.ManagedObjectReference{}, err
	}
	result, err := v.run(ctx, func(ctx context.Context, client *vim25.Client) (*object.Task, error) {
		template := object.NewVirtualMachine(client, *to.template)
		return v.clones.start(order.config.InstanceUuid, func() (*object.Task, error) {
			return template.Clone(ctx, object.NewFolder(client, to.folder), order.name, clone)
		})
	})
	ref, _ := result.(types.ManagedObjectReference)
	return ref, err
}

// taken explains the failure of an order by a VM that has its name in the folder, although none was found before. An
// earlier request that is still running makes such a VM.
func (v *vcenter) taken(ctx context.Context, order order, to target) error {
	path := to.path(vmFolder, to.Folder, order.name)
	var ref *types.ManagedObjectReference
	var vms []*cmi.VM
	err := v.do(ctx, func(ctx context.Context, client *vim25.Client) (err error) {
		if ref, err = find(ctx, client, path); err != nil || ref == nil {
			return err
		}
		vms, err = describe(ctx, client, []types.ManagedObjectReference{*ref}, "")
		return err
	})
	switch {
	case isUnready(err), isBroken(err):
		return err
	case err != nil:
		return begun(err, "look up the VM "+path)
	case ref == nil:
		return nil
	case len(vms) == 0:
		return cmi.Taken("the VM %s exists and was not made by this driver: rename or remove it", path)
	}
	return cmi.Busy("another call has made the VM %s", path)
}

// made reads the VM that was just made.
func (v *vcenter) made(ctx context.Context, ref types.ManagedObjectReference, order order) (*cmi.VM, error) {
	var vms []*cmi.VM
	err := v.do(ctx, func(ctx context.Context, client *vim25.Client) (err error) {
		vms, err = describe(ctx, client, []types.ManagedObjectReference{ref}, "")
		return err
	})
	switch {
	case isUnready(err):
		return nil, err
	case err != nil:
		return nil, begun(err, "read the VM "+order.name)
	case len(vms) == 0:
		return nil, cmi.Internal("vCenter has made the VM %s without its record in %s", order.name, recordKey)
	}
	return vms[0], nil
}
