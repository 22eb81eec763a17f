// A driver whose VMs are files in a folder.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

var info = cmi.Info{Name: "acme.example.com", Version: "v0.1.0"}

// spec has the fields that users write in providerSpec.
type spec struct {
	Size   string `json:"size" cmi:"enum=small|large"`
	DiskGB int    `json:"diskGB,omitempty" cmi:"min=10,max=1000" jsonschema:"size of the disk"`
}

// backend is a folder with a file for each VM.
type backend struct{ folder string }

// instance is the content of a file.
type instance struct {
	ID, Name string
	Spec     spec
	Tags     map[string]string
	UserData []byte
}

func main() {
	cmi.Main(info, &backend{folder: os.Getenv("ACME_FOLDER")})
}

func (b *backend) Create(_ context.Context, id cmi.Identity, spec spec, boot cmi.Bootstrap) (*cmi.VM, error) {
	made := instance{ID: "acme:///" + rand.Text(), Name: id.Name, Spec: spec, Tags: id.Tags, UserData: boot.UserData}
	return made.vm(), b.write(made)
}

func (b *backend) Find(ctx context.Context, id cmi.Identity, spec spec) ([]*cmi.VM, error) {
	all, err := b.List(ctx, id.Cluster, spec)
	return slices.DeleteFunc(all, func(vm *cmi.VM) bool { return vm.Name != id.Name }), err
}

func (b *backend) List(_ context.Context, cluster string, _ spec) ([]*cmi.VM, error) {
	paths, err := filepath.Glob(filepath.Join(b.folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var vms []*cmi.VM
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		var read instance
		if err = errors.Join(err, json.Unmarshal(text, &read)); err != nil {
			return nil, cmi.Internal("cannot read the file %s", filepath.Base(path)).Because(err)
		}
		if read.Tags[cmi.ClusterTag] == cluster {
			vms = append(vms, read.vm())
		}
	}
	return vms, nil
}

func (b *backend) Delete(_ context.Context, vm *cmi.VM) error {
	return os.Remove(b.path(vm.Native.(instance)))
}

func (i instance) vm() *cmi.VM {
	return &cmi.VM{ID: i.ID, Name: i.Name, Tags: i.Tags, Power: cmi.Running, Native: i}
}

func (b *backend) path(i instance) string {
	return filepath.Join(b.folder, filepath.Base(i.ID)+".json")
}

func (b *backend) write(i instance) error {
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	unfinished := b.path(i) + ".unfinished"
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return err
	}
	return os.Rename(unfinished, b.path(i))
}
