package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/simulator"
	_ "github.com/vmware/govmomi/vapi/simulator" // the content library
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Users of the simulated vCenter.
const (
	admin         = "administrator@vsphere.local"
	adminPassword = "the-right-password"
	guest         = "nobody@vsphere.local"
	guestPassword = "another-right-password"
)

// Objects of the simulated vCenter, whose names it chooses.
const (
	cluster     = "DC0_C0"
	fullCluster = "DC0_C1"
	template    = "DC0_C0_RP0_VM0"
	foreign     = "DC0_C1_RP0_VM0"
	network0    = "DC0_DVPG0"
	pod         = "DC0_POD0"
	datastore   = "LocalDS_0"
	fullStore   = "LocalDS_1"
)

// simulated is a vCenter of govmomi's simulator.
type simulated struct {
	model  *simulator.Model
	server *simulator.Server
	admin  *govmomi.Client
	access access

	mutex sync.Mutex
	calls []string
	// onCall runs before each call.
	onCall func(method string)
	// namesUsers says that clone tasks have their users, as in vCenter. Hooks of the suite are processes of the same user.
	namesUsers bool
	// hidden are the types of objects that searches do not find, as those of a user without rights on them in vCenter.
	hidden []string
}

func (s *simulated) note(method string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.calls = append(s.calls, method)
	if s.onCall != nil {
		s.onCall(method)
	}
}

// whileCloning runs a function when the driver reads the first task of a clone.
func (s *simulated) whileCloning(work func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	isCloning := false
	s.onCall = func(method string) {
		if isCloning && method == "RetrievePropertiesEx" {
			isCloning, s.onCall = false, nil
			work()
		}
		isCloning = isCloning || method == "CloneVM_Task"
	}
}

// callsOf returns the methods that a function has called.
func (s *simulated) callsOf(work func()) []string {
	s.mutex.Lock()
	before := len(s.calls)
	s.mutex.Unlock()
	work()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.calls[before:])
}

// access has the address and the certificate of a vCenter.
type access struct{ Server, Thumbprint string }

// newVCenter starts a vCenter with two datacenters. Cluster DC0_C1 has no memory and datastore LocalDS_1 no space.
func newVCenter(t *testing.T) *simulated {
	t.Helper()
	model := simulator.VPX()
	model.Datacenter, model.Host, model.Cluster, model.ClusterHost = 2, 0, 2, 1
	model.Datastore, model.Pod, model.Machine, model.Autostart = 2, 1, 1, false
	must(t, model.Create())
	t.Cleanup(model.Remove)
	model.Service.TLS = new(tls.Config)
	model.Service.RegisterEndpoints = true
	model.Service.Listen = &url.URL{User: url.UserPassword(admin, adminPassword)}
	model.Map().SessionManager().ValidLogin = func(login *types.Login) bool {
		password, known := map[string]string{admin: adminPassword, guest: guestPassword}[login.UserName]
		return known && login.Password == password
	}
	server := model.Service.NewServer()
	t.Cleanup(server.Close)
	made := &simulated{model: model, server: server, access: access{server.URL.Host, soap.ThumbprintSHA256(server.Certificate())}}
	model.Map().Handler = func(ctx *simulator.Context, method *simulator.Method) (mo.Reference, types.BaseMethodFault) {
		made.note(method.Name)
		return nil, refusal(ctx, method)
	}
	client, err := govmomi.NewClient(t.Context(), server.URL, true)
	must(t, err)
	made.admin = client
	made.makeTemplates(t)
	return made
}

// refusal refuses everything to the guest but the login.
func refusal(ctx *simulator.Context, method *simulator.Method) types.BaseMethodFault {
	if ctx.Session == nil || ctx.Session.UserName != guest || method.Name == "Logout" {
		return nil
	}
	return &types.NoPermission{Object: &method.This, PrivilegeId: "System.View"}
}

