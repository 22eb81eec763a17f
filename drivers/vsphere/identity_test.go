package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"

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
	vcenter.renamed(t, "/DC0/vm/"+vmName(id), "renamed")
	found(t, b, ctx, id, smallest())
}

func TestVMIsFoundAfterVCenterChangedItsInstanceUUID(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	change := types.VirtualMachineConfigSpec{InstanceUuid: "5010aaaa-bbbb-cccc-dddd-eeeeffff0000"}
	vcenter.reconfigured(t, "/DC0/vm/"+vmName(id), change)
	found(t, b, ctx, id, smallest())
}

func TestVMWithoutConfigurationIsBusy(t *testing.T) {
	id := identity("one")
	// vCenter has no configuration of a VM that it is cloning, or whose host is away.
	content := types.ObjectContent{PropSet: []types.DynamicProperty{{Name: nameProperty, Val: vmName(id)}}}
	if _, err := toVM(content, ""); !isUnready(err) {
		t.Errorf("got %v", err)
	}
}

// reconfigured changes a VM by hand.
func (s *simulated) reconfigured(t *testing.T, path string, change types.VirtualMachineConfigSpec) {
	t.Helper()
	changed, err := s.vm(t, path).Reconfigure(t.Context(), change)
	must(t, err)
	must(t, changed.Wait(t.Context()))
}

func (s *simulated) renamed(t *testing.T, path, name string) {
	t.Helper()
	renamed, err := s.vm(t, path).Rename(t.Context(), name)
	must(t, err)
	must(t, renamed.Wait(t.Context()))
}

// moved moves a VM of datacenter DC0 into a new folder.
func (s *simulated) moved(t *testing.T, path, folder string) {
	t.Helper()
	root, err := object.NewSearchIndex(s.admin.Client).FindByInventoryPath(t.Context(), "/DC0/vm")
	must(t, err)
	to, err := root.(*object.Folder).CreateFolder(t.Context(), folder)
	must(t, err)
	moved, err := to.MoveInto(t.Context(), []types.ManagedObjectReference{s.vm(t, path).Reference()})
	must(t, err)
	must(t, moved.Wait(t.Context()))
}

// logged returns what a function writes to the default logger.
func logged(t *testing.T, work func()) string {
	t.Helper()
	var text bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	defer slog.SetDefault(before)
	work()
	return text.String()
}

func TestBrokenRecordHidesNoOtherVM(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	for _, name := range []string{"one", "two"} {
		_, err := create(b, ctx, identity(name), smallest(), cloudConfig)
		must(t, err)
	}
	path := "/DC0/vm/" + vmName(id)
	for _, text := range []string{"{", "null", "{}", `{"cluster":"cluster-1","name":"one","vm":"one"}`} {
		broken := types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{option(recordKey, text)}}
		vcenter.reconfigured(t, path, broken)
		log := logged(t, func() {
			for range 2 {
				listed, err := b.List(ctx, id.Cluster, spec{})
				must(t, err)
				if got := names(listed); !slices.Equal(got, []string{"two"}) {
					t.Errorf("%s: got %v", text, got)
				}
			}
		})
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, vmName(id)) {
			t.Errorf("%s: the log has %q", text, log)
		}
		// It may be the VM of the machine, so nobody makes a second one.
		_, err := b.Find(ctx, id, smallest())
		refusedWith(t, err, codes.Internal, "restore the key, or delete the VM")
		_, err = b.Create(ctx, id, smallest(), cloudConfig)
		refusedWith(t, err, codes.Internal, "restore the key, or delete the VM")
		repaired, err := newRecord(id, "").option()
		must(t, err)
		vcenter.reconfigured(t, path, types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{repaired}})
		found(t, b, ctx, id, smallest())
		_, err = b.List(ctx, id.Cluster, spec{})
		must(t, err)
	}
}

