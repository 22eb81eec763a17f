package cmi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"sync"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/cmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// The longest lengths of fields, in bytes.
const (
	maxID    = 512
	maxName  = 253
	maxState = 4 << 10
)

var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// driver serves a back end.
type driver[Spec any] struct {
	cmiv1.UnimplementedIdentityServer
	cmiv1.UnimplementedMachineServer
	capcmiv1.UnimplementedMachineExtensionServer

	info    Info
	backend Backend[Spec]
	specs   specs[Spec]
	running machineLocks
	lists   snapshots
}

func newDriver[Spec any](info Info, backend Backend[Spec]) (*driver[Spec], error) {
	specs, err := newSpecs[Spec]()
	if err != nil {
		return nil, err
	}
	made := &driver[Spec]{info: info, backend: backend, specs: specs}
	if _, hasZones := any(backend).(Zoner[Spec]); hasZones && !specs.has(zoneField) {
		return nil, fmt.Errorf("a back end with Zones needs a field with the JSON name %q in its provider spec", zoneField)
	}
	if len(specs.hot) > 0 && !made.updates() {
		return nil, fmt.Errorf("the provider spec has the hot field %s, and the back end has no Update", specs.hot[0])
	}
	return made, nil
}

func (d *driver[Spec]) updates() bool {
	_, updates := d.backend.(Updater[Spec])
	return updates
}

// machine is a checked request about one machine.
type machine[Spec any] struct {
	decoded[Spec]
	id         Identity
	providerID string
}

// request has the fields of every request about one machine.
type request struct {
	name       string
	spec       []byte
	providerID string
}

// machine checks a request with one of the functions that decode specs.
func (d *driver[Spec]) machine(
	ctx context.Context, request request, decode func([]byte) (decoded[Spec], error),
) (machine[Spec], error) {
	var read machine[Spec]
	if len(request.name) > maxName || !subdomain.MatchString(request.name) {
		return read, invalid("MachineName must be a DNS subdomain of 1 to %d bytes", maxName)
	}
	if len(request.providerID) > maxID {
		return read, invalid("ProviderID may have %d bytes, and has %d", maxID, len(request.providerID))
	}
	spec, err := decode(request.spec)
	if err != nil {
		return read, err
	}
	if err := requireTags(spec.tags, ownerTags(spec.tags)...); err != nil {
		return read, err
	}
	read = machine[Spec]{decoded: spec, providerID: request.providerID}
	read.id = Identity{
		Cluster: spec.tags[ClusterTag],
		Name:    request.name,
		Machine: spec.tags[MachineTag],
		Tags:    d.tagsFor(spec),
	}
	describeCall(ctx, read.id, read.providerID)
	return read, nil
}

// existing checks a request that must have a ProviderID.
func (d *driver[Spec]) existing(
	ctx context.Context, request request, decode func([]byte) (decoded[Spec], error),
) (machine[Spec], error) {
	if request.providerID == "" {
		return machine[Spec]{}, invalid("provider_id is required")
	}
	return d.machine(ctx, request, decode)
}

// ownerTags are the tags that a request must have. A request about an adopted VM may lack [MachineTag].
func ownerTags(tags map[string]string) []string {
	if _, has := tags[MachineTag]; !has {
		return []string{ClusterTag}
	}
	return []string{ClusterTag, MachineTag}
}

func (d *driver[Spec]) tagsFor(spec decoded[Spec]) map[string]string {
	if _, matches := d.backend.(Matcher[Spec]); matches {
		return maps.Clone(spec.tags)
	}
	return spec.withDigest()
}

// reach makes a call to the back end. Its errors have codes.
func reach[T any](ctx context.Context, call func() (T, error)) (T, error) {
	var none T
	faults.Active.Wait(ctx)
	err := injected()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return none, coded(ctx, err)
	}
	result, err := call()
	if err != nil {
		return none, coded(ctx, err)
	}
	return result, nil
}

