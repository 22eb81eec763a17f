// Package fakecloud makes a VM platform of MCM's FakeDriver, which answers for one VM. The VMs are files, so that they outlive
// the process. Like the drivers of MCM, it compares one tag of the cluster and one of the role, requires user data in
// each call, and finds an existing VM by its name.
package fakecloud

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
)

// Provider is the name of the provider in a MachineClass.
const Provider = "fake"

// The driver of the platform's volumes, and the credentials that it knows.
const (
	VolumeDriver = "fake.example.com"
	Token        = "the-right-token"
	NoRights     = "the-token-without-rights"
)

const (
	clusterPrefix = "kubernetes.io/cluster/"
	rolePrefix    = "kubernetes.io/role/"
)

// Driver is a platform with its VMs in a folder.
type Driver struct {
	Folder string
}

var _ driver.Driver = &Driver{}

// VM is the file of a VM.
type VM struct {
	ProviderID, Name, Size string
	Tags                   map[string]string
	UserData               []byte
	Initialized            bool
	// Part is a network interface that a failed create left behind. It has no VM.
	Part bool
}

type providerSpec struct {
	Size   string            `json:"size"`
	DiskGB int               `json:"diskGB,omitempty"`
	Tags   map[string]string `json:"tags"`
}

// answers returns MCM's driver for this VM.
func (vm VM) answers(problem error) driver.Driver {
	addresses := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}}
	return driver.NewFakeDriver(!vm.Part, vm.ProviderID, vm.Name, "state of "+vm.ProviderID, addresses, problem, nil)
}

// request checks a class and a Secret, as each call of a driver does.
func request(class *v1alpha1.MachineClass, secret *corev1.Secret) (providerSpec, error) {
	var spec providerSpec
	if class.Provider != Provider {
		return spec, status.Error(codes.InvalidArgument, "the class is of the provider "+class.Provider)
	}
	problems, err := kjson.UnmarshalStrict(class.ProviderSpec.Raw, &spec)
	if err = errors.Join(append(problems, err)...); err != nil {
		return spec, status.Error(codes.InvalidArgument, err.Error())
	}
	switch {
	case spec.Size == "":
		return spec, status.Error(codes.InvalidArgument, "size is required")
	case pick(spec.Tags, clusterPrefix) == "" || pick(spec.Tags, rolePrefix) == "":
		return spec, status.Error(codes.InvalidArgument, "a tag of the cluster and one of the role are required")
	case len(secret.Data["userData"]) == 0:
		return spec, status.Error(codes.InvalidArgument, "userData is required")
	}
	switch string(secret.Data["token"]) {
	case Token:
		return spec, nil
	case NoRights:
		return spec, status.Error(codes.PermissionDenied, "the token may do nothing")
	default:
		return spec, status.Error(codes.Unauthenticated, "the token is unknown")
	}
}

// pick returns any tag that has a prefix, as the drivers do.
func pick(tags map[string]string, prefix string) string {
	for name := range tags {
		if strings.HasPrefix(name, prefix) {
			return name
		}
	}
	return ""
}

// read returns the VMs with the tags of a class.
func (d *Driver) read(spec providerSpec) ([]VM, error) {
	paths, err := filepath.Glob(filepath.Join(d.Folder, "*.json"))
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	cluster, role := pick(spec.Tags, clusterPrefix), pick(spec.Tags, rolePrefix)
	var vms []VM
	for _, path := range paths {
		var vm VM
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err = errors.Join(err, json.Unmarshal(text, &vm)); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		_, inCluster := vm.Tags[cluster]
		_, hasRole := vm.Tags[role]
		if inCluster && hasRole {
			vms = append(vms, vm)
		}
	}
	return vms, nil
}

// named returns the VM with the name of a machine.
func (d *Driver) named(spec providerSpec, machine *v1alpha1.Machine) (VM, error) {
	vms, err := d.read(spec)
	if err != nil {
		return VM{}, err
	}
	var found []VM
	for _, vm := range vms {
		if vm.Name == machine.Name && !vm.Part {
			found = append(found, vm)
		}
	}
	switch len(found) {
	case 0:
		return VM{}, status.Error(codes.NotFound, "no VM has the name "+machine.Name)
	case 1:
		return found[0], nil
	default:
		return VM{}, status.Error(codes.OutOfRange, "several VMs have the name "+machine.Name)
	}
}

