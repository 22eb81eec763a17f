package main

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cmi "example.com/go-driver/gen/cmi/v1"
)

// machineServer serves the calls about machines. Those that are not here answer UNIMPLEMENTED: the generated type
// sees to that.
type machineServer struct {
	cmi.UnimplementedMachineServer
	cloud *cloud
}

// CreateMachine makes the VM, or adopts the one that an earlier call made.
func (s *machineServer) CreateMachine(
	ctx context.Context, request *cmi.CreateMachineRequest,
) (*cmi.CreateMachineResponse, error) {
	wanted, err := readKey(request.MachineName, request.ProviderSpec, "")
	if err != nil {
		return nil, err
	}
	if err := wanted.spec.checkSize(); err != nil {
		return nil, err
	}
	unlock, err := s.cloud.lock(wanted)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := s.cloud.find(ctx, wanted.cluster, wanted.machine)
	if err != nil {
		return nil, err
	}
	for _, vm := range found {
		switch {
		case vm.identity() != wanted.identity:
			return nil, status.Errorf(codes.AlreadyExists, "%s exists as %s and belongs to another machine", wanted, vm.ID)
		case vm.Locked:
			return nil, locked(vm)
		case !vm.Spec.equal(wanted.spec):
			return nil, status.Errorf(codes.AlreadyExists, "%s exists as %s and was made from another spec", wanted, vm.ID)
		}
		return &cmi.CreateMachineResponse{ProviderID: vm.ID, NodeName: vm.Machine}, nil
	}
	vm, err := s.cloud.create(ctx, wanted, request.Secrets["userData"])
	if err != nil {
		return nil, err
	}
	return &cmi.CreateMachineResponse{ProviderID: vm.ID, NodeName: vm.Machine}, nil
}

// DeleteMachine answers OK when nothing is left of the machine, be it that nothing was there.
func (s *machineServer) DeleteMachine(
	ctx context.Context, request *cmi.DeleteMachineRequest,
) (*cmi.DeleteMachineResponse, error) {
	meant, err := readKey(request.MachineName, request.ProviderSpec, request.ProviderID)
	if err != nil {
		return nil, err
	}
	unlock, err := s.cloud.lock(meant)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := s.meant(ctx, meant)
	if err != nil {
		return nil, err
	}
	for _, vm := range found {
		if vm.Locked {
			return nil, locked(vm)
		}
		if err := s.cloud.delete(ctx, vm); err != nil {
			return nil, err
		}
	}
	return &cmi.DeleteMachineResponse{}, nil
}

// GetMachineStatus reads the VM and changes nothing.
func (s *machineServer) GetMachineStatus(
	ctx context.Context, request *cmi.GetMachineStatusRequest,
) (*cmi.GetMachineStatusResponse, error) {
	vm, err := s.read(ctx, request.MachineName, request.ProviderSpec, request.ProviderID)
	if err != nil {
		return nil, err
	}
	return &cmi.GetMachineStatusResponse{ProviderID: vm.ID, NodeName: vm.Machine}, nil
}

// ListMachines lists the VMs of one cluster.
func (s *machineServer) ListMachines(
	ctx context.Context, request *cmi.ListMachinesRequest,
) (*cmi.ListMachinesResponse, error) {
	spec, err := readSpec(request.ProviderSpec, clusterTag)
	if err != nil {
		return nil, err
	}
	found, err := s.cloud.find(ctx, spec.Tags[clusterTag], "")
	if err != nil {
		return nil, err
	}
	response := &cmi.ListMachinesResponse{MachineList: make(map[string]string, len(found))}
	for _, vm := range found {
		response.MachineList[vm.ID] = vm.Machine
	}
	return response, nil
}

// ShutDownMachine stops the guest, which takes no time here.
func (s *machineServer) ShutDownMachine(
	ctx context.Context, request *cmi.ShutDownMachineRequest,
) (*cmi.ShutDownMachineResponse, error) {
	meant, err := readKey(request.MachineName, request.ProviderSpec, request.ProviderID)
	if err != nil {
		return nil, err
	}
	unlock, err := s.cloud.lock(meant)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vm, err := s.one(ctx, meant)
	if err != nil {
		return nil, err
	}
	if vm.Stopped {
		return &cmi.ShutDownMachineResponse{}, nil
	}
	return &cmi.ShutDownMachineResponse{}, s.cloud.stop(ctx, vm)
}

// read finds the one VM that a request of these fields means.
func (s *machineServer) read(ctx context.Context, name string, spec []byte, id string) (vm, error) {
	meant, err := readKey(name, spec, id)
	if err != nil {
		return vm{}, err
	}
	return s.one(ctx, meant)
}

// one finds the VM that is meant. NOT_FOUND is a promise: the back end said that there is none.
func (s *machineServer) one(ctx context.Context, meant key) (vm, error) {
	found, err := s.meant(ctx, meant)
	if err != nil {
		return vm{}, err
	}
	switch len(found) {
	case 0:
		return vm{}, status.Errorf(codes.NotFound, "there is no VM of %s", meant)
	case 1:
		if found[0].Locked {
			return vm{}, locked(found[0])
		}
		return found[0], nil
	default:
		ids := make([]string, len(found))
		for i, vm := range found {
			ids[i] = vm.ID
		}
		return vm{}, status.Errorf(codes.OutOfRange, "%s has several VMs: %s", meant, strings.Join(ids, ", "))
	}
}

// meant finds the VMs of a machine. One of another identity, or with another id than the request has, is not the
// one.
func (s *machineServer) meant(ctx context.Context, meant key) ([]vm, error) {
	all, err := s.cloud.find(ctx, meant.cluster, meant.machine)
	if err != nil {
		return nil, err
	}
	var found []vm
	for _, vm := range all {
		if vm.identity() == meant.identity && (meant.id == "" || meant.id == vm.ID) {
			found = append(found, vm)
		}
	}
	return found, nil
}

func locked(vm vm) error {
	return status.Errorf(codes.FailedPrecondition, "the VM %s is locked", vm.ID)
}
