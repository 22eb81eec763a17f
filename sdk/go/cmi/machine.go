package cmi

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/cmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// CreateMachine creates the VM, or adopts it after an earlier call.
func (d *driver[Spec]) CreateMachine(
	ctx context.Context, r *cmiv1.CreateMachineRequest,
) (*cmiv1.CreateMachineResponse, error) {
	m, err := d.machine(ctx, request{r.MachineName, r.ProviderSpec, ""}, d.specs.decodeNew)
	if err != nil {
		return nil, beganNothing(ctx, err)
	}
	unlock, err := d.lock(ctx, m.id)
	if err != nil {
		return nil, beganNothing(ctx, err)
	}
	defer unlock()
	vm, err := d.adopt(ctx, m)
	if err != nil {
		return nil, beganNothing(ctx, err)
	}
	if vm == nil {
		boot := Bootstrap{UserData: r.Secrets[userDataKey], Format: string(r.Secrets[userDataFormatKey])}
		if vm, err = d.create(ctx, m, boot); err != nil {
			return nil, err
		}
	}
	if vm.Uninitialized != "" {
		return nil, uninitialized(vm)
	}
	beside(ctx, vm)
	return &cmiv1.CreateMachineResponse{ProviderID: vm.ID, NodeName: vm.nodeName(), LastKnownState: vm.State}, nil
}

// adopt returns the VM that the machine already has, or nil.
func (d *driver[Spec]) adopt(ctx context.Context, m machine[Spec]) (*VM, error) {
	found, err := d.namesakes(ctx, m)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	for _, vm := range found {
		if !m.owns(vm) {
			return nil, Taken("%s exists as %s and belongs to another machine object", m.id, vm.ID)
		}
	}
	if len(found) > 1 {
		return nil, Forbidden("%s has several VMs: %s", m.id, ids(found))
	}
	vm := found[0]
	if err := unlocked(vm); err != nil {
		return nil, err
	}
	difference, err := d.difference(ctx, m, vm)
	if err != nil {
		return nil, err
	}
	if difference != "" {
		return nil, Taken("%s exists as %s and does not fit the ProviderSpec: %s", m.id, vm.ID, difference)
	}
	return vm, nil
}

func (d *driver[Spec]) difference(ctx context.Context, m machine[Spec], vm *VM) (string, error) {
	if matcher, ok := d.backend.(Matcher[Spec]); ok {
		return reach(ctx, func() (string, error) { return matcher.Match(ctx, vm, m.spec) })
	}
	// A VM that was made by hand has no digest.
	if digest, has := vm.Tags[SpecTag]; has && digest != m.digest {
		return "it was made from another one", nil
	}
	return "", nil
}

func (d *driver[Spec]) create(ctx context.Context, m machine[Spec], boot Bootstrap) (*VM, error) {
	if faults.Active.Has(faults.Exhaust) {
		return nil, Exhausted("the back end has no room for another VM")
	}
	vm, err := reach(ctx, func() (*VM, error) { return d.backend.Create(ctx, m.id, m.spec, boot) })
	if err != nil {
		return nil, err
	}
	if vm == nil {
		return nil, Internal("the driver returned neither a VM nor an error from Create")
	}
	if err := faults.Active.Changed(); err != nil {
		return nil, err
	}
	if faults.Active.Take(faults.LoseCreate) {
		return nil, Unavailable("the answer of the back end was lost")
	}
	if vm.Name == "" {
		vm.Name = m.id.Name
	}
	return vm, vm.check()
}

// beganNothing marks an error before any work: no VM will result from this call.
func beganNothing(ctx context.Context, err error) error {
	marked := *coded(ctx, err)
	return marked.NothingBegun()
}

func uninitialized(vm *VM) error {
	e := Uninitialized("the VM %s is not initialized: %s", vm.ID, vm.Uninitialized)
	e.vm = vm
	return e
}

// DeleteMachine deletes all VMs of the machine. It answers OK when nothing is left.
func (d *driver[Spec]) DeleteMachine(
	ctx context.Context, r *cmiv1.DeleteMachineRequest,
) (*cmiv1.DeleteMachineResponse, error) {
	m, err := d.machine(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderID}, d.specs.decode)
	if err != nil {
		return nil, err
	}
	unlock, err := d.lock(ctx, m.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	state, err := d.deleteAll(ctx, m)
	if err != nil {
		return nil, err
	}
	if cleaner, ok := d.backend.(Cleaner[Spec]); ok {
		_, err = reach(ctx, func() (struct{}, error) { return struct{}{}, cleaner.Clean(ctx, m.id, m.spec) })
	}
	return &cmiv1.DeleteMachineResponse{LastKnownState: state}, err
}

// deleteAll returns the state of the last VM.
func (d *driver[Spec]) deleteAll(ctx context.Context, m machine[Spec]) (state []byte, err error) {
	found, err := d.owned(ctx, m)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	for _, vm := range found {
		if err := d.delete(ctx, m, vm); err != nil {
			return nil, err
		}
		if err := vm.check(); err != nil {
			return nil, err
		}
		state = vm.State
	}
	left, err := d.owned(ctx, m)
	if err == nil && len(left) > 0 {
		err = Busy("%s is still being deleted: %s", m.id, ids(left)).WithState(state)
	}
	return state, err
}

