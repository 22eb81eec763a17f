package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// cloud is the back end: a folder with a file for each VM in vms/. It outlives the driver, and several drivers may use it
// at a time.
type cloud struct{ folder string }

// record is the content of a file.
type record struct {
	ID      string `json:"id"`
	Machine string `json:"machine"`
	Spec    struct {
		spec
		Tags map[string]string `json:"tags"`
	} `json:"spec"`
	UserData  []byte    `json:"userData,omitempty"`
	Stopped   bool      `json:"stopped,omitempty"`
	Locked    bool      `json:"locked,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
}

func newRecord(id cmi.Identity, spec spec, boot cmi.Bootstrap) record {
	made := record{
		ID:        "folder:///" + strings.ToLower(rand.Text()),
		Machine:   id.Name,
		UserData:  boot.UserData,
		CreatedAt: time.Now().UTC(),
	}
	made.Spec.spec, made.Spec.Tags = spec, id.Tags
	return made
}

func (r record) cluster() string { return r.Spec.Tags[cmi.ClusterTag] }

func (r record) vm() *cmi.VM {
	vm := &cmi.VM{
		ID: r.ID, Name: r.Machine, Tags: r.Spec.Tags, Power: cmi.Running, CreatedAt: r.CreatedAt, Native: r,
	}
	if r.Stopped {
		vm.Power = cmi.Stopped
	}
	if r.Locked {
		vm.Locked = "by an operator"
	}
	return vm
}

func openCloud(folder string) (*cloud, error) {
	for _, name := range []string{"vms", "locks", "faults"} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o700); err != nil {
			return nil, err
		}
	}
	return &cloud{folder}, nil
}

// read returns the VMs for which wanted is true.
func (c *cloud) read(ctx context.Context, wanted func(record) bool) ([]record, error) {
	paths, err := filepath.Glob(filepath.Join(c.folder, "vms", "*.json"))
	if err != nil {
		return nil, err
	}
	var found []record
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		var record record
		if err := json.Unmarshal(text, &record); err != nil {
			return nil, cmi.Internal("cannot read the file %s of a VM", filepath.Base(path)).Because(err)
		}
		if wanted(record) {
			found = append(found, record)
		}
	}
	return found, nil
}

// write puts the file of a VM in its place whole, or not at all.
func (c *cloud) write(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	unfinished := c.path(r) + ".unfinished"
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(unfinished, c.path(r)), c.changed())
}

func (c *cloud) remove(r record) error {
	if err := os.Remove(c.path(r)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return c.changed()
}

func (c *cloud) path(r record) string {
	return filepath.Join(c.folder, "vms", strings.TrimPrefix(r.ID, "folder:///")+".json")
}

// changed counts a change for the hook `mutations`.
func (c *cloud) changed() error {
	file, err := os.OpenFile(filepath.Join(c.folder, "changes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write([]byte{'.'})
	return errors.Join(err, file.Close())
}

func (c *cloud) lock(id cmi.Identity) (unlock func(), err error) {
	sum := sha256.Sum256([]byte(id.Cluster + "\x00" + id.Name))
	file, err := os.OpenFile(filepath.Join(c.folder, "locks", hex.EncodeToString(sum[:])), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = cmi.Busy("another process works on %s", id)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	// The lock ends with the file.
	return func() { _ = file.Close() }, nil
}
