package main

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// copied makes a VM with the record of a machine, as a person does who clones the machine's VM in the vSphere Client.
func (s *simulated) copied(t *testing.T, datacenter, name string, kept record, instance string) {
	t.Helper()
	stored, err := kept.option()
	must(t, err)
	pools := map[string]string{"DC0": cluster, "DC1": "DC1_C0"}
	pool, err := object.NewSearchIndex(s.admin.Client).FindByInventoryPath(
		t.Context(), "/"+datacenter+"/host/"+pools[datacenter]+"/Resources")
	must(t, err)
	folder, err := object.NewSearchIndex(s.admin.Client).FindByInventoryPath(t.Context(), "/"+datacenter+"/vm")
	must(t, err)
	made, err := folder.(*object.Folder).CreateVM(t.Context(), types.VirtualMachineConfigSpec{
		Name: name, GuestId: "otherGuest", InstanceUuid: instance, ExtraConfig: []types.BaseOptionValue{stored},
		Files: &types.VirtualMachineFileInfo{VmPathName: "[" + datastore + "]"},
	}, pool.(*object.ResourcePool), nil)
	must(t, err)
	must(t, made.Wait(t.Context()))
}

func TestTwoVMsWithOneIdentityAreBothFound(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	vcenter.copied(t, "DC1", vmName(id), newRecord(id, ""), instanceID(id.Cluster, id.Name))
	vms, err := b.Find(ctx, id, smallest())
	must(t, err)
	if len(vms) != 2 {
		t.Fatalf("got %d VMs", len(vms))
	}
	listed, err := b.List(ctx, id.Cluster, spec{})
	must(t, err)
	if got := names(listed); !slices.Equal(got, []string{"one", "one"}) {
		t.Errorf("got %v", got)
	}
}

func TestCopyByHandBelongsToNobody(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	vcenter.copied(t, "DC0", "copy-of-one", newRecord(id, ""), "")
	found(t, b, ctx, id, smallest())
	listed, err := b.List(ctx, id.Cluster, spec{})
	must(t, err)
	if len(listed) != 1 {
		t.Errorf("got %v", names(listed))
	}
}

func TestVMIsFoundAfterItWasRenamed(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	renamed, err := vcenter.vm(t, "/DC0/vm/"+vmName(id)).Rename(t.Context(), "renamed")
	must(t, err)
	must(t, renamed.Wait(t.Context()))
	found(t, b, ctx, id, smallest())
}

func TestVMIsFoundAfterVCenterChangedItsInstanceUUID(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	change := types.VirtualMachineConfigSpec{InstanceUuid: "5010aaaa-bbbb-cccc-dddd-eeeeffff0000"}
	changed, err := vcenter.vm(t, "/DC0/vm/"+vmName(id)).Reconfigure(t.Context(), change)
	must(t, err)
	must(t, changed.Wait(t.Context()))
	found(t, b, ctx, id, smallest())
}

func TestVMWithoutConfigurationIsBusy(t *testing.T) {
	id := identity("one")
	// vCenter has no configuration of a VM that it is cloning, or whose host is away.
	content := types.ObjectContent{PropSet: []types.DynamicProperty{{Name: nameProperty, Val: vmName(id)}}}
	if _, err := toVM(content); !isUnready(err) {
		t.Errorf("got %v", err)
	}
}

func TestBrokenRecordIsReported(t *testing.T) {
	content := types.ObjectContent{PropSet: []types.DynamicProperty{
		{Name: nameProperty, Val: "one"}, {Name: biosProperty, Val: "4210"},
		{Name: recordProperty, Val: types.OptionValue{Key: recordKey, Value: "{"}},
	}}
	if _, err := toVM(content); err == nil {
		t.Error("a broken record is no error")
	}
}

func TestNamesFitVCenter(t *testing.T) {
	long := identity(string(slices.Repeat([]byte("a"), 253)))
	if name := vmName(long); len(name) != maxVMName {
		t.Errorf("%s has %d bytes", name, len(name))
	}
	one, two := identity("one"), identity("one")
	two.Machine = "another"
	if vmName(one) == vmName(two) || biosID(one) == biosID(two) {
		t.Error("two machine objects share a name or a BIOS UUID")
	}
	if instanceID(one.Cluster, one.Name) != instanceID(two.Cluster, two.Name) {
		t.Error("two machine objects of one name have different instance UUIDs")
	}
}

func TestListHasAddressesOfVMwareToolsInOnePass(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	for _, name := range []string{"one", "two"} {
		vm, err := create(b, ctx, identity(name), smallest(), cloudConfig)
		must(t, err)
		vcenter.runTools(vm, name)
	}
	var listed []*cmi.VM
	calls := vcenter.callsOf(func() {
		var err error
		listed, err = b.List(ctx, "cluster-1", spec{})
		must(t, err)
	})
	if want := []string{"CreateContainerView", "RetrievePropertiesEx", "DestroyView"}; !slices.Equal(calls, want) {
		t.Errorf("a list makes the calls %v", calls)
	}
	for _, vm := range listed {
		text, err := json.Marshal(vm.Addresses)
		must(t, err)
		const want = `[{"Type":3,"Text":"10.0.0.7"},{"Type":3,"Text":"2001:db8::7"},{"Type":1,"Text":"`
		if string(text) != want+vm.Name+`"}]` || vm.Power != cmi.Running {
			t.Errorf("got %s, power %d", text, vm.Power)
		}
	}
	if got := names(listed); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %v", got)
	}
	if listed, err := b.List(ctx, "cluster-2", spec{}); err != nil || len(listed) > 0 {
		t.Errorf("got %v, %v", names(listed), err)
	}
}

// runTools lets VMware Tools report addresses, also of a network of containers.
func (s *simulated) runTools(vm *cmi.VM, host string) {
	known := s.model.Map().Get(vm.Native.(native).ref).(*simulator.VirtualMachine)
	s.model.Service.Context.AutoUpdate(known, func() {
		known.Guest.HostName = host
		known.Guest.Net = []types.GuestNicInfo{
			{DeviceConfigId: 4000, IpAddress: []string{"10.0.0.7", "fe80::1", "2001:db8::7"}},
			{DeviceConfigId: noDevice, IpAddress: []string{"10.244.0.1"}},
		}
	})
}
