package mcmbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/mcmbridge/internal/fakecloud"
)

var (
	small = cmi.OpenSpec{"size": json.RawMessage(`"small"`)}
	large = cmi.OpenSpec{"size": json.RawMessage(`"large"`)}
)

// scripted is a platform whose calls a test replaces.
type scripted struct {
	*fakecloud.Driver
	create     func() (*driver.CreateMachineResponse, error)
	initialize func() error
	status     func() (*driver.GetMachineStatusResponse, error)
	volumes    error
	deleted    []string
}

func (s *scripted) CreateMachine(ctx context.Context, r *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	if s.create != nil {
		return s.create()
	}
	return s.Driver.CreateMachine(ctx, r)
}

func (s *scripted) InitializeMachine(
	ctx context.Context, r *driver.InitializeMachineRequest,
) (*driver.InitializeMachineResponse, error) {
	if s.initialize != nil {
		return nil, s.initialize()
	}
	return s.Driver.InitializeMachine(ctx, r)
}

func (s *scripted) GetMachineStatus(
	ctx context.Context, r *driver.GetMachineStatusRequest,
) (*driver.GetMachineStatusResponse, error) {
	if s.status != nil {
		return s.status()
	}
	return s.Driver.GetMachineStatus(ctx, r)
}

func (s *scripted) DeleteMachine(ctx context.Context, r *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	s.deleted = append(s.deleted, r.Machine.Spec.ProviderID)
	return s.Driver.DeleteMachine(ctx, r)
}

func (s *scripted) GetVolumeIDs(ctx context.Context, r *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	if s.volumes != nil {
		return nil, s.volumes
	}
	return s.Driver.GetVolumeIDs(ctx, r)
}

func bridged(t *testing.T) (*bridge, *scripted) {
	driver := &scripted{Driver: &fakecloud.Driver{Folder: t.TempDir()}}
	return newBridge(cmi.Info{}, driver, []Option{Provider(fakecloud.Provider)}), driver
}

func authorized(t *testing.T) context.Context {
	return cmi.WithSecrets(t.Context(), cmi.Secrets{"token": cmi.Secret(fakecloud.Token)})
}

func identity(machine string) cmi.Identity {
	tags := map[string]string{cmi.ClusterTag: "c", cmi.RoleTag: "control-plane", "team": "a"}
	if machine != "" {
		tags[cmi.MachineTag] = machine
	}
	return cmi.Identity{Cluster: "c", Name: "a", Machine: machine, Tags: tags}
}

func create(t *testing.T, b *bridge, id cmi.Identity) *cmi.VM {
	t.Helper()
	vm, err := b.Create(authorized(t), id, small, cmi.Bootstrap{UserData: cmi.Secret("#cloud-config")})
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func find(t *testing.T, b *bridge, id cmi.Identity) []*cmi.VM {
	t.Helper()
	found, err := b.Find(authorized(t), id, small)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func wantError(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want %q", what, err, text)
	}
}

func TestNewVMHasTheTagsOfTheCallerAndOfTheDriver(t *testing.T) {
	b, cloud := bridged(t)
	vm := create(t, b, identity("one"))
	made, err := cloud.Read(vm.ID)
	if err != nil {
		t.Fatal(err)
	}
	bySpec, err := specRole(identity("one"), small)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"kubernetes.io/cluster": "c", "kubernetes.io/role": "control-plane", "capcmi.io/machine": "one", "team": "a",
		"kubernetes.io/cluster/c": "1", "kubernetes.io/role/node": "1",
		"kubernetes.io/role/" + string(machineRole(identity("one"))): "1", "kubernetes.io/role/" + string(bySpec): "1",
	}
	if fmt.Sprint(made.Tags) != fmt.Sprint(want) || string(made.UserData) != "#cloud-config" {
		t.Errorf("the VM is %v", made)
	}
	if string(vm.State) != "state of "+vm.ID || vm.Addresses[0].Text != "10.0.0.7" || vm.NodeName != "a" {
		t.Errorf("got %v", vm)
	}
}

func TestDashTagsHaveNoSlash(t *testing.T) {
	tags, err := DashTags.all(identity("one"), small)
	if err != nil {
		t.Fatal(err)
	}
	for name := range tags {
		if strings.Contains(name, "/") || len(name) > 63 {
			t.Errorf("the tag %s", name)
		}
	}
	if tags["capcmi.io-machine"] != "one" || tags["kubernetes.io-cluster-c"] != "1" {
		t.Errorf("got %v", tags)
	}
}

