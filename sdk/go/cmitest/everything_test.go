//go:build unix

package cmitest_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmitest"
)

// everything is a back end with every optional interface. Its VMs are files.
type everything struct{ folder string }

type spec struct {
	Size          string            `json:"size" cmi:"enum=small|large"`
	DiskGB        int               `json:"diskGB,omitempty" cmi:"min=10,max=1000"`
	Labels        map[string]string `json:"labels,omitempty" cmi:"hot"`
	FailureDomain string            `json:"failureDomain,omitempty"`
	// The caller sets them.
	Addresses []cmi.StaticAddress `json:"networkAddresses,omitempty"`
}

func (s *spec) SetDefaults() { s.DiskGB = 10 }

type instance struct {
	ID, Name    string
	Spec        spec
	Tags        map[string]string
	UserData    []byte
	Power       cmi.Power
	Initialized bool
	CreatedAt   time.Time
}

var (
	_ cmi.Backend[spec]     = &everything{}
	_ cmi.Prober            = &everything{}
	_ cmi.Stopper           = &everything{}
	_ cmi.Starter           = &everything{}
	_ cmi.Restarter         = &everything{}
	_ cmi.Initializer[spec] = &everything{}
	_ cmi.Updater[spec]     = &everything{}
	_ cmi.Zoner[spec]       = &everything{}
	_ cmi.Sizer[spec]       = &everything{}
	_ cmi.Consoler          = &everything{}
	_ cmi.VolumeFinder      = &everything{}
	_ cmi.Migrator          = &everything{}
)

// Every optional call keeps the rules of the contract, under every fault that a hook can cause.
func TestEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the whole conformance suite")
	}
	folder := cmitest.Shared(t, "folder", t.TempDir)
	info := cmi.Info{
		Name: "everything.example.com", Version: "v0.1.0", Manifest: map[string]string{"purpose": "test"}, ListHasState: true,
	}
	cmitest.Run(t, info, &everything{folder}, cmitest.Suite{
		ProviderSpec:       map[string]any{"size": "small"},
		Secrets:            map[string]string{"token": "the-right-token"},
		BadSecrets:         []map[string]string{{}, {"token": "the-wrong-token"}},
		RestrictedSecrets:  map[string]string{"token": "the-token-without-rights"},
		IncompatibleChange: map[string]any{"size": "large"},
		QuotaBreakingSpec:  map[string]any{"diskGB": 999},
		FullFailureDomain:  "full",
		StaticAddresses:    &cmitest.FreeAddresses{First: "10.0.1.1", Prefix: 16, Gateway: "10.0.0.1"},
		HotUpdates: []any{
			map[string]any{"labels": map[string]string{"purpose": "a"}},
			map[string]any{"tags": map[string]string{"team": "b"}},
		},
		OwnVolumes: []cmitest.Volume{volume("one"), volume("two")},
		ForeignVolumes: []any{
			map[string]any{"csi": map[string]string{"driver": "csi.example.com", "volumeHandle": "other"}},
		},
		Migration: &cmitest.Migration{
			APIGroup: "example.com",
			Kind:     "EverythingClass",
			Class:    map[string]any{"spec": map[string]any{"size": "large"}},
			Expected: map[string]any{
				"metadata": map[string]any{"name": "kept"}, "provider": "everything",
				"providerSpec": map[string]any{"size": "large"},
			},
			Broken: []any{map[string]any{"spec": map[string]any{"size": "huge"}}},
		},
		LongestName:  253,
		ManyMachines: 60,
	})
}

func volume(id string) cmitest.Volume {
	csi := map[string]string{"driver": "everything.example.com", "volumeHandle": id}
	return cmitest.Volume{Spec: map[string]any{"csi": csi}, ID: id}
}

// authorized checks the credentials of a call.
func authorized(ctx context.Context) error {
	token, err := cmi.SecretsOf(ctx).Need("token")
	switch {
	case err != nil:
		return err
	case token == "the-right-token":
		return nil
	case token == "the-token-without-rights":
		return cmi.PermissionDenied("the token may do nothing")
	}
	// An error that quotes a credential, as some libraries do. The kit removes it.
	return cmi.Unauthenticated("the token %s is unknown", token)
}

func (b *everything) Probe(context.Context) error { return nil }

func (b *everything) Find(ctx context.Context, id cmi.Identity, spec spec) ([]*cmi.VM, error) {
	all, err := b.List(ctx, id.Cluster, spec)
	return slices.DeleteFunc(all, func(vm *cmi.VM) bool { return vm.Name != id.Name }), err
}

