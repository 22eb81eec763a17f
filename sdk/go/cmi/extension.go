package cmi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// The end of a console's output that a caller keeps.
const maxConsole = 64 << 10

// GetExtensionCapabilities declares the calls whose interfaces the back end implements.
func (d *driver[Spec]) GetExtensionCapabilities(
	context.Context, *capcmiv1.GetExtensionCapabilitiesRequest,
) (*capcmiv1.GetExtensionCapabilitiesResponse, error) {
	response := &capcmiv1.GetExtensionCapabilitiesResponse{
		Calls:              d.extensionCalls(),
		Zones:              d.specs.has(zoneField),
		ProviderSpecSchema: d.specs.published,
		ListHasState:       d.info.ListHasState,
	}
	if d.specs.has(addressesField) {
		response.AddressPath = "/" + addressesField
	}
	if d.info.ConsistencyWindow > 0 {
		response.ConsistencyWindow = durationpb.New(d.info.ConsistencyWindow)
	}
	if d.updates() {
		tags := "/" + tagsField
		response.HotUpdatable = append([]string{tags, tags + "/" + escaped(MachineTag)}, d.specs.hot...)
	}
	return response, nil
}

func (d *driver[Spec]) extensionCalls() []capcmiv1.GetExtensionCapabilitiesResponse_Call {
	calls := []capcmiv1.GetExtensionCapabilitiesResponse_Call{
		capcmiv1.GetExtensionCapabilitiesResponse_GET_MACHINE,
		capcmiv1.GetExtensionCapabilitiesResponse_LIST_MACHINES_PAGED,
	}
	offer := func(call capcmiv1.GetExtensionCapabilitiesResponse_Call, offered bool) {
		if offered {
			calls = append(calls, call)
		}
	}
	offer(capcmiv1.GetExtensionCapabilitiesResponse_INITIALIZE_MACHINE, implements[Initializer[Spec]](d.backend))
	offer(capcmiv1.GetExtensionCapabilitiesResponse_UPDATE_MACHINE, d.updates())
	offer(capcmiv1.GetExtensionCapabilitiesResponse_GENERATE_MACHINE_CLASS_FOR_MIGRATION, implements[Migrator](d.backend))
	offer(capcmiv1.GetExtensionCapabilitiesResponse_LIST_ZONES, implements[Zoner[Spec]](d.backend))
	offer(capcmiv1.GetExtensionCapabilitiesResponse_DESCRIBE_CLASS, implements[Sizer[Spec]](d.backend))
	offer(capcmiv1.GetExtensionCapabilitiesResponse_RESTART_MACHINE, implements[Restarter](d.backend))
	offer(capcmiv1.GetExtensionCapabilitiesResponse_GET_CONSOLE, implements[Consoler](d.backend))
	return calls
}

func implements[Interface any](backend any) bool {
	_, ok := backend.(Interface)
	return ok
}

// GetMachine is GetMachineStatus with addresses and power state.
func (d *driver[Spec]) GetMachine(ctx context.Context, r *capcmiv1.GetMachineRequest) (*capcmiv1.Machine, error) {
	vm, err := d.look(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderId})
	if err != nil {
		return nil, err
	}
	return toWire(vm), nil
}

// InitializeMachine does the missing steps of a VM that exists.
func (d *driver[Spec]) InitializeMachine(
	ctx context.Context, r *capcmiv1.InitializeMachineRequest,
) (*capcmiv1.Machine, error) {
	initializer, ok := d.backend.(Initializer[Spec])
	if !ok {
		return d.UnimplementedMachineExtensionServer.InitializeMachine(ctx, r)
	}
	m, err := d.machine(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderId}, d.specs.decode)
	if err != nil {
		return nil, err
	}
	unlock, err := d.lock(ctx, m.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vm, err := d.one(ctx, m)
	if err != nil {
		return nil, err
	}
	isInitialized := vm.Uninitialized == ""
	if isInitialized && !implements[Rechecker](d.backend) {
		return toWire(vm), nil
	}
	initialize := func() error {
		if faults.Active.Count(faults.FailInitialize) {
			return Uninitialized("a step of the initialization failed")
		}
		return initializer.Initialize(ctx, vm, m.spec)
	}
	if err := d.change(ctx, m.id, vm, initialize); err != nil {
		return nil, with(err, vm)
	}
	return toWire(vm), nil
}

// with adds the VM to an error that says that it is uninitialized.
func with(err error, vm *VM) error {
	var known *Error
	if errors.As(err, &known) && known.uninitialized {
		known.vm = vm
	}
	return err
}

