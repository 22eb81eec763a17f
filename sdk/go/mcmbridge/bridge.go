package mcmbridge

import (
	"context"
	"errors"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// known is the value in cmi.VM.Native.
type known struct {
	id   cmi.Identity
	spec cmi.OpenSpec
	// role is a tag of the VM. The driver finds the VM by it.
	role role
}

// Find returns the VMs of a machine. Without any, it returns the VMs of the same name in the cluster.
func (b *bridge) Find(ctx context.Context, id cmi.Identity, spec cmi.OpenSpec) ([]*cmi.VM, error) {
	if err := b.form.check(id); err != nil {
		return nil, err
	}
	if id.Machine != "" {
		own, err := b.described(ctx, known{id, spec, machineRole(id)}, id.Machine)
		if err != nil || len(own) > 0 {
			return own, err
		}
	}
	namesake := known{id, spec, everyMachine}
	switch _, code, err := b.status(ctx, namesake); code {
	case codes.NotFound:
		return nil, nil
	case codes.OK, codes.Uninitialized, codes.Unimplemented, codes.OutOfRange:
	default:
		return nil, err
	}
	if id.Machine != "" {
		return b.listed(ctx, namesake, "")
	}
	return b.described(ctx, namesake, "")
}

// listed returns the VMs of a cluster and a role with the name of a machine.
func (b *bridge) listed(ctx context.Context, of known, owner string) ([]*cmi.VM, error) {
	list, err := b.list(ctx, of.id.Cluster, of.spec, of.role)
	if err != nil {
		return nil, err
	}
	var vms []*cmi.VM
	for providerID, name := range list {
		if name == of.id.Name {
			vms = append(vms, vmOf(of, owner, providerID))
		}
	}
	return vms, nil
}

func vmOf(of known, owner, providerID string) *cmi.VM {
	tags := map[string]string{cmi.ClusterTag: of.id.Cluster}
	if owner != "" {
		tags[cmi.MachineTag] = owner
	}
	return &cmi.VM{ID: providerID, Name: of.id.Name, Tags: tags, Native: of}
}

func (b *bridge) list(
	ctx context.Context, cluster string, spec cmi.OpenSpec, role role,
) (map[string]string, error) {
	class, err := b.class(spec, b.form.filter(cluster, role))
	if err != nil {
		return nil, err
	}
	response, err := b.driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class, Secret: secret(ctx, nil)})
	switch {
	case err != nil:
		return nil, failure("ListMachines", err)
	case response == nil:
		return nil, cmi.Internal("the driver returned neither a list nor an error from ListMachines")
	}
	return response.MachineList, nil
}

// described adds what GetMachineStatus knows to the VMs of a list, and drops entries that are no VMs.
func (b *bridge) described(ctx context.Context, of known, owner string) ([]*cmi.VM, error) {
	vms, err := b.listed(ctx, of, owner)
	if err != nil || len(vms) != 1 {
		return vms, err
	}
	isThere, err := b.describe(ctx, of, vms[0])
	if err != nil || !isThere {
		return nil, err
	}
	return vms, nil
}

func (b *bridge) describe(ctx context.Context, of known, vm *cmi.VM) (isThere bool, err error) {
	response, code, err := b.status(ctx, of)
	switch code {
	case codes.NotFound:
		return false, nil
	case codes.Unimplemented:
		return true, nil
	case codes.Uninitialized:
		vm.Uninitialized = messageOf(err)
	case codes.OK:
	default:
		return false, err
	}
	if response == nil {
		return true, nil
	}
	if response.ProviderID != vm.ID {
		return false, cmi.Internal("ListMachines names the VM %s of %s, and GetMachineStatus %s", vm.ID, of.id, response.ProviderID)
	}
	vm.NodeName, vm.Addresses = response.NodeName, addresses(response.Addresses)
	return true, nil
}

// status looks for a VM by its name: drivers compare no tags where they look by an id. Code 17 leaves the error of the
// driver unchanged.
func (b *bridge) status(ctx context.Context, of known) (*driver.GetMachineStatusResponse, codes.Code, error) {
	class, err := b.class(of.spec, b.form.filter(of.id.Cluster, of.role))
	if err != nil {
		return nil, codes.Internal, err
	}
	response, err := b.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{
		Machine: machine(ctx, of.id, ""), MachineClass: class, Secret: secret(ctx, nil),
	})
	code := codeOf(err)
	if err != nil && code != codes.Uninitialized {
		err = failure("GetMachineStatus", err)
	}
	return response, code, err
}