func (s *simulated) makeTemplates(t *testing.T) {
	t.Helper()
	making := &sync.Mutex{}
	search := s.model.Map().Get(*s.admin.ServiceContent.SearchIndex).(*simulator.SearchIndex)
	s.model.Map().Put(&index{search, making, s})
	for _, datacenter := range []string{"DC0", "DC1"} {
		vm := s.vm(t, "/"+datacenter+"/vm/"+datacenter+"_C0_RP0_VM0")
		must(t, vm.MarkAsTemplate(t.Context()))
		known := s.model.Map().Get(vm.Reference()).(*simulator.VirtualMachine)
		s.model.Map().Put(&limited{known, making, s})
	}
}

// vm returns the VM at an inventory path.
func (s *simulated) vm(t *testing.T, path string) *object.VirtualMachine {
	t.Helper()
	found, err := object.NewSearchIndex(s.admin.Client).FindByInventoryPath(t.Context(), path)
	must(t, err)
	vm, ok := found.(*object.VirtualMachine)
	if !ok {
		t.Fatalf("there is no VM %s", path)
	}
	return vm
}

// limited is a template whose clones fail where there is no room, as those of vCenter do: in their task. They inherit its
// extra configuration.
type limited struct {
	*simulator.VirtualMachine
	making *sync.Mutex
	of     *simulated
}

func (l *limited) CloneVMTask(ctx *simulator.Context, request *types.CloneVM_Task) soap.HasFault {
	task := simulator.CreateTask(request.This, "cloneVm", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if fault := withoutRoom(ctx, request.Spec.Location); fault != nil {
			return nil, fault
		}
		l.making.Lock()
		defer l.making.Unlock()
		config := request.Spec.Config
		config.ExtraConfig = append(slices.Clone(l.Config.ExtraConfig), config.ExtraConfig...)
		started := l.VirtualMachine.CloneVMTask(ctx, request).(*methods.CloneVM_TaskBody)
		clone := ctx.Map.Get(started.Res.Returnval).(*simulator.Task)
		clone.Wait()
		if clone.Info.Error != nil {
			return nil, clone.Info.Error.Fault
		}
		return clone.Info.Result, nil
	})
	if l.of.namesUsers {
		task.Info.Reason = &types.TaskReasonUser{UserName: ctx.Session.UserName}
	}
	return &methods.CloneVM_TaskBody{Res: &types.CloneVM_TaskResponse{Returnval: task.Run(ctx)}}
}

// index is a search index that waits for a VM that is being made: the simulator's panics over one without a name.
type index struct {
	*simulator.SearchIndex
	making *sync.Mutex
	of     *simulated
}

func (i *index) FindByInventoryPath(ctx *simulator.Context, request *types.FindByInventoryPath) soap.HasFault {
	i.making.Lock()
	defer i.making.Unlock()
	body := i.SearchIndex.FindByInventoryPath(ctx, request)
	if found, ok := body.(*methods.FindByInventoryPathBody); ok && i.hides(found.Res.Returnval) {
		found.Res.Returnval = nil
	}
	return body
}

func (i *index) FindAllByUuid(ctx *simulator.Context, request *types.FindAllByUuid) soap.HasFault {
	if slices.Contains(i.of.hidden, vmType) {
		return &methods.FindAllByUuidBody{Res: new(types.FindAllByUuidResponse)}
	}
	return i.SearchIndex.FindAllByUuid(ctx, request)
}

func (i *index) hides(found *types.ManagedObjectReference) bool {
	return found != nil && slices.Contains(i.of.hidden, found.Type)
}

func withoutRoom(ctx *simulator.Context, location types.VirtualMachineRelocateSpec) types.BaseMethodFault {
	if store, ok := ctx.Map.Get(*location.Datastore).(*simulator.Datastore); ok && store.Name == fullStore {
		return &types.NoDiskSpace{Datastore: fullStore}
	}
	pool := ctx.Map.Get(*location.Pool).(*simulator.ResourcePool)
	if owner, ok := ctx.Map.Get(pool.Owner).(*simulator.ClusterComputeResource); ok && owner.Name == fullCluster {
		return &types.InsufficientMemoryResourcesFault{Unreserved: 1, Requested: 2}
	}
	return nil
}

