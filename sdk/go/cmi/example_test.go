package cmi_test

import (
	"context"
	"errors"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// spec has the fields that users write in providerSpec.
type spec struct {
	Size   string            `json:"size" cmi:"enum=small|large" jsonschema:"size of the VM"`
	DiskGB int               `json:"diskGB,omitempty" cmi:"min=10,max=1000"`
	Labels map[string]string `json:"labels,omitempty" cmi:"hot"`
}

// SetDefaults sets the fields that a user leaves out.
func (s *spec) SetDefaults() { s.DiskGB = 20 }

// Validate has the rules that the type does not express.
func (s *spec) Validate() error {
	if s.Size == "small" && s.DiskGB > 100 {
		return cmi.OutOfRange("/diskGB", "is %d; a small VM has at most 100", s.DiskGB)
	}
	return nil
}

// platform calls the API of a VM platform.
type platform struct{}

var errNoAPI = errors.New("the example has no API")

// Find looks VMs up by their tags.
func (platform) Find(ctx context.Context, id cmi.Identity, _ spec) ([]*cmi.VM, error) {
	token, err := cmi.SecretsOf(ctx).Need("token")
	if err != nil {
		return nil, err // UNAUTHENTICATED, with the name of the key
	}
	_, _ = token, id
	return nil, cmi.Unavailable("the API does not answer").Because(errNoAPI)
}

// Create stores id.Tags in the request that makes the VM, with a client token.
func (platform) Create(_ context.Context, id cmi.Identity, _ spec, boot cmi.Bootstrap) (*cmi.VM, error) {
	_, _, _ = id.Token(), id.Tags, boot.UserData
	return nil, cmi.Exhausted("the zone has no more VMs")
}

// Delete orders the deletion. The package waits for its end.
func (platform) Delete(context.Context, *cmi.VM) error { return cmi.ErrGone }

// List lists the VMs of a cluster.
func (platform) List(context.Context, string, spec) ([]*cmi.VM, error) { return nil, nil }

// Stop makes the driver offer ShutDownMachine.
func (platform) Stop(context.Context, *cmi.VM) error { return nil }

// Update makes the driver offer UpdateMachine.
func (platform) Update(context.Context, *cmi.VM, cmi.Change[spec]) error { return nil }

func ExampleMain() {
	cmi.Main(cmi.Info{Name: "acme.example.com", Version: "v0.1.0"}, platform{})
}
