package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

const vmType = "VirtualMachine"

// Properties of a VM. Single keys of the extra configuration: the whole of it holds the bootstrap data.
var (
	nameProperty        = "name"
	biosProperty        = "config.uuid"
	instanceProperty    = "config.instanceUuid"
	createdProperty     = "config.createDate"
	powerProperty       = "runtime.powerState"
	hostNameProperty    = "guest.hostName"
	netProperty         = "guest.net"
	recordProperty      = extraProperty(recordKey)
	initializedProperty = extraProperty(initializedKey)

	vmProperties = []string{
		nameProperty, biosProperty, instanceProperty, createdProperty, powerProperty, hostNameProperty, netProperty,
		recordProperty, initializedProperty,
	}
)

// reference is the form of a VM's reference in vCenter. A state that an earlier call has left may be anything.
var reference = regexp.MustCompile(`^vm-[0-9]+$`)

func extraProperty(key string) string { return `config.extraConfig["` + key + `"]` }

// Find returns the VMs of a machine. No VM exists while vCenter has queued its clone task, so a machine without a VM is
// looked up once more when no such task is left. A machine that had a VM has none only if the user still sees its folder.
func (b *backend) Find(ctx context.Context, id cmi.Identity, s spec) ([]*cmi.VM, error) {
	v, err := b.vcenter(ctx)
	if err != nil {
		return nil, err
	}
	var found []*cmi.VM
	err = v.do(ctx, func(ctx context.Context, client *vim25.Client) (err error) {
		if found, err = b.look(ctx, client, v, id, s); err != nil || len(found) > 0 {
			return err
		}
		if err := b.cloned(ctx, client, v, id, s); err != nil {
			return err
		}
		if found, err = b.look(ctx, client, v, id, s); err != nil || len(found) > 0 || cmi.ProviderIDOf(ctx) == "" {
			return err
		}
		return b.seesFolder(ctx, client, s)
	})
	return found, explain(err, "look up the VM of "+id.Name)
}

// look returns the VMs that the inventory has.
func (b *backend) look(
	ctx context.Context, client *vim25.Client, v *vcenter, id cmi.Identity, s spec,
) ([]*cmi.VM, error) {
	refs, err := b.search(ctx, client, v, id, s)
	if err != nil {
		return nil, err
	}
	instance := instanceID(id.Cluster, id.Name)
	vms, err := describe(ctx, client, refs, instance)
	if err != nil {
		return nil, err
	}
	found := withoutCopies(slices.DeleteFunc(vms, func(vm *cmi.VM) bool {
		return vm.Name != id.Name || vm.Tags[cmi.ClusterTag] != id.Cluster
	}))
	v.remember(instance, found)
	return found, nil
}

// remember keeps the reference of a machine's VM: it finds the VM also when the user may no longer see it.
func (v *vcenter) remember(instance string, found []*cmi.VM) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	if len(found) == 0 {
		delete(v.known, instance)
		return
	}
	v.known[instance] = refOf(found[0])
}

func (v *vcenter) remembered(instance string) (types.ManagedObjectReference, bool) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	ref, has := v.known[instance]
	return ref, has
}

// seesFolder fails if the user does not see the folder of a machine's VM. vCenter then hides the VM, too.
func (b *backend) seesFolder(ctx context.Context, client *vim25.Client, s spec) error {
	where, err := b.placement(s)
	if err != nil || where.Datacenter == "" {
		return nil // a failure domain may have been removed since
	}
	path := where.path(vmFolder, where.Folder)
	folder, err := find(ctx, client, path)
	if err == nil && folder == nil {
		err = cmi.PermissionDenied("the user does not see the folder %s, so the VM may exist: give the user its rights back, "+
			"or make the folder again if it was deleted", path)
	}
	return err
}

