package main

import (
	"strings"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// placement has the source of a VM and its place. Names are inventory paths below the datacenter's folder for the kind
// of object, such as `templates/debian-12`.
type placement struct {
	Datacenter       string   `json:"datacenter,omitempty" jsonschema:"inventory path of the datacenter"`
	Cluster          string   `json:"cluster,omitempty" jsonschema:"cluster or host of the VM"`
	ResourcePool     string   `json:"resourcePool,omitempty" jsonschema:"path of a resource pool in the cluster"`
	Folder           string   `json:"folder,omitempty" jsonschema:"folder of the VM"`
	Datastore        string   `json:"datastore,omitempty" jsonschema:"datastore of the VM"`
	DatastoreCluster string   `json:"datastoreCluster,omitempty" jsonschema:"datastore cluster where Storage DRS chooses"`
	Networks         []string `json:"networks,omitempty" jsonschema:"networks of the network adapters, in their order"`
	Template         string   `json:"template,omitempty" jsonschema:"VM template"`
	LibraryItem      string   `json:"libraryItem,omitempty" jsonschema:"OVF item of a content library: LIBRARY/ITEM"`
}

// over returns the placement with the values of other where p has none. A choice of one of two fields hides the other.
func (p placement) over(other placement) placement {
	pick := func(mine *string, theirs string) {
		if *mine == "" {
			*mine = theirs
		}
	}
	if p.Datastore == "" && p.DatastoreCluster == "" {
		p.Datastore, p.DatastoreCluster = other.Datastore, other.DatastoreCluster
	}
	if p.Template == "" && p.LibraryItem == "" {
		p.Template, p.LibraryItem = other.Template, other.LibraryItem
	}
	pick(&p.Datacenter, other.Datacenter)
	pick(&p.Folder, other.Folder)
	if p.Cluster == "" {
		p.Cluster = other.Cluster
		pick(&p.ResourcePool, other.ResourcePool)
	}
	if len(p.Networks) == 0 {
		p.Networks = other.Networks
	}
	return p
}

// check finds missing fields, and pairs of fields that exclude each other.
func (p placement) check() error {
	switch {
	case p.Datacenter == "":
		return cmi.Invalid("/datacenter", "is required, here or in the failure domain")
	case p.Cluster == "":
		return cmi.Invalid("/cluster", "is required, here or in the failure domain")
	case (p.Datastore == "") == (p.DatastoreCluster == ""):
		return cmi.Invalid("/datastore", "one of /datastore and /datastoreCluster is required, here or in the failure domain")
	case (p.Template == "") == (p.LibraryItem == ""):
		return cmi.Invalid("/template", "one of /template and /libraryItem is required, here or in the failure domain")
	case p.LibraryItem != "" && len(p.Networks) == 0:
		return cmi.Invalid("/networks", "is required with /libraryItem")
	}
	return nil
}

// Folders of a datacenter for each kind of object.
const (
	vmFolder        = "vm"
	hostFolder      = "host"
	datastoreFolder = "datastore"
	networkFolder   = "network"
)

// path returns the inventory path of an object. A user may also write the whole path.
func (p placement) path(folder string, name ...string) string {
	rest := strings.Trim(strings.Join(name, "/"), "/")
	root := p.root() + "/" + folder
	if len(name) > 0 && strings.HasPrefix(name[0], root+"/") {
		return "/" + rest
	}
	return strings.TrimSuffix(root+"/"+rest, "/")
}

// root returns the inventory path of the datacenter.
func (p placement) root() string { return "/" + strings.Trim(p.Datacenter, "/") }