// CreateMachine makes a VM, or returns the existing VM of this name.
func (d *Driver) CreateMachine(ctx context.Context, r *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	spec, err := request(r.MachineClass, r.Secret)
	if err != nil {
		return nil, err
	}
	switch {
	case spec.Size != "small" && spec.Size != "large":
		return nil, status.Error(codes.InvalidArgument, "size is "+spec.Size)
	case spec.DiskGB < 0 || spec.DiskGB > 1000:
		return nil, status.Error(codes.OutOfRange, fmt.Sprintf("diskGB is %d", spec.DiskGB))
	case spec.DiskGB == 999:
		return nil, status.Error(codes.ResourceExhausted, "the pool has no 999 GB")
	}
	vm, err := d.named(spec, r.Machine)
	if err != nil {
		found, _ := status.FromError(err)
		if found.Code() != codes.NotFound {
			return nil, err
		}
		vm = VM{
			ProviderID: "fake:///" + rand.Text(), Name: r.Machine.Name, Size: spec.Size, Tags: spec.Tags,
			UserData: r.Secret.Data["userData"],
		}
		if err := d.Write(vm); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return vm.answers(nil).CreateMachine(ctx, r)
}

// InitializeMachine sets a flag of the VM.
func (d *Driver) InitializeMachine(
	ctx context.Context, r *driver.InitializeMachineRequest,
) (*driver.InitializeMachineResponse, error) {
	spec, err := request(r.MachineClass, r.Secret)
	if err != nil {
		return nil, err
	}
	vm, err := d.named(spec, r.Machine)
	if err != nil {
		return nil, err
	}
	if !vm.Initialized {
		vm.Initialized = true
		if err := d.Write(vm); err != nil {
			return nil, status.Error(codes.Uninitialized, err.Error())
		}
	}
	return vm.answers(nil).InitializeMachine(ctx, r)
}

// DeleteMachine deletes by the id, and does not compare tags.
func (d *Driver) DeleteMachine(ctx context.Context, r *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	if _, err := request(r.MachineClass, r.Secret); err != nil {
		return nil, err
	}
	switch err := os.Remove(d.path(r.Machine.Spec.ProviderID)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, status.Error(codes.NotFound, "no VM has this id")
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := d.count(); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return VM{ProviderID: r.Machine.Spec.ProviderID}.answers(nil).DeleteMachine(ctx, r)
}

// GetMachineStatus finds a VM by its name.
func (d *Driver) GetMachineStatus(
	ctx context.Context, r *driver.GetMachineStatusRequest,
) (*driver.GetMachineStatusResponse, error) {
	spec, err := request(r.MachineClass, r.Secret)
	if err != nil {
		return nil, err
	}
	vm, err := d.named(spec, r.Machine)
	if err != nil {
		return nil, err
	}
	if !vm.Initialized {
		return vm.answers(status.Error(codes.Uninitialized, "the source/destination check is on")).GetMachineStatus(ctx, r)
	}
	return vm.answers(nil).GetMachineStatus(ctx, r)
}

// ListMachines lists the VMs, and the parts of others.
func (d *Driver) ListMachines(_ context.Context, r *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	spec, err := request(r.MachineClass, r.Secret)
	if err != nil {
		return nil, err
	}
	vms, err := d.read(spec)
	if err != nil {
		return nil, err
	}
	list := make(map[string]string, len(vms))
	for _, vm := range vms {
		list[vm.ProviderID] = vm.Name
	}
	return &driver.ListMachinesResponse{MachineList: list}, nil
}

// GetVolumeIDs returns the handles of the platform's own volumes.
func (d *Driver) GetVolumeIDs(_ context.Context, r *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	var ids []string
	for _, spec := range r.PVSpecs {
		if spec.CSI != nil && spec.CSI.Driver == VolumeDriver {
			ids = append(ids, spec.CSI.VolumeHandle)
		}
	}
	return &driver.GetVolumeIDsResponse{VolumeIDs: ids}, nil
}

// GenerateMachineClassForMigration copies the size of an old class.
func (d *Driver) GenerateMachineClassForMigration(
	ctx context.Context, r *driver.GenerateMachineClassForMigrationRequest,
) (*driver.GenerateMachineClassForMigrationResponse, error) {
	old, isObject := r.ProviderSpecificMachineClass.(*unstructured.Unstructured)
	if !isObject || r.ClassSpec.Kind != "FakeClass" {
		return nil, status.Error(codes.Internal, "no FakeClass")
	}
	size, _, err := unstructured.NestedString(old.Object, "spec", "size")
	if err != nil || size == "" {
		return nil, status.Error(codes.Internal, "spec.size must be a text")
	}
	r.MachineClass.ProviderSpec.Raw, err = json.Marshal(map[string]string{"size": size})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return (&driver.FakeDriver{}).GenerateMachineClassForMigration(ctx, r)
}

func (d *Driver) path(providerID string) string {
	return filepath.Join(d.Folder, filepath.Base(providerID)+".json")
}

// Read returns a VM.
func (d *Driver) Read(providerID string) (VM, error) {
	var vm VM
	text, err := os.ReadFile(d.path(providerID))
	if err != nil {
		return vm, err
	}
	return vm, json.Unmarshal(text, &vm)
}

// Write makes a VM or replaces it.
func (d *Driver) Write(vm VM) error {
	text, err := json.Marshal(vm)
	if err != nil {
		return err
	}
	unfinished := d.path(vm.ProviderID) + ".unfinished"
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(unfinished, d.path(vm.ProviderID)), d.count())
}

// Changes returns the number of changes so far.
func (d *Driver) Changes() (int, error) {
	found, err := os.Stat(filepath.Join(d.Folder, "changes"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int(found.Size()), nil
}

func (d *Driver) count() error {
	file, err := os.OpenFile(filepath.Join(d.Folder, "changes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write([]byte{'.'})
	return errors.Join(err, file.Close())
}