// secrets are the keys of the administrator's Secret.
func (a access) secrets() map[string]string {
	return map[string]string{
		serverKey: a.Server, usernameKey: admin, passwordKey: adminPassword, thumbprintKey: a.Thumbprint,
	}
}

func (a access) text(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(a)
	must(t, err)
	return string(text)
}

// context returns the context of a call with the administrator's credentials.
func (a access) context(ctx context.Context) context.Context {
	secrets := cmi.Secrets{}
	for key, value := range a.secrets() {
		secrets[key] = cmi.Secret(value)
	}
	return cmi.WithSecrets(ctx, secrets)
}

// inject makes the next calls of a method fail.
func (s *simulated) inject(method string, fault types.BaseMethodFault, times int) {
	s.model.Service.AddFaultRule(&simulator.FaultInjectionRule{
		MethodName: method, ObjectType: "*", ObjectName: "*", Probability: 1, FaultType: simulator.FaultTypeCustom,
		Fault: fault, MaxCount: times, Enabled: true,
	})
}

func testSettings() settings {
	return settings{Default: smallest().placement, FailureDomains: []domain{
		{Name: "a", Placement: placement{Datacenter: "DC0", Cluster: cluster, Template: template}},
		{Name: "b", Placement: placement{
			Datacenter: "DC1", Cluster: "DC1_C0", Template: "DC1_C0_RP0_VM0", Networks: []string{"DC1_DVPG0"},
		}},
		{Name: "full", WorkersOnly: true, Placement: placement{Datacenter: "DC0", Cluster: fullCluster}},
	}}
}

// smallest is the smallest provider spec.
func smallest() spec {
	return spec{
		placement: placement{
			Datacenter: "DC0", Cluster: cluster, Datastore: datastore, Template: template, Networks: []string{network0},
		},
		CPUs: 2, MemoryMiB: 2048,
	}
}

func identity(name string) cmi.Identity {
	return cmi.Identity{
		Cluster: "cluster-1", Name: name, Machine: "uid-of-" + name,
		Tags: map[string]string{cmi.ClusterTag: "cluster-1", cmi.MachineTag: "uid-of-" + name},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func names(vms []*cmi.VM) []string {
	all := make([]string, len(vms))
	for i, vm := range vms {
		all[i] = vm.Name
	}
	slices.Sort(all)
	return all
}

// addToPod moves a datastore into the datastore cluster, and turns Storage DRS on.
func (s *simulated) addToPod(t *testing.T, name string) {
	t.Helper()
	index := object.NewSearchIndex(s.admin.Client)
	store, err := index.FindByInventoryPath(t.Context(), "/DC0/datastore/"+name)
	must(t, err)
	cluster, err := index.FindByInventoryPath(t.Context(), "/DC0/datastore/"+pod)
	must(t, err)
	moved, err := cluster.(*object.StoragePod).MoveInto(t.Context(), []types.ManagedObjectReference{store.Reference()})
	must(t, err)
	must(t, moved.Wait(t.Context()))
	configured, err := object.NewStorageResourceManager(s.admin.Client).ConfigureStorageDrsForPod(
		t.Context(), cluster.(*object.StoragePod),
		types.StorageDrsConfigSpec{PodConfigSpec: &types.StorageDrsPodConfigSpec{Enabled: types.NewBool(true)}}, true)
	must(t, err)
	must(t, configured.Wait(t.Context()))
}

// sessionKeys returns all sessions of the vCenter.
func (s *simulated) sessionKeys(ctx context.Context) ([]string, error) {
	var manager mo.SessionManager
	err := property.DefaultCollector(s.admin.Client).RetrieveOne(
		ctx, *s.admin.ServiceContent.SessionManager, []string{"sessionList"}, &manager)
	keys := make([]string, len(manager.SessionList))
	for i, each := range manager.SessionList {
		keys[i] = each.Key
	}
	return keys, err
}
