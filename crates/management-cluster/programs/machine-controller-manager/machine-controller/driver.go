package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"
)

// cmiDriver makes each call of machine-controller-manager the call of the same name of CMI.
type cmiDriver struct {
	connection *grpc.ClientConn
}

func (d *cmiDriver) CreateMachine(ctx context.Context, r *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	var request message
	request.text(1, r.Machine.Name)
	request.class(2, r.MachineClass, r.Secret)
	request.text(4, r.Machine.Status.LastKnownState)
	answer, err := d.call(ctx, "CreateMachine", request)
	if err != nil {
		return nil, err
	}
	return &driver.CreateMachineResponse{
		ProviderID: answer.text(1), NodeName: answer.text(2), LastKnownState: answer.text(3),
	}, nil
}

func (d *cmiDriver) DeleteMachine(ctx context.Context, r *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	var request message
	request.text(1, r.Machine.Name)
	request.class(2, r.MachineClass, r.Secret)
	request.text(4, r.Machine.Spec.ProviderID)
	request.text(5, r.Machine.Status.LastKnownState)
	answer, err := d.call(ctx, "DeleteMachine", request)
	if err != nil {
		return nil, err
	}
	return &driver.DeleteMachineResponse{LastKnownState: answer.text(1)}, nil
}

func (d *cmiDriver) GetMachineStatus(ctx context.Context, r *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	var request message
	request.text(1, r.Machine.Name)
	request.class(2, r.MachineClass, r.Secret)
	request.text(4, r.Machine.Spec.ProviderID)
	answer, err := d.call(ctx, "GetMachineStatus", request)
	if err != nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{ProviderID: answer.text(1), NodeName: answer.text(2)}, nil
}

func (d *cmiDriver) ListMachines(ctx context.Context, r *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	var request message
	request.class(1, r.MachineClass, r.Secret)
	answer, err := d.call(ctx, "ListMachines", request)
	if err != nil {
		return nil, err
	}
	machines, err := answer.texts(1)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}

// InitializeMachine is no call of CMI; a driver without it leaves a VM as it is.
func (d *cmiDriver) InitializeMachine(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return nil, status.Error(codes.Unimplemented, "CMI has no InitializeMachine")
}

// GetVolumeIDs is asked when a Node is drained of pods with volumes, and there are no pods here.
func (d *cmiDriver) GetVolumeIDs(context.Context, *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return nil, status.Error(codes.Unimplemented, "GetVolumeIDs is not passed on")
}

func (d *cmiDriver) call(ctx context.Context, method string, request message) (fields, error) {
	answer := message{}
	err := d.connection.Invoke(ctx, "/cmi.v1.Machine/"+method, &request, &answer, grpc.ForceCodecV2(encoded{}))
	if err != nil {
		failed := grpcstatus.Convert(err)
		// The codes of machine-controller-manager are gRPC's.
		return nil, status.Error(codes.Code(failed.Code()), failed.Message())
	}
	read, err := answer.fields()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return read, nil
}

// class writes provider spec and secrets, which stand beside each other in every request.
func (m *message) class(number int, class *v1alpha1.MachineClass, secret *corev1.Secret) {
	m.bytes(number, class.ProviderSpec.Raw)
	for key, value := range secret.Data {
		var entry message
		entry.text(1, key)
		entry.bytes(2, value)
		m.bytes(number+1, entry.raw)
	}
}
