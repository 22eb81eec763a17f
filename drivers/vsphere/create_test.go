package main

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

var cloudConfig = cmi.Bootstrap{UserData: cmi.Secret("#cloud-config\n"), Format: formatCloudConfig}

// refusedWith fails unless an error has a code and a text.
func refusedWith(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), code.String()+": ") || !strings.Contains(err.Error(), text) {
		t.Fatalf("got %v, want %s with %q", err, code, text)
	}
}

// create makes a VM and initializes it, as the provider does.
func create(b *backend, ctx context.Context, id cmi.Identity, s spec, boot cmi.Bootstrap) (*cmi.VM, error) {
	vm, err := b.Create(ctx, id, s, boot)
	if err != nil {
		return nil, err
	}
	if vm.Uninitialized == "" {
		return nil, errors.New("a VM that is off counts as initialized")
	}
	return vm, b.Initialize(ctx, vm, s)
}

// found returns the only VM of a machine.
func found(t *testing.T, b *backend, ctx context.Context, id cmi.Identity, s spec) *cmi.VM {
	t.Helper()
	vms, err := b.Find(ctx, id, s)
	must(t, err)
	if len(vms) != 1 {
		t.Fatalf("got %d VMs, want one", len(vms))
	}
	return vms[0]
}

func TestCrashAfterCloneLeavesAVMWithItsIdentity(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vcenter.inject("PowerOnVM_Task", &types.InsufficientMemoryResourcesFault{}, 1)
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	refusedWith(t, err, codes.FailedPrecondition, "could not start the VM vsphere://")
	// Another process of the driver finds it.
	b = newBackend(settings{})
	vm := found(t, b, ctx, id, smallest())
	if vm.Uninitialized == "" || vm.Power != cmi.Stopped || vm.Tags[cmi.MachineTag] != id.Machine {
		t.Fatalf("got %+v", vm)
	}
	must(t, b.Initialize(ctx, vm, smallest()))
	vm = found(t, b, ctx, id, smallest())
	if vm.Uninitialized != "" || vm.Power != cmi.Running {
		t.Fatalf("got %+v", vm)
	}
}

func TestSwitchedOffVMStaysInitialized(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vm, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	must(t, b.Stop(ctx, vm))
	vm = found(t, b, ctx, id, smallest())
	if vm.Uninitialized != "" || vm.Power != cmi.Stopped {
		t.Fatalf("got %+v", vm)
	}
}

func TestTemplateMadeFromAMachineLeavesNoTrace(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	first, err := create(b, ctx, identity("one"), smallest(), cloudConfig)
	must(t, err)
	template := vcenter.vm(t, "/DC0/vm/DC0_C0_RP0_VM0").Reference()
	known := vcenter.model.Map().Get(template).(*limited)
	known.Config.ExtraConfig = slices.Clone(configOf(t, b, ctx, first).ExtraConfig)
	ignition := cmi.Bootstrap{UserData: cmi.Secret("{}"), Format: formatIgnition}
	vm, err := create(b, ctx, identity("two"), smallest(), ignition)
	must(t, err)
	if data, _ := object.OptionValueList(configOf(t, b, ctx, vm).ExtraConfig).GetString(userDataKey); data != "" {
		t.Error("it has the user data of another machine")
	}
	if vm = found(t, b, ctx, identity("two"), smallest()); vm.Uninitialized != "" || vm.Power != cmi.Running {
		t.Fatalf("got %+v", vm)
	}
}

func TestCloneThatOutlivesTheDeadlineMakesOneVM(t *testing.T) {
	vcenter := newVCenter(t)
	slowClones(t, 1500)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	short, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
	defer cancel()
	if _, err := create(b, short, id, smallest(), cloudConfig); short.Err() == nil {
		t.Fatalf("the clone ended within the deadline: %v", err)
	}
	// The next call comes before the clone has ended, and Find does not see it.
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	refusedWith(t, err, codes.Aborted, "another call has made the VM /DC0/vm/one-")
	if vm := found(t, b, ctx, id, smallest()); vm.Uninitialized == "" {
		t.Error("a VM that was only cloned counts as started")
	}
}

// slowClones makes each clone take a while: on a busy computer long enough for the calls that the test makes meanwhile.
func slowClones(t *testing.T, milliseconds int) {
	t.Helper()
	simulator.TaskDelay = simulator.DelayConfig{MethodDelay: map[string]int{"CloneVm": milliseconds, "LockHandoff": 0}}
	t.Cleanup(func() { simulator.TaskDelay = simulator.DelayConfig{} })
}

