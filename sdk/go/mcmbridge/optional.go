package mcmbridge

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	grpccodes "google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// VolumeID returns the driver's id of a volume.
func (b *bridge) VolumeID(ctx context.Context, volume cmi.PersistentVolume) (string, error) {
	spec := &corev1.PersistentVolumeSpec{}
	if err := json.Unmarshal(volume.Spec, spec); err != nil {
		return "", cmi.WithCode(grpccodes.InvalidArgument, "PVSpecList has a malformed PersistentVolumeSpec").Because(err)
	}
	response, err := b.driver.GetVolumeIDs(ctx, &driver.GetVolumeIDsRequest{PVSpecs: []*corev1.PersistentVolumeSpec{spec}})
	switch {
	case err != nil:
		return "", failure("GetVolumeIDs", err)
	case response == nil || len(response.VolumeIDs) == 0:
		return "", nil
	case len(response.VolumeIDs) > 1:
		return "", cmi.Internal("the driver returned %d ids for one volume", len(response.VolumeIDs))
	}
	return response.VolumeIDs[0], nil
}

// migrator is a driver with the method that MCM had in its interface before v0.49.
type migrator interface {
	GenerateMachineClassForMigration(
		context.Context, *driver.GenerateMachineClassForMigrationRequest,
	) (*driver.GenerateMachineClassForMigrationResponse, error)
}

// Migrate lets the driver fill a class.
func (b *bridge) Migrate(
	ctx context.Context, from cmi.ProviderClass, class json.RawMessage,
) (json.RawMessage, error) {
	old, filled := map[string]any{}, &v1alpha1.MachineClass{}
	if err := json.Unmarshal(from.Object, &old); err != nil {
		return nil, cmi.Internal("the %s is not a JSON object", from.Kind).Because(err)
	}
	if err := json.Unmarshal(class, filled); err != nil {
		return nil, cmi.Internal("the class to fill is not a MachineClass").Because(err)
	}
	_, err := b.driver.(migrator).GenerateMachineClassForMigration(ctx, &driver.GenerateMachineClassForMigrationRequest{
		ProviderSpecificMachineClass: &unstructured.Unstructured{Object: old},
		MachineClass:                 filled,
		ClassSpec:                    &v1alpha1.ClassSpec{APIGroup: from.APIGroup, Kind: from.Kind, Name: filled.Name},
	})
	if err != nil {
		return nil, failure("GenerateMachineClassForMigration", err)
	}
	return merged(class, filled)
}

// merged keeps the metadata of the class, byte for byte, and adds the fields that the driver has set.
func merged(class json.RawMessage, filled *v1alpha1.MachineClass) (json.RawMessage, error) {
	text, err := json.Marshal(filled)
	if err != nil {
		return nil, cmi.Internal("cannot encode the class that the driver filled").Because(err)
	}
	var before, after map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(class, &before), json.Unmarshal(text, &after)); err != nil {
		return nil, cmi.Internal("cannot read a MachineClass").Because(err)
	}
	for name, value := range after {
		if name != "metadata" && string(value) != "null" {
			before[name] = value
		}
	}
	return json.Marshal(before)
}