func injected() error {
	switch faulty := faults.Active; {
	case faulty.Has(faults.Unavailable):
		return Unavailable("the back end cannot be reached")
	case faulty.Has(faults.Unknown):
		return errors.New("an injected fault")
	case faulty.Has(faults.Internal):
		return Internal("the back end contradicts itself")
	}
	return nil
}

// change changes an existing VM. A VM that no longer exists is NOT_FOUND.
func (d *driver[Spec]) change(ctx context.Context, id Identity, vm *VM, call func() error) error {
	if err := unlocked(vm); err != nil {
		return err
	}
	_, err := reach(ctx, func() (struct{}, error) { return struct{}{}, call() })
	switch {
	case errors.Is(err, ErrGone):
		return notFound(id)
	case err != nil:
		return err
	}
	return faults.Active.Changed()
}

func unlocked(vm *VM) error {
	if vm.Locked != "" {
		return Forbidden("the VM %s is locked: %s", vm.ID, vm.Locked)
	}
	return nil
}

// namesakes returns the VMs with the cluster and the name of a machine, whoever owns them.
func (d *driver[Spec]) namesakes(ctx context.Context, m machine[Spec]) ([]*VM, error) {
	all, err := reach(ctx, func() ([]*VM, error) { return d.backend.Find(ctx, m.id, m.spec) })
	if err != nil {
		return nil, err
	}
	var found []*VM
	for _, vm := range all {
		if vm.Tags[ClusterTag] != m.id.Cluster || vm.Name != m.id.Name {
			continue
		}
		if err := vm.check(); err != nil {
			return nil, err
		}
		if faults.Active.Locked(m.id.Cluster, m.id.Name) {
			vm.Locked = "an injected fault"
		}
		found = append(found, vm)
	}
	return found, nil
}

// owned returns the VMs that a request means.
func (d *driver[Spec]) owned(ctx context.Context, m machine[Spec]) ([]*VM, error) {
	all, err := d.namesakes(ctx, m)
	if err != nil {
		return nil, err
	}
	var found []*VM
	for _, vm := range all {
		if m.owns(vm) {
			found = append(found, vm)
		}
	}
	return found, nil
}

// owns says whether a VM of the same name belongs to the machine. A machine that was adopted without [MachineTag] is known
// by its ProviderID, whatever tag its VM has.
func (m machine[Spec]) owns(vm *VM) bool {
	if m.providerID != "" && m.providerID != vm.ID {
		return false
	}
	return vm.Tags[MachineTag] == m.id.Machine || m.id.Machine == "" && m.providerID != ""
}

// one returns the VM that a request means. NOT_FOUND is a promise: the back end confirmed that no VM exists.
func (d *driver[Spec]) one(ctx context.Context, m machine[Spec]) (*VM, error) {
	found, err := d.owned(ctx, m)
	if err != nil {
		return nil, err
	}
	switch len(found) {
	case 0:
		return nil, notFound(m.id)
	case 1:
		return found[0], unlocked(found[0])
	default:
		return nil, OutOfRange("/"+tagsField, "%s has several VMs: %s", m.id, ids(found))
	}
}

// lock keeps other changing calls for the machine away.
func (d *driver[Spec]) lock(ctx context.Context, id Identity) (unlock func(), err error) {
	release, err := d.running.lock(id)
	if err != nil {
		return nil, err
	}
	locker, shared := d.backend.(Locker)
	if !shared {
		return release, nil
	}
	end, err := locker.Lock(ctx, id)
	if err != nil {
		release()
		return nil, coded(ctx, err)
	}
	return func() { end(); release() }, nil
}

// machineLocks are the machines with a running call.
type machineLocks struct {
	mutex sync.Mutex
	held  map[[2]string]bool
}

func (l *machineLocks) lock(id Identity) (unlock func(), err error) {
	key := [2]string{id.Cluster, id.Name}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.held[key] {
		return nil, Busy("another call for %s is running", id)
	}
	if l.held == nil {
		l.held = map[[2]string]bool{}
	}
	l.held[key] = true
	return func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		delete(l.held, key)
	}, nil
}