// search asks vCenter's index for the instance UUID, in all folders, and for the VM's name in its folder. The second one
// also finds a VM that vCenter is still cloning, and one whose UUID vCenter has changed. vCenter hides a VM that the user
// may no longer see from both, and not from a call with its reference, which an earlier call has left.
func (b *backend) search(
	ctx context.Context, client *vim25.Client, v *vcenter, id cmi.Identity, s spec,
) ([]types.ManagedObjectReference, error) {
	index, instance := *client.ServiceContent.SearchIndex, instanceID(id.Cluster, id.Name)
	byID, err := methods.FindAllByUuid(ctx, client, &types.FindAllByUuid{
		This: index, Uuid: instance, VmSearch: true, InstanceUuid: types.NewBool(true),
	})
	if err != nil {
		return nil, err
	}
	refs := byID.Returnval
	add := func(ref types.ManagedObjectReference) {
		isKnown := func(known types.ManagedObjectReference) bool { return known.Value == ref.Value }
		if !slices.ContainsFunc(refs, isKnown) {
			refs = append(refs, ref)
		}
	}
	if state := cmi.StateOf(ctx); reference.Match(state) {
		add(types.ManagedObjectReference{Type: vmType, Value: string(state)})
	}
	if ref, has := v.remembered(instance); has {
		add(ref)
	}
	// A failure domain may have been removed since: the VM has to be found anyway.
	where, err := b.placement(s)
	if err != nil || where.Datacenter == "" {
		return refs, nil
	}
	named, err := find(ctx, client, where.path(vmFolder, where.Folder, vmName(id)))
	if err != nil {
		return nil, err
	}
	if named != nil {
		add(*named)
	}
	return refs, nil
}

// find returns the object at an inventory path, or nil.
func find(ctx context.Context, client *vim25.Client, path string) (*types.ManagedObjectReference, error) {
	found, err := methods.FindByInventoryPath(ctx, client, &types.FindByInventoryPath{
		This: *client.ServiceContent.SearchIndex, InventoryPath: path,
	})
	if err != nil {
		return nil, err
	}
	return found.Returnval, nil
}

// describe reads VMs, and leaves out those without a record, unless they have the instance UUID. VMs that are deleted in
// the meantime are left out, too.
func describe(
	ctx context.Context, client *vim25.Client, refs []types.ManagedObjectReference, instance string,
) ([]*cmi.VM, error) {
	var vms []*cmi.VM
	for _, ref := range refs {
		var content []types.ObjectContent
		err := property.DefaultCollector(client).RetrieveOne(ctx, ref, vmProperties, &content)
		if isGone(err, ref) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, read := range content {
			if err := refused(read); err != nil {
				return nil, err
			}
			vm, err := toVM(read, instance)
			if err != nil {
				return nil, err
			}
			if vm != nil {
				vms = append(vms, vm)
			}
		}
	}
	return vms, nil
}

// refused returns why vCenter kept a property back.
func refused(content types.ObjectContent) error {
	for _, missing := range content.MissingSet {
		if err := soap.WrapVimFault(missing.Fault.Fault); !is[*types.InvalidProperty](err) {
			return err
		}
	}
	return nil
}

// List reads all VMs that the user sees, in one pass of vCenter's property collector.
func (b *backend) List(ctx context.Context, cluster string, _ spec) ([]*cmi.VM, error) {
	v, err := b.vcenter(ctx)
	if err != nil {
		return nil, err
	}
	var content []types.ObjectContent
	err = v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		content = nil
		root := client.ServiceContent.RootFolder
		all, err := view.NewManager(client).CreateContainerView(ctx, root, []string{vmType}, true)
		if err != nil {
			return err
		}
		defer func() {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutWithin)
			defer cancel()
			_ = all.Destroy(ending) // it ends with the session
		}()
		return all.Retrieve(ctx, []string{vmType}, vmProperties, &content)
	})
	if err != nil {
		return nil, explain(err, "list VMs")
	}
	var vms []*cmi.VM
	unread := map[types.ManagedObjectReference]error{}
	for _, read := range content {
		if refused(read) != nil {
			continue // a VM that the user may not read was not made by this driver
		}
		vm, err := toVM(read, "")
		switch {
		case isUnready(err):
			// The next list has it.
		case isBroken(err):
			unread[read.Obj] = err // calls about its machine fail
		case err != nil:
			return nil, err
		case vm != nil && vm.Tags[cmi.ClusterTag] == cluster:
			vms = append(vms, vm)
		}
	}
	v.report(unread)
	vms = withoutCopies(vms)
	for _, vm := range vms {
		v.remember(instanceID(cluster, vm.Name), []*cmi.VM{vm})
	}
	return vms, nil
}