func (b *everything) List(ctx context.Context, _ string, _ spec) ([]*cmi.VM, error) {
	if err := authorized(ctx); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(b.folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var vms []*cmi.VM
	for _, path := range paths {
		var read instance
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err = errors.Join(err, json.Unmarshal(text, &read)); err != nil {
			return nil, err
		}
		vms = append(vms, read.vm())
	}
	return vms, nil
}

func (i instance) vm() *cmi.VM {
	vm := &cmi.VM{
		ID: i.ID, Name: i.Name, Tags: i.Tags, Power: i.Power, Zone: i.Spec.FailureDomain, CreatedAt: i.CreatedAt,
		Addresses: []cmi.Address{{Type: cmi.InternalIP, Text: "10.0.0.7"}, {Type: cmi.InternalDNS, Text: i.Name}},
		State:     []byte("state of " + i.ID),
		Native:    i,
	}
	for _, given := range i.Spec.Addresses {
		vm.Addresses = append(vm.Addresses, cmi.Address{Type: cmi.InternalIP, Text: given.Address})
	}
	if !i.Initialized {
		vm.Uninitialized = "the source/destination check is on"
	}
	return vm
}

func (b *everything) Create(ctx context.Context, id cmi.Identity, spec spec, boot cmi.Bootstrap) (*cmi.VM, error) {
	if err := authorized(ctx); err != nil {
		return nil, err
	}
	if spec.DiskGB == 999 {
		return nil, cmi.Exhausted("the pool has no 999 GB").RetryAfter(time.Minute)
	}
	if spec.FailureDomain == "full" {
		return nil, cmi.Exhausted("failure domain full has no room")
	}
	made := instance{
		ID: "everything:///" + rand.Text(), Name: id.Name, Spec: spec, Tags: id.Tags, UserData: boot.UserData,
		Power: cmi.Running, CreatedAt: time.Now(),
	}
	return made.vm(), b.change(made)
}

func (b *everything) Delete(_ context.Context, vm *cmi.VM) error {
	if err := os.Remove(b.path(vm.ID)); err != nil {
		return err
	}
	return b.count()
}

func (b *everything) Stop(_ context.Context, vm *cmi.VM) error { return b.power(vm, cmi.Stopped) }

func (b *everything) Start(_ context.Context, vm *cmi.VM) error { return b.power(vm, cmi.Running) }

func (b *everything) Restart(_ context.Context, vm *cmi.VM) error { return b.power(vm, cmi.Running) }

func (b *everything) power(vm *cmi.VM, state cmi.Power) error {
	changed := vm.Native.(instance)
	changed.Power = state
	return b.change(changed)
}

func (b *everything) Initialize(_ context.Context, vm *cmi.VM, _ spec) error {
	changed := vm.Native.(instance)
	changed.Initialized = true
	return b.change(changed)
}

func (b *everything) Uninitialize(_ context.Context, vm *cmi.VM) error {
	changed := vm.Native.(instance)
	changed.Initialized = false
	return b.change(changed)
}

func (b *everything) Update(_ context.Context, vm *cmi.VM, change cmi.Change[spec]) error {
	before := vm.Native.(instance)
	changed := before
	changed.Spec.Labels, changed.Tags = change.Spec.Labels, maps.Clone(before.Tags)
	maps.Copy(changed.Tags, change.SetTags)
	for _, name := range change.RemoveTags {
		delete(changed.Tags, name)
	}
	if reflect.DeepEqual(before, changed) {
		return nil
	}
	return b.change(changed)
}

func (b *everything) Zones(ctx context.Context, _ spec) ([]cmi.Zone, error) {
	return []cmi.Zone{{Name: "a", ControlPlane: true, Attributes: map[string]string{"floor": "1"}}, {Name: "b"}, {Name: "full"}},
		authorized(ctx)
}

func (b *everything) Size(ctx context.Context, spec spec) (cmi.Size, error) {
	cpu := map[string]string{"small": "1", "large": "4"}[spec.Size]
	return cmi.Size{
		Capacity: map[string]string{"cpu": cpu, "memory": "2Gi"}, Architecture: "amd64", OperatingSystem: "linux",
	}, authorized(ctx)
}

func (b *everything) Console(_ context.Context, vm *cmi.VM) ([]byte, error) {
	return []byte("console of " + vm.ID + "\n"), nil
}

func (b *everything) VolumeID(_ context.Context, volume cmi.PersistentVolume) (string, error) {
	if volume.Driver != "everything.example.com" {
		return "", nil
	}
	return volume.Handle, nil
}

func (b *everything) Migrate(_ context.Context, from cmi.ProviderClass, class json.RawMessage) (json.RawMessage, error) {
	var old struct{ Spec spec }
	filled := map[string]any{}
	if err := errors.Join(json.Unmarshal(from.Object, &old), json.Unmarshal(class, &filled)); err != nil {
		return nil, cmi.Internal("cannot read the class").Because(err)
	}
	if from.Kind != "EverythingClass" || old.Spec.Size != "small" && old.Spec.Size != "large" {
		return nil, cmi.Internal("cannot convert a %s of size %s", from.Kind, old.Spec.Size)
	}
	filled["provider"], filled["providerSpec"] = "everything", map[string]any{"size": old.Spec.Size}
	return json.Marshal(filled)
}

func (b *everything) UserData(_ context.Context, vm *cmi.VM) ([]byte, error) {
	return vm.Native.(instance).UserData, nil
}

func (b *everything) VMSpec(_ context.Context, vm *cmi.VM) (json.RawMessage, error) {
	return json.Marshal(map[string]any{"labels": vm.Native.(instance).Spec.Labels, "tags": vm.Tags})
}

func (b *everything) Changes(context.Context) (int, error) {
	found, err := os.Stat(filepath.Join(b.folder, "changes"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int(found.Size()), nil
}

func (b *everything) path(id string) string {
	return filepath.Join(b.folder, filepath.Base(id)+".json")
}

func (b *everything) change(i instance) error {
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	unfinished := b.path(i.ID) + ".unfinished"
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(unfinished, b.path(i.ID)), b.count())
}

func (b *everything) count() error {
	file, err := os.OpenFile(filepath.Join(b.folder, "changes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write([]byte{'.'})
	return errors.Join(err, file.Close())
}
