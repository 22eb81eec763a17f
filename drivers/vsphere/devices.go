package main

import (
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// adapterType is the type of further network adapters.
const adapterType = "vmxnet3"

// deviceChanges returns the changes from the devices of a template or a new VM to the spec. Without networks, the
// adapters stay.
func deviceChanges(
	devices object.VirtualDeviceList, s spec, networks []network,
) ([]types.BaseVirtualDeviceConfigSpec, error) {
	changes, err := networkChanges(devices, networks)
	if err != nil {
		return nil, err
	}
	disks, err := diskChanges(devices, s)
	return append(changes, disks...), err
}

func networkChanges(
	devices object.VirtualDeviceList, networks []network,
) ([]types.BaseVirtualDeviceConfigSpec, error) {
	if len(networks) == 0 {
		return nil, nil
	}
	var changes []types.BaseVirtualDeviceConfigSpec
	adapters := devices.SelectByType((*types.VirtualEthernetCard)(nil))
	for i, wanted := range networks {
		if i < len(adapters) {
			adapters[i].GetVirtualDevice().Backing = wanted.backing
			changes = append(changes, change(types.VirtualDeviceConfigSpecOperationEdit, adapters[i]))
			continue
		}
		adapter, err := devices.CreateEthernetCard(adapterType, wanted.backing)
		if err != nil {
			return nil, err
		}
		device := adapter.GetVirtualDevice()
		device.Key = newKey(len(changes))
		device.Connectable = &types.VirtualDeviceConnectInfo{StartConnected: true, AllowGuestControl: true, Connected: true}
		changes = append(changes, change(types.VirtualDeviceConfigSpecOperationAdd, adapter))
	}
	for _, extra := range adapters[min(len(networks), len(adapters)):] {
		changes = append(changes, change(types.VirtualDeviceConfigSpecOperationRemove, extra))
	}
	return changes, nil
}

// Keys of devices that do not exist yet are negative, and different from each other within a request.
const (
	firstAdapterKey = -100
	firstDiskKey    = -200
)

func newKey(position int) int32 { return firstAdapterKey - int32(position) }

// diskChanges grows the first disk, and adds the empty ones that are missing.
func diskChanges(devices object.VirtualDeviceList, s spec) ([]types.BaseVirtualDeviceConfigSpec, error) {
	if s.DiskGiB == 0 && len(s.DataDisksGiB) == 0 {
		return nil, nil
	}
	var changes []types.BaseVirtualDeviceConfigSpec
	disks := devices.SelectByType((*types.VirtualDisk)(nil))
	if len(disks) == 0 {
		return nil, cmi.Invalid("/template", "has no disk")
	}
	first := disks[0].(*types.VirtualDisk)
	has, wanted := capacity(first), s.DiskGiB<<30
	switch {
	case wanted != 0 && wanted < has:
		return nil, cmi.OutOfRange("/diskGiB", "is %d, and the template's disk has %d GiB", s.DiskGiB, (has+1<<30-1)>>30)
	case wanted > has:
		setCapacity(first, wanted)
		changes = append(changes, change(types.VirtualDeviceConfigSpecOperationEdit, first))
	}
	controller, err := devices.FindDiskController("")
	if err != nil {
		return nil, cmi.Invalid("/template", "has no disk controller").Because(err)
	}
	for i := len(disks) - 1; i < len(s.DataDisksGiB); i++ {
		disk := devices.CreateDisk(controller, types.ManagedObjectReference{}, "")
		disk.Key = firstDiskKey - int32(i)
		setCapacity(disk, s.DataDisksGiB[i]<<30)
		devices = append(devices, disk)
		added := change(types.VirtualDeviceConfigSpecOperationAdd, disk)
		added.FileOperation = types.VirtualDeviceConfigSpecFileOperationCreate
		changes = append(changes, added)
	}
	return changes, nil
}

func capacity(disk *types.VirtualDisk) int64 {
	return max(disk.CapacityInBytes, disk.CapacityInKB<<10)
}

func setCapacity(disk *types.VirtualDisk, bytes int64) {
	disk.CapacityInBytes, disk.CapacityInKB = bytes, bytes>>10
}

func change(
	operation types.VirtualDeviceConfigSpecOperation, device types.BaseVirtualDevice,
) *types.VirtualDeviceConfigSpec {
	return &types.VirtualDeviceConfigSpec{Operation: operation, Device: device}
}
