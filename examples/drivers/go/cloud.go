package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The faults that ../hook.py causes: each is a file of this name.
const (
	faultUnavailable = "unavailable"
	faultUnknown     = "unknown"
	faultInternal    = "internal"
	faultExhausted   = "exhaust"
	faultSlow        = "slow"
	faultLostCreate  = "loseCreate"
	faultLostDelete  = "loseDelete"
	faultUnhealthy   = "unhealthy"
	faultStarting    = "starting"
)

// cloud is the back end: a folder with a file for each VM in vms/. It outlives the driver, and several drivers may
// use it at a time.
type cloud struct{ folder string }

// vm is what the file of a VM holds.
type vm struct {
	ID        string    `json:"id"`
	Machine   string    `json:"machine"`
	Spec      vmSpec    `json:"spec"`
	UserData  []byte    `json:"userData,omitempty"`
	Stopped   bool      `json:"stopped,omitempty"`
	Locked    bool      `json:"locked,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
}

func (v vm) identity() string { return v.Spec.Tags[identityTag] }

func openCloud(folder string) (*cloud, error) {
	for _, name := range []string{"vms", "locks", "faults"} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o700); err != nil {
			return nil, err
		}
	}
	return &cloud{folder}, nil
}

func (c *cloud) has(fault string) bool {
	_, err := os.Stat(filepath.Join(c.folder, "faults", fault))
	return err == nil
}

// call stands before every use of the back end. What it answers is what the driver answers: an error of the back end
// has a code, and a caller that has gone is not worked for.
func (c *cloud) call(ctx context.Context) error {
	if text, err := os.ReadFile(filepath.Join(c.folder, "faults", faultSlow)); err == nil {
		millis, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("the fault %s is no number: %w", faultSlow, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(millis) * time.Millisecond):
		}
	}
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case c.has(faultUnavailable):
		return status.Error(codes.Unavailable, "the back end can't be reached")
	case c.has(faultUnknown):
		// An error without a code is UNKNOWN.
		return errors.New("the back end answered something that the driver does not know")
	case c.has(faultInternal):
		return status.Error(codes.Internal, "the back end contradicts itself")
	}
	return nil
}

// lock keeps other calls for the same machine away, also those of another process: what was looked up is still so
// when it is acted on. A back end that other computers use, too, has a lock, a client token or a unique name of its own.
func (c *cloud) lock(key key) (unlock func(), err error) {
	sum := sha256.Sum256([]byte(key.cluster + "\x00" + key.machine))
	file, err := os.OpenFile(filepath.Join(c.folder, "locks", hex.EncodeToString(sum[:])), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = status.Errorf(codes.Aborted, "another call for %s is running", key)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	// The lock ends with the file.
	return func() { file.Close() }, nil
}

// find reads the VMs of a cluster, or those of one machine of it.
func (c *cloud) find(ctx context.Context, cluster, machine string) ([]vm, error) {
	if err := c.call(ctx); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(c.folder, "vms", "*.json"))
	if err != nil {
		return nil, err
	}
	var found []vm
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		var vm vm
		if err := json.Unmarshal(text, &vm); err != nil {
			return nil, status.Errorf(codes.Internal, "the file %s of a VM can't be read", filepath.Base(path))
		}
		if vm.Spec.Tags[clusterTag] == cluster && (machine == "" || vm.Machine == machine) {
			found = append(found, vm)
		}
	}
	return found, nil
}

func (c *cloud) create(ctx context.Context, wanted key, userData []byte) (vm, error) {
	if c.has(faultExhausted) {
		return vm{}, status.Error(codes.ResourceExhausted, "the back end has no room for another VM")
	}
	if err := c.call(ctx); err != nil {
		return vm{}, err
	}
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return vm{}, err
	}
	made := vm{
		ID:        "folder:///" + hex.EncodeToString(random),
		Machine:   wanted.machine,
		Spec:      wanted.spec,
		UserData:  userData,
		CreatedAt: time.Now().UTC(),
	}
	if err := c.write(made); err != nil {
		return vm{}, err
	}
	return made, c.mayLose(faultLostCreate)
}

func (c *cloud) stop(ctx context.Context, vm vm) error {
	if err := c.call(ctx); err != nil {
		return err
	}
	vm.Stopped = true
	return c.write(vm)
}

func (c *cloud) delete(ctx context.Context, vm vm) error {
	if err := c.call(ctx); err != nil {
		return err
	}
	if err := os.Remove(c.path(vm)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := c.changed(); err != nil {
		return err
	}
	return c.mayLose(faultLostDelete)
}

func (c *cloud) path(vm vm) string {
	return filepath.Join(c.folder, "vms", strings.TrimPrefix(vm.ID, "folder:///")+".json")
}

// write puts the file of a VM in its place whole, or not at all.
func (c *cloud) write(vm vm) error {
	text, err := json.Marshal(vm)
	if err != nil {
		return err
	}
	unfinished := c.path(vm) + ".unfinished"
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(unfinished, c.path(vm)); err != nil {
		return err
	}
	return c.changed()
}

// changed counts a change, for the hook `mutations`.
func (c *cloud) changed() error {
	file, err := os.OpenFile(filepath.Join(c.folder, "changes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write([]byte{'.'})
	return errors.Join(err, file.Close())
}

// mayLose loses the answer of a change that was made, once for each time that the hook `loseResponse` ran.
func (c *cloud) mayLose(fault string) error {
	if os.Remove(filepath.Join(c.folder, "faults", fault)) != nil {
		return nil
	}
	return status.Error(codes.Unavailable, "the answer of the back end was lost")
}
