package main

import (
	"context"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// target is a placement as objects of vCenter.
type target struct {
	placement
	folder, pool types.ManagedObjectReference
	// datastore is nil where Storage DRS chooses one of the datastore cluster.
	datastore, datastoreCluster *types.ManagedObjectReference
	// template is nil for a content library item.
	template *types.ManagedObjectReference
	networks []network
}

// network is a network, and how an adapter is connected to it.
type network struct {
	ref     types.ManagedObjectReference
	backing types.BaseVirtualDeviceBackingInfo
}

// Kinds of objects.
var (
	datacenterTypes       = []string{"Datacenter"}
	folderTypes           = []string{"Folder"}
	computeTypes          = []string{"ClusterComputeResource", "ComputeResource"}
	poolTypes             = []string{"ResourcePool"}
	datastoreTypes        = []string{"Datastore"}
	datastoreClusterTypes = []string{"StoragePod"}
	networkTypes          = []string{"Network", "DistributedVirtualPortgroup", "OpaqueNetwork"}
)

// resolve finds the objects of a placement. The first that is missing is an error with the name of its field.
func resolve(ctx context.Context, client *vim25.Client, where placement) (target, error) {
	find := lookup{ctx: ctx, client: client}
	made := target{placement: where}
	find.required("/datacenter", datacenterTypes, where.root())
	made.folder = find.required("/folder", folderTypes, where.path(vmFolder, where.Folder))
	if where.ResourcePool == "" {
		made.pool = find.rootPool(find.required("/cluster", computeTypes, where.path(hostFolder, where.Cluster)))
	} else {
		path := where.path(hostFolder, where.Cluster) + "/Resources/" + where.ResourcePool
		made.pool = find.required("/resourcePool", poolTypes, path)
	}
	if where.Datastore != "" {
		made.datastore = types.NewReference(
			find.required("/datastore", datastoreTypes, where.path(datastoreFolder, where.Datastore)))
	} else {
		made.datastoreCluster = types.NewReference(find.required(
			"/datastoreCluster", datastoreClusterTypes, where.path(datastoreFolder, where.DatastoreCluster)))
	}
	if where.Template != "" {
		made.template = types.NewReference(
			find.required("/template", []string{vmType}, where.path(vmFolder, where.Template)))
	}
	made.networks = find.networks(where)
	return made, find.err
}

// lookup finds objects until an error.
type lookup struct {
	ctx    context.Context
	client *vim25.Client
	err    error
}

func (l *lookup) required(field string, kinds []string, path string) types.ManagedObjectReference {
	if l.err != nil {
		return types.ManagedObjectReference{}
	}
	found, err := find(l.ctx, l.client, path)
	switch {
	case err != nil:
		l.err = err
	case found == nil:
		l.err = cmi.Invalid(field, "vCenter has no %s, or the user may not see it", path)
	default:
		for _, kind := range kinds {
			if found.Type == kind {
				return *found
			}
		}
		l.err = cmi.Invalid(field, "%s is a %s and must be a %s", path, found.Type, kinds[0])
	}
	return types.ManagedObjectReference{}
}

func (l *lookup) rootPool(cluster types.ManagedObjectReference) types.ManagedObjectReference {
	if l.err != nil {
		return types.ManagedObjectReference{}
	}
	pool, err := object.NewComputeResource(l.client, cluster).ResourcePool(l.ctx)
	if err != nil {
		l.err = err
		return types.ManagedObjectReference{}
	}
	return pool.Reference()
}

func (l *lookup) networks(where placement) []network {
	var found []network
	for _, name := range where.Networks {
		ref := l.required("/networks", networkTypes, where.path(networkFolder, name))
		if l.err != nil {
			return nil
		}
		known, ok := object.NewReference(l.client, ref).(object.NetworkReference)
		if !ok {
			l.err = cmi.Invalid("/networks", "an adapter cannot be connected to a %s", ref.Type)
			return nil
		}
		backing, err := known.EthernetCardBackingInfo(l.ctx)
		if err != nil {
			l.err = err
			return nil
		}
		found = append(found, network{ref, backing})
	}
	return found
}