func (d *driver[Spec]) delete(ctx context.Context, m machine[Spec], vm *VM) error {
	err := d.change(ctx, m.id, vm, func() error {
		if err := d.backend.Delete(ctx, vm); !errors.Is(err, ErrGone) {
			return err
		}
		return nil
	})
	if err == nil && faults.Active.Take(faults.LoseDelete) {
		return Unavailable("the answer of the back end was lost")
	}
	return err
}

// GetMachineStatus reads the VM and changes nothing.
func (d *driver[Spec]) GetMachineStatus(
	ctx context.Context, r *cmiv1.GetMachineStatusRequest,
) (*cmiv1.GetMachineStatusResponse, error) {
	vm, err := d.look(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderID})
	if err != nil {
		return nil, err
	}
	beside(ctx, vm)
	return &cmiv1.GetMachineStatusResponse{ProviderID: vm.ID, NodeName: vm.nodeName()}, nil
}

// look returns the VM of a request, or an error with it while it is not initialized.
func (d *driver[Spec]) look(ctx context.Context, r request) (*VM, error) {
	m, err := d.machine(ctx, r, d.specs.decode)
	if err != nil {
		return nil, err
	}
	vm, err := d.one(ctx, m)
	if err == nil && vm.Uninitialized != "" {
		return nil, uninitialized(vm)
	}
	return vm, err
}

// ListMachines lists the VMs of one cluster.
func (d *driver[Spec]) ListMachines(
	ctx context.Context, r *cmiv1.ListMachinesRequest,
) (*cmiv1.ListMachinesResponse, error) {
	vms, err := d.list(ctx, r.ProviderSpec)
	if err != nil {
		return nil, err
	}
	response := &cmiv1.ListMachinesResponse{MachineList: make(map[string]string, len(vms))}
	for _, vm := range vms {
		response.MachineList[vm.ID] = vm.Name
	}
	return response, nil
}

func (d *driver[Spec]) list(ctx context.Context, text []byte) ([]*VM, error) {
	read, err := d.specs.decode(text)
	if err != nil {
		return nil, err
	}
	if err := requireTags(read.tags, ClusterTag); err != nil {
		return nil, err
	}
	cluster := read.tags[ClusterTag]
	all, err := reach(ctx, func() ([]*VM, error) { return d.backend.List(ctx, cluster, read.spec) })
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(vm *VM) bool { return vm.Tags[ClusterTag] != cluster }), nil
}

// ShutDownMachine asks the guest to stop.
func (d *driver[Spec]) ShutDownMachine(
	ctx context.Context, r *cmiv1.ShutDownMachineRequest,
) (*cmiv1.ShutDownMachineResponse, error) {
	stopper, ok := d.backend.(Stopper)
	if !ok {
		return d.UnimplementedMachineServer.ShutDownMachine(ctx, r)
	}
	m, err := d.machine(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderID}, d.specs.decode)
	if err != nil {
		return nil, err
	}
	unlock, err := d.lock(ctx, m.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vm, err := d.one(ctx, m)
	if err != nil || vm.Power == Stopped {
		return &cmiv1.ShutDownMachineResponse{}, err
	}
	err = d.change(ctx, m.id, vm, func() error { return stopper.Stop(ctx, vm) })
	return &cmiv1.ShutDownMachineResponse{}, err
}

// GetVolumeIDs returns the ids of the back end's volumes, in their order.
func (d *driver[Spec]) GetVolumeIDs(
	ctx context.Context, r *cmiv1.GetVolumeIDsRequest,
) (*cmiv1.GetVolumeIDsResponse, error) {
	finder, ok := d.backend.(VolumeFinder)
	if !ok {
		return d.UnimplementedMachineServer.GetVolumeIDs(ctx, r)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(r.PVSpecList, &list); err != nil || list == nil {
		return nil, invalid("PVSpecList is not a JSON array of PersistentVolumeSpecs")
	}
	response := &cmiv1.GetVolumeIDsResponse{}
	for position, text := range list {
		volume, err := persistentVolume(position, text)
		if err != nil {
			return nil, err
		}
		id, err := reach(ctx, func() (string, error) { return finder.VolumeID(ctx, volume) })
		if err != nil {
			return nil, err
		}
		if id != "" {
			response.VolumeIDs = append(response.VolumeIDs, id)
		}
	}
	return response, nil
}

func persistentVolume(position int, text json.RawMessage) (PersistentVolume, error) {
	var fields *struct {
		CSI struct {
			Driver       string `json:"driver"`
			VolumeHandle string `json:"volumeHandle"`
		} `json:"csi"`
	}
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return PersistentVolume{}, invalid("PVSpecList /%d is not a PersistentVolumeSpec", position)
	}
	return PersistentVolume{Driver: fields.CSI.Driver, Handle: fields.CSI.VolumeHandle, Spec: text}, nil
}
