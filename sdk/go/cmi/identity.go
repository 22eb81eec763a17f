package cmi

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/cmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// GetPluginInfo returns the driver's name and version.
func (d *driver[Spec]) GetPluginInfo(
	context.Context, *cmiv1.GetPluginInfoRequest,
) (*cmiv1.GetPluginInfoResponse, error) {
	return &cmiv1.GetPluginInfoResponse{Name: d.info.Name, Version: d.info.Version, Manifest: d.info.Manifest}, nil
}

// GetPluginCapabilities declares the calls whose interfaces the back end implements.
func (d *driver[Spec]) GetPluginCapabilities(
	context.Context, *cmiv1.GetPluginCapabilitiesRequest,
) (*cmiv1.GetPluginCapabilitiesResponse, error) {
	calls := []cmiv1.PluginCapability_RPC_Type{
		cmiv1.PluginCapability_RPC_CREATE_MACHINE,
		cmiv1.PluginCapability_RPC_DELETE_MACHINE,
		cmiv1.PluginCapability_RPC_GET_MACHINE_STATUS,
		cmiv1.PluginCapability_RPC_LIST_MACHINES,
	}
	if implements[Stopper](d.backend) {
		calls = append(calls, cmiv1.PluginCapability_RPC_SHUTDOWN_MACHINE)
	}
	if implements[VolumeFinder](d.backend) {
		calls = append(calls, cmiv1.PluginCapability_RPC_GET_VOLUME_IDS)
	}
	response := &cmiv1.GetPluginCapabilitiesResponse{}
	for _, call := range calls {
		rpc := &cmiv1.PluginCapability_Rpc{Rpc: &cmiv1.PluginCapability_RPC{Type: call}}
		response.Capabilities = append(response.Capabilities, &cmiv1.PluginCapability{Type: rpc})
	}
	return response, nil
}

// Probe says whether the driver can serve. Without a [Prober] it can: a back end that is away is UNAVAILABLE in each call.
func (d *driver[Spec]) Probe(ctx context.Context, _ *cmiv1.ProbeRequest) (*cmiv1.ProbeResponse, error) {
	switch err := d.probe(ctx); {
	case errors.Is(err, ErrStarting):
		return &cmiv1.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	case err != nil:
		return nil, unhealthy(err)
	}
	return &cmiv1.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver[Spec]) probe(ctx context.Context) error {
	switch faulty := faults.Active; {
	case faulty.Has(faults.Unhealthy):
		return Forbidden("the driver lacks something that it needs")
	case faulty.Has(faults.Starting):
		return ErrStarting
	}
	if prober, ok := d.backend.(Prober); ok {
		return prober.Probe(ctx)
	}
	return nil
}

// unhealthy has the one code that Probe may answer. Every namespace sees its message.
func unhealthy(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return Forbidden("%s", known.message).Because(known.cause)
	}
	return Forbidden("the driver cannot serve; its log has the reason").Because(err)
}