func TestCloneThatOutlivesItsCallerIsSeenByFind(t *testing.T) {
	vcenter := newVCenter(t)
	slowClones(t, 2000)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	short, leave := context.WithCancel(ctx)
	defer leave()
	vcenter.namesUsers = true
	vcenter.whileCloning(leave)
	if _, err := b.Create(short, id, smallest(), cloudConfig); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	_, err := b.Find(ctx, id, smallest())
	refusedWith(t, err, codes.Aborted, "vCenter is cloning the template "+template)
	if others, err := b.Find(ctx, identity("two"), smallest()); err != nil || len(others) > 0 {
		t.Errorf("a machine with another task: got %v, %v", others, err)
	}
	// A new process does not know whose task it is.
	_, err = newBackend(settings{}).Find(ctx, identity("two"), smallest())
	refusedWith(t, err, codes.Aborted, "maybe for two")
	var vms []*cmi.VM
	for deadline := time.Now().Add(10 * time.Second); len(vms) == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("the VM does not appear: %v", err)
		}
		if vms, err = b.Find(ctx, id, smallest()); err == nil && len(vms) == 0 {
			t.Fatal("Find returned nothing while vCenter was cloning")
		}
	}
	if others, err := newBackend(settings{}).Find(ctx, identity("two"), smallest()); err != nil || len(others) > 0 {
		t.Errorf("after the clone: got %v, %v", others, err)
	}
}

// Codes such as PERMISSION_DENIED say that nothing was begun.
func TestRightsThatEndDuringACloneAreNoRefusal(t *testing.T) {
	vcenter := newVCenter(t)
	slowClones(t, 300)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	for fault, attempts := range map[types.BaseMethodFault]int{
		&types.NoPermission{PrivilegeId: "System.Read"}: 1, &types.NotAuthenticated{}: 2,
	} {
		vcenter.whileCloning(func() { vcenter.inject("RetrievePropertiesEx", fault, attempts) })
		_, err := b.Create(ctx, id, smallest(), cloudConfig)
		refusedWith(t, err, codes.Unknown, "tell how its task")
		var vms []*cmi.VM
		for deadline := time.Now().Add(10 * time.Second); len(vms) == 0; {
			if time.Now().After(deadline) {
				t.Fatalf("the VM does not appear: %v", err)
			}
			vms, err = b.Find(ctx, id, smallest())
		}
		must(t, b.Delete(ctx, vms[0]))
	}
}

func TestVMWithTheSameNameOfSomebodyElseStays(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	path := "/DC0/vm/" + vmName(id)
	vcenter.renamed(t, "/DC0/vm/"+foreign, vmName(id))
	if vms, err := b.Find(ctx, id, smallest()); err != nil || len(vms) > 0 {
		t.Fatalf("got %v, %v", vms, err)
	}
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	refusedWith(t, err, codes.AlreadyExists, path+" exists and was not made by this driver")
	vcenter.vm(t, path)
}

func TestMissingObjectsAreNamedByTheirField(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(testSettings())
	for field, change := range map[string]func(*spec){
		"/template":         func(s *spec) { s.Template = "missing" },
		"/folder":           func(s *spec) { s.Folder = "missing" },
		"/cluster":          func(s *spec) { s.Cluster = "missing" },
		"/resourcePool":     func(s *spec) { s.ResourcePool = "missing" },
		"/datastore":        func(s *spec) { s.Datastore = "missing" },
		"/datastoreCluster": func(s *spec) { s.Datastore, s.DatastoreCluster = "", "missing" },
		"/networks":         func(s *spec) { s.Networks = []string{network0, "missing"} },
		"/failureDomain":    func(s *spec) { s.FailureDomain = "missing" },
	} {
		s := smallest()
		change(&s)
		_, err := create(b, ctx, identity("one"), s, cloudConfig)
		refusedWith(t, err, codes.InvalidArgument, "ProviderSpec "+field+": ")
	}
	s := smallest()
	s.Datastore = "../host/" + cluster
	_, err := create(b, ctx, identity("one"), s, cloudConfig)
	refusedWith(t, err, codes.InvalidArgument, "ProviderSpec /datastore: ")
}

func TestNoRoomIsExhausted(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(testSettings())
	s := smallest()
	s.Datastore = fullStore
	_, err := create(b, ctx, identity("one"), s, cloudConfig)
	refusedWith(t, err, codes.ResourceExhausted, "NoDiskSpace")
	s = smallest()
	s.FailureDomain = "full"
	_, err = create(b, ctx, identity("one"), s, cloudConfig)
	refusedWith(t, err, codes.ResourceExhausted, "InsufficientMemoryResourcesFault")
}

