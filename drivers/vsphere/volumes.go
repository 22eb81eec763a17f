package main

import (
	"context"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// csiDriver is the CSI driver for vSphere.
const csiDriver = "csi.vsphere.vmware.com"

// VolumeID returns the handle of a volume of the CSI driver for vSphere.
func (b *backend) VolumeID(_ context.Context, volume cmi.PersistentVolume) (string, error) {
	if volume.Driver != csiDriver {
		return "", nil
	}
	return volume.Handle, nil
}
