package main

import (
	"context"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// recommended asks Storage DRS for a datastore of the datastore cluster.
func recommended(
	ctx context.Context, client *vim25.Client, name string, to target, clone types.VirtualMachineCloneSpec,
) (*types.ManagedObjectReference, error) {
	result, err := object.NewStorageResourceManager(client).RecommendDatastores(ctx, types.StoragePlacementSpec{
		Type:      string(types.StoragePlacementSpecPlacementTypeClone),
		Vm:        to.template,
		CloneName: name,
		CloneSpec: &clone,
		Folder:    &to.folder,
		PodSelectionSpec: types.StorageDrsPodSelectionSpec{
			StoragePod:      to.datastoreCluster,
			InitialVmConfig: []types.VmPodConfigForPlacement{{StoragePod: *to.datastoreCluster}},
		},
	})
	if is[*types.InvalidArgument](err) {
		return nil, cmi.Forbidden("Storage DRS makes no recommendations for the datastore cluster %s: turn it on",
			to.DatastoreCluster).Because(err)
	}
	if err != nil {
		return nil, err
	}
	for _, recommendation := range result.Recommendations {
		for _, action := range recommendation.Action {
			if placed, ok := action.(*types.StoragePlacementAction); ok {
				return &placed.Destination, nil
			}
		}
	}
	return nil, cmi.Exhausted("no datastore of the datastore cluster %s has room for %s", to.DatastoreCluster, name)
}