func TestFaultsHaveCodes(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	for _, each := range []struct {
		fault types.BaseMethodFault
		code  codes.Code
	}{
		{&types.NoPermission{PrivilegeId: "VirtualMachine.Provisioning.DeployTemplate"}, codes.PermissionDenied},
		{&types.TaskInProgress{}, codes.Aborted},
		{&types.HostNotConnected{}, codes.Unavailable},
		{&types.InsufficientStorageSpace{}, codes.ResourceExhausted},
		{&types.InvalidVmConfig{Property: "memory"}, codes.Unknown},
	} {
		vcenter.inject("CloneVM_Task", each.fault, 1)
		_, err := create(b, ctx, identity("one"), smallest(), cloudConfig)
		refusedWith(t, err, each.code, "")
	}
}

func TestFailureDomainsAreDatacenters(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(testSettings()), identity("one")
	s := smallest()
	s.FailureDomain = "b"
	vm, err := create(b, ctx, id, s, cloudConfig)
	must(t, err)
	if vm.Zone != "b" {
		t.Errorf("got the zone %q", vm.Zone)
	}
	vcenter.vm(t, "/DC1/vm/"+vmName(id))
	// The VM is found and deleted when the driver no longer knows its failure domain.
	b = newBackend(settings{})
	must(t, b.Delete(ctx, found(t, b, ctx, id, s)))
	if vms, err := b.Find(ctx, id, s); err != nil || len(vms) > 0 {
		t.Fatalf("got %v, %v", vms, err)
	}
}

// configOf returns the configuration of a machine's VM.
func configOf(t *testing.T, b *backend, ctx context.Context, vm *cmi.VM) *types.VirtualMachineConfigInfo {
	t.Helper()
	var config *types.VirtualMachineConfigInfo
	must(t, b.read(ctx, vm, func(read mo.VirtualMachine) { config = read.Config }))
	return config
}

func decoded(t *testing.T, config *types.VirtualMachineConfigInfo, key string) string {
	t.Helper()
	extra := object.OptionValueList(config.ExtraConfig)
	if encoding, _ := extra.GetString(key + encodingSuffix); encoding != encodingBase64 {
		t.Errorf("%s has the encoding %q", key, encoding)
	}
	value, _ := extra.GetString(key)
	text, err := base64.StdEncoding.DecodeString(value)
	must(t, err)
	return string(text)
}

func TestCloudInitGetsUserDataAndProviderID(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	vm, err := create(b, ctx, identity("one"), smallest(), cloudConfig)
	must(t, err)
	config := configOf(t, b, ctx, vm)
	if vm.ID != "vsphere://"+config.Uuid {
		t.Errorf("got the ProviderID %s of a VM with the BIOS UUID %s", vm.ID, config.Uuid)
	}
	if text := decoded(t, config, userDataKey); text != "#cloud-config\n" {
		t.Errorf("got %q", text)
	}
	metadata := decoded(t, config, metadataKey)
	for _, part := range []string{`"provider_id":"` + vm.ID + `"`, `"local-hostname":"one"`} {
		if !strings.Contains(metadata, part) {
			t.Errorf("%s lacks %s", metadata, part)
		}
	}
}

func TestMetadataFollowsABIOSUUIDThatVCenterChose(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	vcenter.inject("PowerOnVM_Task", &types.TaskInProgress{}, 1)
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	refusedWith(t, err, codes.FailedPrecondition, "could not start")
	const other = "4210aaaa-bbbb-cccc-dddd-eeeeffff0000"
	vcenter.reconfigured(t, "/DC0/vm/"+vmName(id), types.VirtualMachineConfigSpec{Uuid: other})
	vm := found(t, b, ctx, id, smallest())
	must(t, b.Initialize(ctx, vm, smallest()))
	if metadata := decoded(t, configOf(t, b, ctx, vm), metadataKey); !strings.Contains(metadata, "vsphere://"+other) {
		t.Errorf("got %s", metadata)
	}
}

func TestIgnitionGetsItsConfiguration(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	boot := cmi.Bootstrap{UserData: cmi.Secret(`{"ignition":{"version":"3.4.0"}}`), Format: formatIgnition}
	vm, err := create(b, ctx, identity("one"), smallest(), boot)
	must(t, err)
	config := configOf(t, b, ctx, vm)
	if text := decoded(t, config, ignitionKey); text != string(boot.UserData) {
		t.Errorf("got %q", text)
	}
	if data, _ := object.OptionValueList(config.ExtraConfig).GetString(userDataKey); data != "" {
		t.Error("it has user data for cloud-init, too")
	}
	boot.Format = "powershell"
	_, err = create(b, ctx, identity("two"), smallest(), boot)
	refusedWith(t, err, codes.FailedPrecondition, `format "powershell"`)
}