// Create makes a VM. The caller has it initialized.
func (b *bridge) Create(
	ctx context.Context, id cmi.Identity, spec cmi.OpenSpec, boot cmi.Bootstrap,
) (*cmi.VM, error) {
	if err := b.nameIsFree(ctx, id, spec); err != nil {
		return nil, err
	}
	tags, err := b.form.all(id, spec)
	if err != nil {
		return nil, err
	}
	class, err := b.class(spec, tags)
	if err != nil {
		return nil, err
	}
	response, err := b.driver.CreateMachine(ctx, &driver.CreateMachineRequest{
		Machine: machine(ctx, id, ""), MachineClass: class, Secret: secret(ctx, boot.UserData),
	})
	if err != nil {
		err = failure("CreateMachine", err)
		if response != nil {
			err = withState(err, response.LastKnownState)
		}
		return nil, err
	}
	if response == nil {
		return nil, cmi.Internal("the driver returned neither a VM nor an error from CreateMachine")
	}
	vm := vmOf(known{id, spec, machineRole(id)}, id.Machine, response.ProviderID)
	if id.Machine == "" {
		vm.Native = known{id, spec, everyMachine}
	}
	vm.NodeName, vm.Addresses = response.NodeName, addresses(response.Addresses)
	vm.State = []byte(response.LastKnownState)
	return vm, nil
}

// nameIsFree refuses a name whose VM the driver sees and does not list for the cluster.
func (b *bridge) nameIsFree(ctx context.Context, id cmi.Identity, spec cmi.OpenSpec) error {
	_, code, err := b.status(ctx, known{id, spec, everyMachine})
	switch code {
	case codes.NotFound, codes.Unimplemented:
		return nil
	case codes.OK, codes.Uninitialized, codes.OutOfRange:
	default:
		return err
	}
	if b.window > 0 {
		return cmi.Busy("a VM has the name of %s and is not in its list: the list is outdated, or another cluster has the VM", id)
	}
	return cmi.Taken("a VM of another cluster has the name of %s", id)
}

// Rechecks marks a driver whose GetMachineStatus need not know whether a VM is initialized.
func (b *bridge) Rechecks() {}

// Initialize does the missing steps of a VM.
func (b *bridge) Initialize(ctx context.Context, vm *cmi.VM, _ cmi.OpenSpec) error {
	of := vm.Native.(known)
	class, err := b.class(of.spec, b.form.filter(of.id.Cluster, of.role))
	if err != nil {
		return err
	}
	response, err := b.driver.InitializeMachine(ctx, &driver.InitializeMachineRequest{
		Machine: machine(ctx, of.id, vm.ID), MachineClass: class, Secret: secret(ctx, nil),
	})
	switch code := codeOf(err); {
	case code == codes.OK && response != nil:
		vm.NodeName, vm.Addresses = response.NodeName, addresses(response.Addresses)
		return nil
	case code == codes.OK, code == codes.Unimplemented && vm.Uninitialized == "":
		return nil
	case code == codes.NotFound:
		return cmi.ErrGone
	case code == codes.Uninitialized:
		return cmi.Uninitialized("%s", messageOf(err))
	default:
		return failure("InitializeMachine", err)
	}
}

// Match asks the driver whether the VM has the tag of its spec.
func (b *bridge) Match(ctx context.Context, vm *cmi.VM, spec cmi.OpenSpec) (string, error) {
	of := vm.Native.(known)
	if of.role == everyMachine {
		return "", nil // an adopted VM has no such tag
	}
	bySpec, err := specRole(of.id, spec)
	if err != nil {
		return "", err
	}
	list, err := b.list(ctx, of.id.Cluster, spec, bySpec)
	if err != nil {
		return "", err
	}
	if _, isListed := list[vm.ID]; !isListed {
		return "it was made from another one", nil
	}
	return "", nil
}

// Delete deletes a VM by its id.
func (b *bridge) Delete(ctx context.Context, vm *cmi.VM) error {
	of := vm.Native.(known)
	class, err := b.class(of.spec, b.form.filter(of.id.Cluster, of.role))
	if err != nil {
		return err
	}
	response, err := b.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{
		Machine: machine(ctx, of.id, vm.ID), MachineClass: class, Secret: secret(ctx, nil),
	})
	if response != nil && response.LastKnownState != "" {
		vm.State = []byte(response.LastKnownState)
	}
	switch codeOf(err) {
	case codes.OK:
		return nil
	case codes.NotFound:
		return cmi.ErrGone
	default:
		return withState(failure("DeleteMachine", err), string(vm.State))
	}
}

// Clean deletes the other entries of the machine's list. Some drivers list disks and network interfaces as machines.
func (b *bridge) Clean(ctx context.Context, id cmi.Identity, spec cmi.OpenSpec) error {
	if id.Machine == "" {
		return nil
	}
	left, err := b.listed(ctx, known{id, spec, machineRole(id)}, id.Machine)
	if err != nil {
		return err
	}
	for _, part := range left {
		if err := b.Delete(ctx, part); err != nil && !errors.Is(err, cmi.ErrGone) {
			return err
		}
	}
	return nil
}

// List returns the VMs of a cluster, without their owners.
func (b *bridge) List(ctx context.Context, cluster string, spec cmi.OpenSpec) ([]*cmi.VM, error) {
	list, err := b.list(ctx, cluster, spec, everyMachine)
	if err != nil {
		return nil, err
	}
	vms := make([]*cmi.VM, 0, len(list))
	for providerID, name := range list {
		id := cmi.Identity{Cluster: cluster, Name: name}
		vms = append(vms, vmOf(known{id, spec, everyMachine}, "", providerID))
	}
	return vms, nil
}