// UpdateMachine brings a VM to a new spec.
func (d *driver[Spec]) UpdateMachine(
	ctx context.Context, r *capcmiv1.UpdateMachineRequest,
) (*capcmiv1.UpdateMachineResponse, error) {
	updater, ok := d.backend.(Updater[Spec])
	if !ok {
		return d.UnimplementedMachineExtensionServer.UpdateMachine(ctx, r)
	}
	m, err := d.existing(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderId}, d.specs.decodeNew)
	if err != nil {
		return nil, err
	}
	last, err := d.specs.decode(r.LastAppliedProviderSpec)
	if err != nil {
		return nil, err
	}
	unlock, err := d.lock(ctx, m.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vm, err := d.updatable(ctx, m)
	if err != nil {
		return nil, err
	}
	change := changeOf(vm, m, last)
	if len(d.specs.hot) > 0 || len(change.SetTags)+len(change.RemoveTags) > 0 {
		err = d.change(ctx, m.id, vm, func() error { return updater.Update(ctx, vm, change) })
	}
	return &capcmiv1.UpdateMachineResponse{}, err
}

// updatable returns the VM that an update means: also an adopted VM without a machine object.
func (d *driver[Spec]) updatable(ctx context.Context, m machine[Spec]) (*VM, error) {
	all, err := d.namesakes(ctx, m)
	if err != nil {
		return nil, err
	}
	for _, vm := range all {
		isAdopted := vm.Tags[MachineTag] == "" && m.providerID != "" && vm.ID == m.providerID
		if isAdopted || m.owns(vm) {
			return vm, unlocked(vm)
		}
	}
	return nil, notFound(m.id)
}

