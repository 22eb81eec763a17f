package main

import (
	"context"
	"errors"
	"testing"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

func TestPowerStates(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	power := func(change func(context.Context, *cmi.VM) error, want cmi.Power) {
		t.Helper()
		must(t, change(ctx, vm))
		if got := found(t, b, ctx, id, smallest()).Power; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	power(b.Start, cmi.Running) // it is on already
	power(b.Restart, cmi.Running)
	power(b.Stop, cmi.Stopped)
	power(b.Stop, cmi.Stopped)
	power(b.Start, cmi.Running)
}

func TestGuestWithoutToolsIsAskedAgain(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	vm, err := create(b, ctx, identity("one"), smallest(), cloudConfig)
	must(t, err)
	vcenter.inject("ShutdownGuest", &types.ToolsUnavailable{}, 1)
	refusedWith(t, b.Stop(ctx, vm), codes.Aborted, "VMware Tools does not run")
	must(t, b.Stop(ctx, vm))
}

func TestChangesOfAVMThatIsGone(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	vm, err := create(b, ctx, identity("one"), smallest(), cloudConfig)
	must(t, err)
	must(t, b.Delete(ctx, vm))
	for name, change := range map[string]func(context.Context, *cmi.VM) error{
		"delete": b.Delete, "stop": b.Stop, "start": b.Start, "restart": b.Restart,
		"initialize": func(ctx context.Context, vm *cmi.VM) error { return b.Initialize(ctx, vm, smallest()) },
	} {
		if err := change(ctx, vm); !errors.Is(err, cmi.ErrGone) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestDeleteKeepsVolumesOfKubernetes(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	machine := vcenter.vm(t, "/DC0/vm/"+vmName(id))
	devices, err := machine.Device(t.Context())
	must(t, err)
	controller, err := devices.FindDiskController("")
	must(t, err)
	const file = "[" + datastore + "] " + template + "/volume.vmdk"
	disk := devices.CreateDisk(controller, types.ManagedObjectReference{}, file)
	disk.VDiskId = &types.ID{Id: "volume-1"}
	setCapacity(disk, 1<<30)
	must(t, machine.AddDevice(t.Context(), disk))
	must(t, b.Delete(ctx, vm))
	manager := object.NewVirtualDiskManager(vcenter.admin.Client)
	datacenter, err := object.NewSearchIndex(vcenter.admin.Client).FindByInventoryPath(t.Context(), "/DC0")
	must(t, err)
	if _, err := manager.QueryVirtualDiskUuid(t.Context(), file, datacenter.(*object.Datacenter)); err != nil {
		t.Errorf("the volume is gone: %v", err)
	}
}

func TestFaultAboutAnotherObjectIsNotAGoneVM(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	missing := &types.ManagedObjectNotFound{Obj: types.ManagedObjectReference{Type: "Datastore", Value: vm.Native.(native).ref.Value}}
	for _, each := range []struct {
		method string
		change func(context.Context, *cmi.VM) error
	}{
		{"ShutdownGuest", b.Stop},
		{"PowerOnVM_Task", b.Start},
		{"ResetVM_Task", b.Restart},
		{"RetrievePropertiesEx", b.Restart}, // the task
		{"PowerOffVM_Task", b.Delete},
		{"Destroy_Task", b.Delete},
		{"RetrievePropertiesEx", b.Delete}, // the task
		{"RetrievePropertiesEx", func(ctx context.Context, vm *cmi.VM) error { return b.Initialize(ctx, vm, smallest()) }},
		{"RetrievePropertiesEx", func(ctx context.Context, _ *cmi.VM) error {
			_, err := b.Find(ctx, id, smallest())
			return err
		}},
	} {
		vcenter.inject(each.method, missing, 1)
		if err := each.change(ctx, vm); err == nil || errors.Is(err, cmi.ErrGone) {
			t.Errorf("%s: got %v", each.method, err)
		}
		found(t, b, ctx, id, smallest())
	}
}

func TestDeleteWaitsForATaskOfTheVM(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	for _, method := range []string{"PowerOffVM_Task", "Destroy_Task"} {
		vcenter.inject(method, &types.TaskInProgress{}, 1) // a snapshot or a backup
		refusedWith(t, b.Delete(ctx, vm), codes.Aborted, "another operation runs")
		found(t, b, ctx, id, smallest())
	}
	must(t, b.Delete(ctx, vm))
}