func TestVMThatLostItsRecordStaysTheMachines(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	vcenter.renamed(t, "/DC0/vm/"+vmName(id), "renamed")
	other, err := newRecord(identity("other"), "").option()
	must(t, err)
	for _, kept := range []types.BaseOptionValue{option(recordKey, ""), other} {
		changed := types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{kept}}
		vcenter.reconfigured(t, "/DC0/vm/renamed", changed)
		_, err = b.Find(ctx, id, smallest())
		refusedWith(t, err, codes.Internal, "the VM renamed has no valid record")
	}
}

func TestCopyWithTheNameOfTheVMBelongsToNobody(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	vcenter.moved(t, "/DC0/vm/"+vmName(id), "elsewhere")
	// The copy has the name in the folder where the driver made the VM.
	vcenter.copied(t, "DC0", vmName(id), newRecord(id, ""), "")
	if again := found(t, b, ctx, id, smallest()); again.ID != vm.ID {
		t.Errorf("got %s, want %s", again.ID, vm.ID)
	}
	listed, err := b.List(ctx, id.Cluster, spec{})
	must(t, err)
	if len(listed) != 1 || listed[0].ID != vm.ID {
		t.Errorf("got %v", names(listed))
	}
	must(t, b.Delete(ctx, found(t, b, ctx, id, smallest())))
	vcenter.vm(t, "/DC0/vm/"+vmName(id))
}

func TestVMThatBecameATemplateIsFoundAndDeleted(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	must(t, b.Stop(ctx, vm))
	must(t, vcenter.vm(t, "/DC0/vm/"+vmName(id)).MarkAsTemplate(t.Context()))
	vm = found(t, b, ctx, id, smallest())
	refusedWith(t, b.Start(ctx, vm), codes.Unknown, "cannot powerOn a template")
	vcenter.inject("PowerOffVM_Task", &types.NotSupported{}, 1) // as vCenter answers
	must(t, b.Delete(ctx, vm))
	if left, err := b.Find(ctx, id, smallest()); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v", left, err)
	}
}

func TestVMThatTheUserNoLongerSeesIsNotGone(t *testing.T) {
	for _, known := range []string{"by its state", "by an earlier call", "by a list"} {
		t.Run(known, func(t *testing.T) {
			vcenter := newVCenter(t)
			ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
			vm, err := create(b, ctx, id, smallest(), cloudConfig)
			must(t, err)
			b = newBackend(settings{}) // another process
			switch known {
			case "by its state":
				ctx = cmi.WithState(ctx, vm.State)
			case "by an earlier call":
				found(t, b, ctx, id, smallest())
			case "by a list":
				_, err := b.List(ctx, id.Cluster, spec{})
				must(t, err)
			}
			vcenter.hidden = []string{vmType}
			vcenter.inject("RetrievePropertiesEx", &types.NoPermission{PrivilegeId: "System.View"}, 1)
			_, err = b.Find(ctx, id, smallest())
			refusedWith(t, err, codes.PermissionDenied, "the privilege System.View is missing")
			must(t, b.Delete(ctx, vm))
			if left, err := b.Find(ctx, id, smallest()); err != nil || len(left) > 0 {
				t.Errorf("got %v, %v", left, err)
			}
		})
	}
}

func TestVMInAFolderThatTheUserNoLongerSeesIsNotGone(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	vcenter.hidden = []string{vmType, "Folder"}
	another := newBackend(settings{}) // has never seen the VM
	_, err = another.Find(cmi.WithProviderID(ctx, vm.ID), id, smallest())
	refusedWith(t, err, codes.PermissionDenied, "the user does not see the folder /DC0/vm")
	// The create of a machine without a VM names the invalid field.
	if none, err := another.Find(ctx, id, smallest()); err != nil || len(none) > 0 {
		t.Errorf("got %v, %v", none, err)
	}
	vcenter.hidden = nil
	found(t, another, cmi.WithProviderID(ctx, vm.ID), id, smallest())
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