func changeOf[Spec any](vm *VM, m machine[Spec], last decoded[Spec]) Change[Spec] {
	change := Change[Spec]{Spec: m.spec, LastApplied: last.spec, SetTags: map[string]string{}}
	for name, value := range m.id.Tags {
		if has, ok := vm.Tags[name]; !ok || has != value {
			change.SetTags[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(last.tags)) {
		_, wanted := m.id.Tags[name]
		_, has := vm.Tags[name]
		if has && !wanted && !isReserved(name) {
			change.RemoveTags = append(change.RemoveTags, name)
		}
	}
	return change
}

func isReserved(tag string) bool {
	return slices.Contains([]string{ClusterTag, RoleTag, MachineTag, SpecTag}, tag)
}

// RestartMachine resets a VM, or starts one that is off.
func (d *driver[Spec]) RestartMachine(
	ctx context.Context, r *capcmiv1.RestartMachineRequest,
) (*capcmiv1.RestartMachineResponse, error) {
	restarter, ok := d.backend.(Restarter)
	if !ok {
		return d.UnimplementedMachineExtensionServer.RestartMachine(ctx, r)
	}
	m, err := d.existing(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderId}, d.specs.decode)
	if err != nil {
		return nil, beganNothing(ctx, err)
	}
	unlock, err := d.lock(ctx, m.id)
	if err != nil {
		return nil, beganNothing(ctx, err)
	}
	defer unlock()
	vm, err := d.one(ctx, m)
	if err == nil {
		err = injected()
	}
	if err != nil {
		return nil, beganNothing(ctx, err)
	}
	restart := restarter.Restart
	if starter, starts := d.backend.(Starter); starts && vm.Power == Stopped {
		restart = starter.Start
	}
	return &capcmiv1.RestartMachineResponse{}, d.change(ctx, m.id, vm, func() error { return restart(ctx, vm) })
}

// GetConsole returns the end of the console's output.
func (d *driver[Spec]) GetConsole(
	ctx context.Context, r *capcmiv1.GetConsoleRequest,
) (*capcmiv1.GetConsoleResponse, error) {
	consoler, ok := d.backend.(Consoler)
	if !ok {
		return d.UnimplementedMachineExtensionServer.GetConsole(ctx, r)
	}
	m, err := d.existing(ctx, request{r.MachineName, r.ProviderSpec, r.ProviderId}, d.specs.decode)
	if err != nil {
		return nil, err
	}
	vm, err := d.one(ctx, m)
	if err != nil {
		return nil, err
	}
	output, err := reach(ctx, func() ([]byte, error) { return consoler.Console(ctx, vm) })
	if errors.Is(err, ErrGone) {
		err = notFound(m.id)
	}
	return &capcmiv1.GetConsoleResponse{Output: output[max(0, len(output)-maxConsole):]}, err
}

// ListMachinesPaged is ListMachines with the owner of each VM. The back end lists once for all pages, unless the pages are
// more than a minute apart.
func (d *driver[Spec]) ListMachinesPaged(
	ctx context.Context, r *capcmiv1.ListMachinesPagedRequest,
) (*capcmiv1.ListMachinesPagedResponse, error) {
	after, err := readToken(r.PageToken)
	if err != nil {
		return nil, err
	}
	if r.PageSize < 0 {
		return nil, invalid("page_size must not be negative")
	}
	key, err := listKeyOf(r)
	if err != nil {
		return nil, err
	}
	machines, isKept := d.lists.find(key)
	isNew := !isKept || after == ""
	if isNew {
		if machines, err = d.listed(ctx, r.ProviderSpec); err != nil {
			return nil, err
		}
	}
	response := &capcmiv1.ListMachinesPagedResponse{}
	response.Machines, response.NextPageToken = page(machines, after, int(r.PageSize))
	if response.NextPageToken == "" {
		d.lists.forget(key)
	} else if isNew {
		d.lists.keep(key, machines)
	}
	return response, nil
}

// listed returns the machines of a cluster in the order of their ids.
func (d *driver[Spec]) listed(ctx context.Context, spec []byte) ([]*listedMachine, error) {
	vms, err := d.list(ctx, spec)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(vms, func(a, b *VM) int { return strings.Compare(a.ID, b.ID) })
	machines := make([]*listedMachine, len(vms))
	for i, vm := range vms {
		machines[i] = listed(vm, d.info.ListHasState)
	}
	return machines, nil
}

func listed(vm *VM, hasState bool) *listedMachine {
	machine := &listedMachine{
		ProviderId:  vm.ID,
		MachineName: vm.Name,
		ClusterId:   vm.Tags[ClusterTag],
		MachineId:   vm.Tags[MachineTag],
	}
	if !vm.CreatedAt.IsZero() {
		machine.CreatedAt = timestamppb.New(vm.CreatedAt)
	}
	if hasState {
		shown := toWire(vm)
		machine.Addresses, machine.PowerState = shown.Addresses, shown.PowerState
	}
	return machine
}

// ListZones returns the failure domains.
func (d *driver[Spec]) ListZones(
	ctx context.Context, r *capcmiv1.ListZonesRequest,
) (*capcmiv1.ListZonesResponse, error) {
	zoner, ok := d.backend.(Zoner[Spec])
	if !ok {
		return d.UnimplementedMachineExtensionServer.ListZones(ctx, r)
	}
	read, err := d.specs.decodeAny(r.ProviderSpec)
	if err != nil {
		return nil, err
	}
	zones, err := reach(ctx, func() ([]Zone, error) { return zoner.Zones(ctx, read.spec) })
	response := &capcmiv1.ListZonesResponse{}
	for _, zone := range zones {
		response.Zones = append(response.Zones, &capcmiv1.ListZonesResponse_Zone{
			Name: zone.Name, ControlPlane: zone.ControlPlane, Attributes: zone.Attributes,
		})
	}
	return response, err
}

// DescribeClass returns the resources of one machine.
func (d *driver[Spec]) DescribeClass(
	ctx context.Context, r *capcmiv1.DescribeClassRequest,
) (*capcmiv1.DescribeClassResponse, error) {
	sizer, ok := d.backend.(Sizer[Spec])
	if !ok {
		return d.UnimplementedMachineExtensionServer.DescribeClass(ctx, r)
	}
	read, err := d.specs.decode(r.ProviderSpec)
	if err != nil {
		return nil, err
	}
	size, err := reach(ctx, func() (Size, error) { return sizer.Size(ctx, read.spec) })
	return &capcmiv1.DescribeClassResponse{
		Capacity: size.Capacity, Architecture: size.Architecture, OperatingSystem: size.OperatingSystem,
	}, err
}

// GenerateMachineClassForMigration converts a machine class. A class that cannot be converted is INTERNAL.
func (d *driver[Spec]) GenerateMachineClassForMigration(
	ctx context.Context, r *capcmiv1.GenerateMachineClassForMigrationRequest,
) (*capcmiv1.GenerateMachineClassForMigrationResponse, error) {
	migrator, ok := d.backend.(Migrator)
	if !ok {
		return d.UnimplementedMachineExtensionServer.GenerateMachineClassForMigration(ctx, r)
	}
	from := ProviderClass{APIGroup: r.ClassApiGroup, Kind: r.ClassKind, Object: r.ProviderSpecificMachineClass}
	class, err := reach(ctx, func() (json.RawMessage, error) { return migrator.Migrate(ctx, from, r.MachineClass) })
	var known *Error
	if errors.As(err, &known) && known.code == codes.InvalidArgument {
		err = Internal("%s", known.message).Because(known.cause)
	}
	return &capcmiv1.GenerateMachineClassForMigrationResponse{MachineClass: class}, err
}

// has says whether the provider spec has a field at its top.
func (s *schemas) has(field string) bool {
	var schema struct{ Properties map[string]json.RawMessage }
	return json.Unmarshal(s.published, &schema) == nil && schema.Properties[field] != nil
}