// report logs VMs that a list leaves out, once for each.
func (v *vcenter) report(unread map[types.ManagedObjectReference]error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	for ref, err := range unread {
		if _, known := v.unread[ref]; !known {
			slog.Warn("a VM is in no list", "vm", ref.Value, "vcenter", v.credentials.server, "error", err)
		}
	}
	v.unread = unread
}

// native is the driver's part of a [cmi.VM].
type native struct {
	ref           types.ManagedObjectReference
	record        record
	isIndexed, on bool
}

// toVM returns the VM of a machine, or nil for another VM. A VM with the instance UUID that a machine's VM must have is not
// another one.
func toVM(content types.ObjectContent, wanted string) (*cmi.VM, error) {
	values := make(map[string]any, len(content.PropSet))
	for _, read := range content.PropSet {
		values[read.Name] = read.Val
	}
	name, _ := values[nameProperty].(string)
	bios, _ := values[biosProperty].(string)
	instance, _ := values[instanceProperty].(string)
	if bios == "" {
		return nil, unready(name)
	}
	text := extraValue(values[recordProperty])
	isWanted := wanted != "" && instance == wanted
	if text == "" && !isWanted {
		return nil, nil
	}
	read, isValid := readRecord(text)
	if !isValid || isWanted && !read.isIndexed(instance) {
		return nil, broken(name)
	}
	if read.isCopy(name, instance) {
		return nil, nil
	}
	power, _ := values[powerProperty].(types.VirtualMachinePowerState)
	vm := &cmi.VM{
		ID:        "vsphere://" + strings.ToLower(bios),
		Name:      read.Name,
		Tags:      read.Tags,
		Zone:      read.Zone,
		Power:     powerOf(power),
		Addresses: addressesOf(values),
		State:     []byte(content.Obj.Value),
		Native: native{
			content.Obj, read, read.isIndexed(instance), power == types.VirtualMachinePowerStatePoweredOn,
		},
	}
	if created, ok := values[createdProperty].(time.Time); ok {
		vm.CreatedAt = created
	}
	if extraValue(values[initializedProperty]) != read.VM {
		vm.Uninitialized = "it has not been started"
	}
	return vm, nil
}

// extraValue returns the value of a key of the extra configuration.
func extraValue(value any) string {
	switch found := value.(type) {
	case types.OptionValue:
		text, _ := found.Value.(string)
		return text
	case types.BaseOptionValue:
		text, _ := found.GetOptionValue().Value.(string)
		return text
	}
	return ""
}

func powerOf(state types.VirtualMachinePowerState) cmi.Power {
	switch state {
	case types.VirtualMachinePowerStatePoweredOn:
		return cmi.Running
	case types.VirtualMachinePowerStatePoweredOff, types.VirtualMachinePowerStateSuspended:
		return cmi.Stopped
	}
	return cmi.PowerUnknown
}

// An adapter of the guest alone, such as a bridge of a container network, has this number.
const noDevice = -1

// addressesOf returns the addresses that VMware Tools reports for the VM's network adapters.
func addressesOf(values map[string]any) []cmi.Address {
	var addresses []cmi.Address
	adapters, _ := values[netProperty].(types.ArrayOfGuestNicInfo)
	for _, adapter := range adapters.GuestNicInfo {
		if adapter.DeviceConfigId == noDevice {
			continue
		}
		for _, text := range adapter.IpAddress {
			address, err := netip.ParseAddr(text)
			if err == nil && address.IsGlobalUnicast() {
				addresses = append(addresses, cmi.Address{Type: cmi.InternalIP, Text: text})
			}
		}
	}
	if host, _ := values[hostNameProperty].(string); host != "" {
		addresses = append(addresses, cmi.Address{Type: cmi.HostName, Text: host})
	}
	return addresses
}

func refOf(vm *cmi.VM) types.ManagedObjectReference { return vm.Native.(native).ref }

// virtualMachine returns the VM that Find has returned.
func virtualMachine(client *vim25.Client, vm *cmi.VM) *object.VirtualMachine {
	return object.NewVirtualMachine(client, refOf(vm))
}

// errUnready is about a VM whose configuration vCenter does not know: it is being made, or its host is away.
var errUnready = errors.New("the configuration of the VM is not known")

func isUnready(err error) bool { return errors.Is(err, errUnready) }

func unready(name string) error {
	return cmi.Busy("the VM %s is being made, or its host is away", name).Because(errUnready)
}
