package main

import (
	"bytes"
	"net/url"
	"strings"
	"testing"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vapi/library"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"
)

// descriptor is an OVF with a disk of 4 GiB, a disk controller and an adapter.
const descriptor = `<?xml version="1.0" encoding="UTF-8"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData"
 xmlns:vssd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData">
<References/>
<DiskSection><Info>disks</Info>
<Disk ovf:capacity="4" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="vmdisk1"/>
</DiskSection>
<NetworkSection><Info>networks</Info><Network ovf:name="nodes"><Description>nodes</Description></Network></NetworkSection>
<VirtualSystem ovf:id="debian"><Info>a VM</Info><Name>debian</Name>
<VirtualHardwareSection><Info>hardware</Info>
<System><vssd:ElementName>hardware</vssd:ElementName><vssd:InstanceID>0</vssd:InstanceID>
<vssd:VirtualSystemType>vmx-19</vssd:VirtualSystemType></System>
<Item><rasd:ElementName>1 CPU</rasd:ElementName><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>
<rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
<Item><rasd:ElementName>memory</rasd:ElementName><rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType>
<rasd:VirtualQuantity>512</rasd:VirtualQuantity></Item>
<Item><rasd:Address>0</rasd:Address><rasd:ElementName>SCSI</rasd:ElementName><rasd:InstanceID>3</rasd:InstanceID>
<rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType><rasd:ResourceType>6</rasd:ResourceType></Item>
<Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>disk</rasd:ElementName>
<rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource><rasd:InstanceID>4</rasd:InstanceID><rasd:Parent>3</rasd:Parent>
<rasd:ResourceType>17</rasd:ResourceType></Item>
<Item><rasd:AddressOnParent>7</rasd:AddressOnParent><rasd:Connection>nodes</rasd:Connection>
<rasd:ElementName>adapter</rasd:ElementName><rasd:InstanceID>5</rasd:InstanceID>
<rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType><rasd:ResourceType>10</rasd:ResourceType></Item>
</VirtualHardwareSection></VirtualSystem></Envelope>`

// addItem adds an item to the content library `images`.
func (s *simulated) addItem(t *testing.T, name, kind string) {
	t.Helper()
	client := rest.NewClient(s.admin.Client)
	must(t, client.Login(t.Context(), url.UserPassword(admin, adminPassword)))
	manager := library.NewManager(client)
	store, err := object.NewSearchIndex(s.admin.Client).FindByInventoryPath(t.Context(), "/DC0/datastore/"+datastore)
	must(t, err)
	images, err := manager.FindLibrary(t.Context(), library.Find{Name: "images"})
	must(t, err)
	if len(images) == 0 {
		made, err := manager.CreateLibrary(t.Context(), library.Library{
			Name: "images", Type: "LOCAL",
			Storage: []library.StorageBacking{{DatastoreID: store.Reference().Value, Type: "DATASTORE"}},
		})
		must(t, err)
		images = []string{made}
	}
	item, err := manager.CreateLibraryItem(t.Context(), library.Item{Name: name, Type: kind, LibraryID: images[0]})
	must(t, err)
	session, err := manager.CreateLibraryItemUpdateSession(t.Context(), library.Session{LibraryItemID: item})
	must(t, err)
	update, err := manager.AddLibraryItemFile(t.Context(), session, library.UpdateFile{
		Name: name + ".ovf", SourceType: "PUSH", Size: int64(len(descriptor)),
	})
	must(t, err)
	place, err := url.Parse(update.UploadEndpoint.URI)
	must(t, err)
	upload := soap.DefaultUpload
	upload.ContentLength = int64(len(descriptor))
	must(t, client.Upload(t.Context(), bytes.NewReader([]byte(descriptor)), place, &upload))
	must(t, manager.CompleteLibraryItemUpdateSession(t.Context(), session))
}

func fromLibrary(item string) spec {
	s := smallest()
	s.Template, s.LibraryItem = "", item
	return s
}

func TestContentLibraryItemIsDeployed(t *testing.T) {
	vcenter := newVCenter(t)
	vcenter.addItem(t, "debian", library.ItemTypeOVF)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	s := fromLibrary("images/debian")
	s.DiskGiB, s.DataDisksGiB = 20, []int64{5}
	vm, err := create(b, ctx, id, s, cloudConfig)
	must(t, err)
	config := configOf(t, b, ctx, vm)
	if text := decoded(t, config, userDataKey); text != string(cloudConfig.UserData) {
		t.Errorf("got %q", text)
	}
	if config.Hardware.NumCPU != s.CPUs || int64(config.Hardware.MemoryMB) != s.MemoryMiB {
		t.Errorf("got %d CPUs and %d MiB", config.Hardware.NumCPU, config.Hardware.MemoryMB)
	}
	devices := object.VirtualDeviceList(config.Hardware.Device)
	var sum int64
	for _, disk := range devices.SelectByType((*types.VirtualDisk)(nil)) {
		sum += capacity(disk.(*types.VirtualDisk)) >> 30
	}
	if adapters := devices.SelectByType((*types.VirtualEthernetCard)(nil)); sum != 25 || len(adapters) != 1 {
		t.Errorf("got %d GiB of disks and %d adapters", sum, len(adapters))
	}
	if again := found(t, b, ctx, id, s); again.ID != vm.ID || again.Uninitialized != "" {
		t.Errorf("got %+v", again)
	}
	// vCenter refuses the second VM with a text instead of a fault.
	_, err = create(b, ctx, id, s, cloudConfig)
	refusedWith(t, err, codes.Aborted, "another call has made the VM")
}

func TestContentLibraryItemsThatCannotBeDeployed(t *testing.T) {
	vcenter := newVCenter(t)
	vcenter.addItem(t, "template", library.ItemTypeVMTX)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	for item, problem := range map[string]string{
		"images/missing":  "vCenter has 0 items images/missing",
		"no-library/item": "vCenter has 0 items",
		"images":          "must be LIBRARY/ITEM",
		"images/template": "must be ovf",
	} {
		_, err := create(b, ctx, identity("one"), fromLibrary(item), cloudConfig)
		refusedWith(t, err, codes.InvalidArgument, problem)
	}
	s := fromLibrary("images/debian")
	s.Datastore, s.DatastoreCluster = "", pod
	_, err := create(b, ctx, identity("one"), s, cloudConfig)
	refusedWith(t, err, codes.InvalidArgument, "/datastoreCluster")
	s = fromLibrary("images/debian")
	s.Networks = nil
	_, err = create(b, ctx, identity("one"), s, cloudConfig)
	refusedWith(t, err, codes.InvalidArgument, "/networks")
}

func TestLibraryDiskThatIsTooSmallKeepsTheVM(t *testing.T) {
	vcenter := newVCenter(t)
	vcenter.addItem(t, "debian", library.ItemTypeOVF)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	s := fromLibrary("images/debian")
	s.DiskGiB = 1
	_, err := create(b, ctx, id, s, cloudConfig)
	// The VM exists: an OUT_OF_RANGE would say that it does not.
	refusedWith(t, err, codes.FailedPrecondition, "the template's disk has 4 GiB")
	if vm := found(t, b, ctx, id, s); !strings.HasPrefix(vm.ID, "vsphere://") || vm.Uninitialized == "" {
		t.Errorf("got %+v", vm)
	}
}
