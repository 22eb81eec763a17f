package main

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	capcmi "example.com/go-driver/gen/capcmi/v1"
	cmi "example.com/go-driver/gen/cmi/v1"
)

// identityServer says what the driver is, and what it can do.
type identityServer struct {
	cmi.UnimplementedIdentityServer
	cloud *cloud
}

func (s *identityServer) GetPluginInfo(context.Context, *cmi.GetPluginInfoRequest) (*cmi.GetPluginInfoResponse, error) {
	return &cmi.GetPluginInfoResponse{Name: "go-driver.example.com", Version: "0.1.0"}, nil
}

func (s *identityServer) GetPluginCapabilities(
	context.Context, *cmi.GetPluginCapabilitiesRequest,
) (*cmi.GetPluginCapabilitiesResponse, error) {
	response := &cmi.GetPluginCapabilitiesResponse{}
	for _, call := range []cmi.PluginCapability_RPC_Type{
		cmi.PluginCapability_RPC_CREATE_MACHINE,
		cmi.PluginCapability_RPC_DELETE_MACHINE,
		cmi.PluginCapability_RPC_GET_MACHINE_STATUS,
		cmi.PluginCapability_RPC_LIST_MACHINES,
		cmi.PluginCapability_RPC_SHUTDOWN_MACHINE,
	} {
		rpc := &cmi.PluginCapability_Rpc{Rpc: &cmi.PluginCapability_RPC{Type: call}}
		response.Capabilities = append(response.Capabilities, &cmi.PluginCapability{Type: rpc})
	}
	return response, nil
}

// Probe says whether the driver can serve. It asks the driver and not the back end: a back end that is away is
// UNAVAILABLE in each call.
func (s *identityServer) Probe(context.Context, *cmi.ProbeRequest) (*cmi.ProbeResponse, error) {
	if s.cloud.has(faultUnhealthy) {
		return nil, status.Error(codes.FailedPrecondition, "the driver lacks something that it needs")
	}
	return &cmi.ProbeResponse{Ready: wrapperspb.Bool(!s.cloud.has(faultStarting))}, nil
}

// extensionServer serves what cmi.v1 lacks.
type extensionServer struct {
	capcmi.UnimplementedMachineExtensionServer
	machines *machineServer
}

func (s *extensionServer) GetExtensionCapabilities(
	context.Context, *capcmi.GetExtensionCapabilitiesRequest,
) (*capcmi.GetExtensionCapabilitiesResponse, error) {
	return &capcmi.GetExtensionCapabilitiesResponse{
		Calls: []capcmi.GetExtensionCapabilitiesResponse_Call{capcmi.GetExtensionCapabilitiesResponse_GET_MACHINE},
	}, nil
}

// GetMachine is GetMachineStatus with the power state, by which the provider sees that a guest has stopped.
func (s *extensionServer) GetMachine(ctx context.Context, request *capcmi.GetMachineRequest) (*capcmi.Machine, error) {
	found, err := s.machines.read(ctx, request.MachineName, request.ProviderSpec, request.ProviderId)
	if err != nil {
		return nil, err
	}
	state := capcmi.PowerState_RUNNING
	if found.Stopped {
		state = capcmi.PowerState_STOPPED
	}
	return &capcmi.Machine{ProviderId: found.ID, NodeName: found.Machine, PowerState: state}, nil
}
