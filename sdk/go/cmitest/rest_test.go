//go:build unix

package cmitest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmitest"
)

type restSpec struct {
	Size   string `json:"size" cmi:"enum=small|large|xlarge"`
	DiskGB int    `json:"diskGB,omitempty" cmi:"min=10,max=1000"`
}

// restBackend is a driver for a REST API, as an author writes it after the quickstart.
type restBackend struct{ api string }

// The kit keeps the contract for a platform that is slow, limited and eventually consistent.
func TestREST(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the whole conformance suite")
	}
	api := cmitest.Shared(t, "api", func() string { return newRESTCloud(t) })
	info := cmi.Info{Name: "rest.example.com", Version: "v0.1.0", ConsistencyWindow: 150 * time.Millisecond}
	cmitest.Run(t, info, &restBackend{api}, cmitest.Suite{
		ProviderSpec:       map[string]any{"size": "small"},
		Secrets:            map[string]string{"token": "the-right-token"},
		BadSecrets:         []map[string]string{{}, {"token": "the-wrong-token"}},
		RestrictedSecrets:  map[string]string{"token": "the-token-without-rights"},
		IncompatibleChange: map[string]any{"size": "large"},
		QuotaBreakingSpec:  map[string]any{"size": "xlarge"},
		LongestName:        253,
		ManyMachines:       45,
	})
}

// call makes a request and maps its status.
func (b *restBackend) call(ctx context.Context, method, path, key string, in, out any) error {
	token, err := cmi.SecretsOf(ctx).Need("token")
	if err != nil {
		return err
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, b.api+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(response.Body).Decode(out)
	case http.StatusUnauthorized:
		return cmi.Unauthenticated("the API does not know the token")
	case http.StatusForbidden:
		return cmi.PermissionDenied("the token may not do this")
	case http.StatusNotFound:
		return cmi.ErrGone
	case http.StatusTooManyRequests:
		return cmi.Exhausted("the quota is used up").RetryAfter(time.Minute)
	default:
		return cmi.Unknown("the API answered %s", response.Status)
	}
}

func (b *restBackend) Find(ctx context.Context, id cmi.Identity, spec restSpec) ([]*cmi.VM, error) {
	all, err := b.List(ctx, id.Cluster, spec)
	return slices.DeleteFunc(all, func(vm *cmi.VM) bool { return vm.Name != id.Name }), err
}

func (b *restBackend) List(ctx context.Context, cluster string, _ restSpec) ([]*cmi.VM, error) {
	var vms []*cmi.VM
	query := url.Values{"cluster": {cluster}}
	for {
		var page restList
		if err := b.call(ctx, http.MethodGet, "/vms?"+query.Encode(), "", nil, &page); err != nil {
			return nil, err
		}
		for _, vm := range page.VMs {
			vms = append(vms, restToVM(vm))
		}
		if page.Next == "" {
			return vms, nil
		}
		query.Set("page", page.Next)
	}
}

func (b *restBackend) Create(ctx context.Context, id cmi.Identity, spec restSpec, boot cmi.Bootstrap) (*cmi.VM, error) {
	id.Tags["cluster"] = id.Cluster
	in := restVM{Name: id.Name, Size: spec.Size, Labels: id.Tags, UserData: boot.UserData}
	var made restVM
	if err := b.call(ctx, http.MethodPost, "/vms", id.Token(), in, &made); err != nil {
		return nil, err
	}
	return restToVM(&made), nil
}

func (b *restBackend) Delete(ctx context.Context, vm *cmi.VM) error {
	return b.call(ctx, http.MethodDelete, restPath(vm), "", nil, &restVM{})
}

func (b *restBackend) Stop(ctx context.Context, vm *cmi.VM) error {
	return b.call(ctx, http.MethodPost, restPath(vm)+"/stop", "", nil, &restVM{})
}

func (b *restBackend) UserData(_ context.Context, vm *cmi.VM) ([]byte, error) {
	return vm.Native.(*restVM).UserData, nil
}

func restPath(vm *cmi.VM) string { return "/vms/" + strings.TrimPrefix(vm.ID, "rest:///") }

func restToVM(vm *restVM) *cmi.VM {
	power := map[string]cmi.Power{"running": cmi.Running, "stopped": cmi.Stopped, "deleting": cmi.Stopping}[vm.State]
	return &cmi.VM{ID: "rest:///" + vm.ID, Name: vm.Name, Tags: vm.Labels, Power: power, Native: vm}
}