func TestSizeDisksAndNetworksFollowTheSpec(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	s := smallest()
	s.CPUs, s.MemoryMiB, s.DiskGiB, s.DataDisksGiB = 3, 4096, 20, []int64{5, 7}
	s.Networks = []string{network0, "VM Network"}
	vm, err := create(b, ctx, identity("one"), s, cloudConfig)
	must(t, err)
	hardware := configOf(t, b, ctx, vm).Hardware
	if hardware.NumCPU != 3 || hardware.MemoryMB != 4096 {
		t.Errorf("got %d CPUs and %d MiB", hardware.NumCPU, hardware.MemoryMB)
	}
	devices := object.VirtualDeviceList(hardware.Device)
	var sizes []int64
	for _, disk := range devices.SelectByType((*types.VirtualDisk)(nil)) {
		sizes = append(sizes, capacity(disk.(*types.VirtualDisk))>>30)
	}
	if len(sizes) != 3 || sizes[0]+sizes[1]+sizes[2] != 32 {
		t.Errorf("got disks of %v GiB", sizes)
	}
	if adapters := devices.SelectByType((*types.VirtualEthernetCard)(nil)); len(adapters) != 2 {
		t.Errorf("got %d adapters", len(adapters))
	}
	s.DiskGiB = 9
	_, err = create(b, ctx, identity("two"), s, cloudConfig)
	refusedWith(t, err, codes.OutOfRange, "/diskGiB")
}

func TestStorageDRSChoosesADatastore(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	s := smallest()
	s.Datastore, s.DatastoreCluster = "", pod
	_, err := create(b, ctx, identity("one"), s, cloudConfig)
	refusedWith(t, err, codes.FailedPrecondition, "Storage DRS makes no recommendations")
	vcenter.addToPod(t, datastore)
	vm, err := create(b, ctx, identity("one"), s, cloudConfig)
	must(t, err)
	if path := configOf(t, b, ctx, vm).Files.VmPathName; !strings.HasPrefix(path, "["+datastore+"]") {
		t.Errorf("got %s", path)
	}
}

func TestCustomAttributesShowTheMachine(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	s := smallest()
	s.CustomAttributes = true
	for _, name := range []string{"one", "two"} {
		vm, err := create(b, ctx, identity(name), s, cloudConfig)
		must(t, err)
		var values []string
		must(t, b.read(ctx, vm, func(read mo.VirtualMachine) {
			for _, value := range read.CustomValue {
				values = append(values, value.(*types.CustomFieldStringValue).Value)
			}
		}))
		if got := strings.Join(values, ","); got != "cluster-1,"+name {
			t.Errorf("got %s", got)
		}
	}
}

func TestMissingPrivilegeForAttributesIsNamedAndKeepsTheVM(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	s := smallest()
	s.CustomAttributes = true
	for method, privilege := range map[string]string{
		"AddCustomFieldDef": "Global.ManageCustomFields", "SetField": "Global.SetCustomField",
	} {
		vcenter.inject(method, &types.NoPermission{PrivilegeId: privilege}, 1)
		_, err := create(b, ctx, id, s, cloudConfig)
		refusedWith(t, err, codes.FailedPrecondition, "the privilege "+privilege+" is missing")
		vm := found(t, b, ctx, id, s)
		if vm.Uninitialized == "" || vm.Power != cmi.Stopped {
			t.Errorf("got %+v", vm)
		}
		must(t, b.Initialize(ctx, vm, s)) // the retry, with the privilege
		must(t, b.Delete(ctx, vm))
		vcenter.forgetAttributes(t)
	}
}

// forgetAttributes deletes the definitions of all custom attributes.
func (s *simulated) forgetAttributes(t *testing.T) {
	t.Helper()
	manager, err := object.GetCustomFieldsManager(s.admin.Client)
	must(t, err)
	fields, err := manager.Field(t.Context())
	must(t, err)
	for _, field := range fields {
		must(t, manager.Remove(t.Context(), field.Key))
	}
}

func TestAttributeThatDiffersInCaseIsUsed(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	manager, err := object.GetCustomFieldsManager(vcenter.admin.Client)
	must(t, err)
	for _, name := range []string{clusterAttribute, machineAttribute} {
		_, err = manager.Add(t.Context(), strings.ToUpper(name), vmType, nil, nil)
		must(t, err)
	}
	vcenter.inject("AddCustomFieldDef", &types.DuplicateName{Name: clusterAttribute}, 1) // as vCenter answers
	s := smallest()
	s.CustomAttributes = true
	_, err = create(b, ctx, identity("one"), s, cloudConfig)
	must(t, err)
}
