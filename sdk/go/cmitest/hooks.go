//go:build unix

package cmitest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// UserDataReader is a back end that returns the user data of a VM, byte for byte. The verdict `full` needs it.
type UserDataReader interface {
	UserData(ctx context.Context, vm *cmi.VM) ([]byte, error)
}

// ChangeCounter is a back end that counts its changes. Without it, the calls that change a VM are counted. An Update that
// finds nothing to change needs it, and so does an Initialize of a [cmi.Rechecker].
type ChangeCounter interface {
	Changes(ctx context.Context) (int, error)
}

// SpecReader is a back end with Update that returns the values that a VM has, as JSON in the form of the provider spec.
type SpecReader interface {
	VMSpec(ctx context.Context, vm *cmi.VM) (json.RawMessage, error)
}

// Uninitializer is a back end with Initialize that undoes it.
type Uninitializer interface {
	Uninitialize(ctx context.Context, vm *cmi.VM) error
}

const vanishesWithin = 30 * time.Second

// hooks cause the faults of a suite in a driver and its back end.
type hooks[Spec any] struct {
	info    cmi.Info
	backend cmi.Backend[Spec]
	suite   Suite
}

// commands returns the command of each hook that the back end can serve.
func (h hooks[Spec]) commands(program []string) map[string][]string {
	machine := []string{"{machine}", "{cluster}"}
	arguments := map[string][]string{
		"unavailable": nil, "unknown": nil, "internal": nil, "exhaust": nil, "unhealthy": nil, "starting": nil,
		"loseResponse": nil, "restore": nil, "restart": nil, "mutations": nil, "slow": {"{amount}"},
		"plant": {"{machine}", "{cluster}", "{identity}"}, "lock": machine, "unlock": machine, "vanish": machine,
	}
	if _, ok := h.backend.(UserDataReader); ok {
		arguments["userData"] = machine
	}
	if _, ok := h.backend.(SpecReader); ok {
		arguments["vmSpec"] = machine
	}
	if _, ok := h.backend.(cmi.Initializer[Spec]); ok {
		arguments["failInitialize"] = []string{"{amount}"}
	}
	if _, ok := h.backend.(Uninitializer); ok {
		arguments["uninitialize"] = machine
	}
	commands := make(map[string][]string, len(arguments))
	for name, own := range arguments {
		commands[name] = slices.Concat(program, []string{hookMode, name}, own)
	}
	return commands
}

// run serves a hook in this process.
func (h hooks[Spec]) run(arguments []string) error {
	run := process{os.Getenv(folderVariable), os.Args[:len(os.Args)-len(arguments)-1]}
	ctx := cmi.WithSecrets(context.Background(), h.secrets())
	name, arguments := arguments[0], append(arguments[1:], "", "", "")
	id := cmi.Identity{Name: arguments[0], Cluster: arguments[1], Machine: arguments[2]}
	switch name {
	case "unavailable", "unknown", "internal", "exhaust", "unhealthy", "starting", "slow", "failInitialize":
		return run.faults().Set(faults.Fault(name), arguments[0])
	case "loseResponse":
		return errors.Join(run.faults().Set(faults.LoseCreate, ""), run.faults().Set(faults.LoseDelete, ""))
	case "restore":
		return run.faults().Clear()
	case "restart":
		return errors.Join(run.kill(), run.start())
	case "lock":
		return run.faults().Lock(id.Cluster, id.Name)
	case "unlock":
		return run.faults().Unlock(id.Cluster, id.Name)
	case "mutations":
		return h.printChanges(ctx, run.faults())
	case "plant":
		return h.plant(ctx, id)
	}
	vms, err := h.vms(ctx, id)
	if err != nil {
		return err
	}
	for _, vm := range vms {
		if err := h.change(ctx, name, vm); err != nil {
			return err
		}
	}
	if name == "vanish" {
		return h.vanished(ctx, id)
	}
	return nil
}

// change serves a hook about one VM.
func (h hooks[Spec]) change(ctx context.Context, name string, vm *cmi.VM) error {
	switch name {
	case "vanish":
		return h.backend.Delete(ctx, vm)
	case "uninitialize":
		return h.backend.(Uninitializer).Uninitialize(ctx, vm)
	case "userData":
		return printed(h.backend.(UserDataReader).UserData(ctx, vm))
	case "vmSpec":
		return printed(h.backend.(SpecReader).VMSpec(ctx, vm))
	default:
		return fmt.Errorf("there is no hook %s", name)
	}
}

func printed[Bytes ~[]byte](text Bytes, err error) error {
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

func (h hooks[Spec]) printChanges(ctx context.Context, folder faults.Folder) error {
	count, err := folder.Changes()
	if counter, ok := h.backend.(ChangeCounter); ok {
		var own int
		own, err = counter.Changes(ctx)
		count = int64(own)
	}
	if err == nil {
		fmt.Println(count)
	}
	return err
}

func (h hooks[Spec]) plant(ctx context.Context, id cmi.Identity) error {
	faults.Salt = rand.Text()
	id.Tags = map[string]string{cmi.ClusterTag: id.Cluster, cmi.MachineTag: id.Machine}
	spec, err := h.spec()
	if err != nil {
		return err
	}
	_, err = h.backend.Create(ctx, id, spec, cmi.Bootstrap{})
	return err
}

func (h hooks[Spec]) vms(ctx context.Context, id cmi.Identity) ([]*cmi.VM, error) {
	spec, err := h.spec()
	if err != nil {
		return nil, err
	}
	vms, err := h.backend.Find(ctx, id, spec)
	if err == nil && len(vms) == 0 {
		err = fmt.Errorf("there is no VM of %s", id)
	}
	return vms, err
}

// vanished waits for a back end whose Delete returns early.
func (h hooks[Spec]) vanished(ctx context.Context, id cmi.Identity) error {
	spec, err := h.spec()
	for deadline := time.Now().Add(vanishesWithin); err == nil; time.Sleep(10 * time.Millisecond) {
		var left []*cmi.VM
		if left, err = h.backend.Find(ctx, id, spec); err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the VM of %s has not vanished within %s", id, vanishesWithin)
		}
	}
	return err
}

func (h hooks[Spec]) spec() (Spec, error) {
	var spec Spec
	if defaulter, ok := any(&spec).(cmi.Defaulter); ok {
		defaulter.SetDefaults()
	}
	text, err := json.Marshal(h.suite.ProviderSpec)
	if err != nil {
		return spec, err
	}
	return spec, json.Unmarshal(text, &spec)
}

func (h hooks[Spec]) secrets() cmi.Secrets {
	secrets := cmi.Secrets{}
	for key, value := range maps.All(h.suite.Secrets) {
		secrets[key] = cmi.Secret(value)
	}
	return secrets
}