// The user could otherwise choose the cluster that the driver lists.
func TestTagsThatTheDriverComparesAreRefused(t *testing.T) {
	b, _ := bridged(t)
	for name, isRefused := range map[string]bool{
		"kubernetes.io/cluster/other": true, "kubernetes.io/role/machine-0": true, "a.kubernetes.io/role/b": true,
		"kubernetes.io/cluster/c": false, "kubernetes.io/role/node": false,
	} {
		id := identity("one")
		id.Tags[name] = "1"
		_, err := b.Find(authorized(t), id, small)
		if isRefused {
			wantError(t, name, err, "ProviderSpec /tags/"+strings.ReplaceAll(name, "/", "~1"))
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVMOfAnotherMachineObjectHasNoOwnerHere(t *testing.T) {
	b, _ := bridged(t)
	vm := create(t, b, identity("one"))
	if own := find(t, b, identity("one")); len(own) != 1 || own[0].ID != vm.ID || own[0].Tags[cmi.MachineTag] != "one" {
		t.Errorf("the owner finds %v", own)
	}
	others := find(t, b, identity("two"))
	if len(others) != 1 || others[0].ID != vm.ID || others[0].Tags[cmi.MachineTag] != "" {
		t.Errorf("another machine object finds %v", others)
	}
	difference, err := b.Match(authorized(t), vm, small)
	if err != nil || difference != "" {
		t.Errorf("its own spec: %q, %v", difference, err)
	}
	if difference, err := b.Match(authorized(t), vm, large); err != nil || difference == "" {
		t.Errorf("another spec: %q, %v", difference, err)
	}
}

// A VM that MCM made has the tags of the cluster and the role `node` alone.
func TestAdoptedVMIsFoundByItsCluster(t *testing.T) {
	b, cloud := bridged(t)
	old := fakecloud.VM{
		ProviderID: "fake:///old", Name: "a", Initialized: true,
		Tags: map[string]string{"kubernetes.io/cluster/c": "1", "kubernetes.io/role/node": "1"},
	}
	if err := cloud.Write(old); err != nil {
		t.Fatal(err)
	}
	found := find(t, b, identity(""))
	if len(found) != 1 || found[0].ID != old.ProviderID || found[0].NodeName != "a" || len(found[0].Addresses) != 1 {
		t.Fatalf("got %v", found)
	}
	if err := b.Delete(authorized(t), found[0]); err != nil {
		t.Error(err)
	}
	if left := find(t, b, identity("")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// Azure's GetMachineStatus ignores tags, and its list may be minutes old.
func TestNameOfAVMOutsideTheListIsTaken(t *testing.T) {
	b, cloud := bridged(t)
	cloud.status = func() (*driver.GetMachineStatusResponse, error) {
		return &driver.GetMachineStatusResponse{ProviderID: "fake:///foreign", NodeName: "a"}, nil
	}
	cloud.create = func() (*driver.CreateMachineResponse, error) {
		t.Error("the driver was called")
		return nil, nil
	}
	if found := find(t, b, identity("one")); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	_, err := b.Create(authorized(t), identity("one"), small, cmi.Bootstrap{})
	wantError(t, "a list that is never outdated", err, "AlreadyExists: a VM of another cluster has the name")
	b.window = time.Minute
	_, err = b.Create(authorized(t), identity("one"), small, cmi.Bootstrap{})
	wantError(t, "a list that may be outdated", err, "Aborted: a VM has the name")
}

// As OpenStack's driver does.
func TestDriverWithoutGetMachineStatusUsesItsList(t *testing.T) {
	b, cloud := bridged(t)
	cloud.status = func() (*driver.GetMachineStatusResponse, error) {
		return nil, status.Error(codes.Unimplemented, "not implemented")
	}
	if found := find(t, b, identity("one")); len(found) > 0 {
		t.Fatalf("found %v", found)
	}
	vm := create(t, b, identity("one"))
	if own := find(t, b, identity("one")); len(own) != 1 || own[0].ID != vm.ID || own[0].Name != "a" {
		t.Errorf("the owner finds %v", own)
	}
	if others := find(t, b, identity("two")); len(others) != 1 || others[0].Tags[cmi.MachineTag] != "" {
		t.Errorf("another machine object finds %v", others)
	}
}

func TestContradictionOfTheDriverIsInternal(t *testing.T) {
	b, cloud := bridged(t)
	create(t, b, identity("one"))
	cloud.status = func() (*driver.GetMachineStatusResponse, error) {
		return &driver.GetMachineStatusResponse{ProviderID: "fake:///foreign"}, nil
	}
	_, err := b.Find(authorized(t), identity("one"), small)
	wantError(t, "another id", err, "Internal: ListMachines names the VM fake:///")
}

func TestSeveralVMsOfAMachineAreAllFound(t *testing.T) {
	b, cloud := bridged(t)
	vm := create(t, b, identity("one"))
	second, err := cloud.Read(vm.ID)
	if err != nil {
		t.Fatal(err)
	}
	second.ProviderID = "fake:///second"
	if err := cloud.Write(second); err != nil {
		t.Fatal(err)
	}
	for machine, owner := range map[string]string{"one": "one", "two": ""} {
		found := find(t, b, identity(machine))
		if len(found) != 2 || found[0].Tags[cmi.MachineTag] != owner || found[1].Tags[cmi.MachineTag] != owner {
			t.Errorf("%s finds %v", machine, found)
		}
	}
}

// A failed create of Azure's driver leaves a network interface, which is in its list.
func TestPartsWithoutAVMAreDeleted(t *testing.T) {
	b, cloud := bridged(t)
	tags, err := b.form.all(identity("one"), small)
	if err != nil {
		t.Fatal(err)
	}
	if err := cloud.Write(fakecloud.VM{ProviderID: "fake:///part", Name: "a", Tags: tags, Part: true}); err != nil {
		t.Fatal(err)
	}
	if found := find(t, b, identity("one")); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	if err := b.Clean(authorized(t), identity("two"), small); err != nil || len(cloud.deleted) > 0 {
		t.Errorf("another machine object deleted %v, %v", cloud.deleted, err)
	}
	if err := b.Clean(authorized(t), identity("one"), small); err != nil || !slices.Equal(cloud.deleted, []string{"fake:///part"}) {
		t.Errorf("deleted %v, %v", cloud.deleted, err)
	}
}

func TestInitializationFollowsTheCodesOfMCM(t *testing.T) {
	b, cloud := bridged(t)
	cloud.initialize = func() error { return status.Error(codes.Unimplemented, "not implemented") }
	if err := b.Initialize(authorized(t), create(t, b, identity("one")), small); err != nil {
		t.Errorf("a driver without it: %v", err)
	}
	for code, text := range map[codes.Code]string{
		codes.Uninitialized: "FailedPrecondition: the check is on", codes.NotFound: cmi.ErrGone.Error(),
		codes.Unimplemented: "Unimplemented: InitializeMachine: the check is on",
		codes.Unavailable:   "Unavailable: InitializeMachine: the check is on",
	} {
		cloud.initialize = func() error { return status.Error(code, "the check is on") }
		err := b.Initialize(authorized(t), find(t, b, identity("one"))[0], small)
		wantError(t, code.String(), err, text)
	}
	if own := find(t, b, identity("one")); own[0].Uninitialized != "the source/destination check is on" || own[0].NodeName != "a" {
		t.Errorf("a VM that waits: %v", own[0])
	}
}

func TestCodesPassUnchanged(t *testing.T) {
	for code := codes.OK; code <= codes.Uninitialized; code++ {
		want := code.String() + ": call: a [text] with brackets"
		if code == codes.OK || code == codes.NotFound || code == codes.Uninitialized {
			want = "Unknown: call: a [text] with brackets"
		}
		wantError(t, code.String(), failure("call", status.Error(code, "a [text] with brackets")), want)
		wrapped := fmt.Errorf("around: %w", status.Error(code, "a [text] with brackets"))
		wantError(t, "a wrapped "+code.String(), failure("call", wrapped), want)
	}
	// MCM reads the text of an error that lost its type.
	text := errors.New(status.Error(codes.ResourceExhausted, "full").Error())
	wantError(t, "a text", failure("call", text), "ResourceExhausted: call: full")
	var known *cmi.Error
	if plain := failure("call", errors.New("no code")); errors.As(plain, &known) || plain.Error() != "call: no code" {
		t.Errorf("an error without a code: %v", plain)
	}
}

// NOT_FOUND from a list or a create says nothing about the VM.
func TestNotFoundOfACreateIsUnknown(t *testing.T) {
	b, cloud := bridged(t)
	cloud.create = func() (*driver.CreateMachineResponse, error) {
		return nil, status.Error(codes.NotFound, "there is no such image")
	}
	_, err := b.Create(authorized(t), identity("one"), small, cmi.Bootstrap{})
	wantError(t, "create", err, "Unknown: CreateMachine: there is no such image")
}

func TestOnlyImplementedCallsAreOffered(t *testing.T) {
	_, cloud := bridged(t)
	onlyMCM := struct{ driver.Driver }{cloud}
	for _, test := range []struct {
		driver             driver.Driver
		volumes            error
		finds, doesMigrate bool
	}{
		{cloud, nil, true, true},
		{onlyMCM, nil, true, false},
		{cloud, status.Error(codes.Unimplemented, "not implemented"), false, true},
		{onlyMCM, status.Error(codes.Unimplemented, "not implemented"), false, false},
	} {
		cloud.volumes = test.volumes
		backend := New(cmi.Info{}, test.driver)
		_, finds := backend.(cmi.VolumeFinder)
		_, migrates := backend.(cmi.Migrator)
		_, initializes := backend.(cmi.Initializer[cmi.OpenSpec])
		_, stops := backend.(cmi.Stopper)
		if finds != test.finds || migrates != test.doesMigrate || !initializes || stops {
			t.Errorf("volumes %v, migration %v, initialization %v, stop %v", finds, migrates, initializes, stops)
		}
	}
}

func TestUnknownAddressTypesAreLeftOut(t *testing.T) {
	got := addresses([]corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "a"}, {Type: "Other", Address: "b"}, {Type: corev1.NodeExternalDNS, Address: "c"},
	})
	if fmt.Sprint(got) != fmt.Sprint([]cmi.Address{{Type: cmi.HostName, Text: "a"}, {Type: cmi.ExternalDNS, Text: "c"}}) {
		t.Errorf("got %v", got)
	}
}
