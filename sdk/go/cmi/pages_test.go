package cmi

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
)

// counted is a back end that counts its lists.
type counted struct {
	*fake
	lists atomic.Int32
}

func (c *counted) List(ctx context.Context, cluster string, spec noFields) ([]*VM, error) {
	c.lists.Add(1)
	return c.fake.List(ctx, cluster, spec)
}

func fleetOf(size int) *fake {
	fleet := &fake{}
	for i := range size {
		fleet.vms = append(fleet.vms, vmOf(fmt.Sprintf("fake:///%02d", i), "ours"))
	}
	return fleet
}

func listRequest(token string) *capcmiv1.ListMachinesPagedRequest {
	return &capcmiv1.ListMachinesPagedRequest{
		ProviderSpec: specOf("ours"), Secrets: map[string][]byte{"token": []byte("the-right-token")},
		PageSize: 3, PageToken: token,
	}
}

// A fleet of n VMs with pages of p would otherwise cost n²/p.
func TestAllPagesNeedOneListOfTheBackEnd(t *testing.T) {
	backend := &counted{fake: fleetOf(10)}
	s := serve(t, backend)
	var found, tokens []string
	for token := ""; ; {
		answer, err := s.extension.ListMachinesPaged(patient(t), listRequest(token))
		if err != nil {
			t.Fatal(err)
		}
		for _, machine := range answer.Machines {
			found = append(found, machine.ProviderId)
		}
		if token = answer.NextPageToken; token == "" {
			break
		}
		tokens = append(tokens, token)
	}
	if len(found) != 10 || len(slices.Compact(slices.Clone(found))) != 10 || backend.lists.Load() != 1 {
		t.Errorf("%d lists returned %v", backend.lists.Load(), found)
	}
	// The list is over. A repeat of its second page still continues where the first one ended.
	answer, err := s.extension.ListMachinesPaged(patient(t), listRequest(tokens[0]))
	if err != nil || answer.Machines[0].ProviderId != "fake:///03" || backend.lists.Load() != 2 {
		t.Errorf("%d lists, got %v, %v", backend.lists.Load(), answer, err)
	}
}

func TestFirstPageAndOtherCredentialsListAgain(t *testing.T) {
	backend := &counted{fake: fleetOf(10)}
	s := serve(t, backend)
	first, err := s.extension.ListMachinesPaged(patient(t), listRequest(""))
	if err != nil {
		t.Fatal(err)
	}
	request := listRequest(first.NextPageToken)
	request.Secrets["token"] = []byte("the-wrong-token")
	if _, err := s.extension.ListMachinesPaged(patient(t), request); err != nil || backend.lists.Load() != 2 {
		t.Errorf("other credentials: %d lists, %v", backend.lists.Load(), err)
	}
	if _, err := s.extension.ListMachinesPaged(patient(t), listRequest("")); err != nil || backend.lists.Load() != 3 {
		t.Errorf("a first page: %d lists, %v", backend.lists.Load(), err)
	}
	_, err = s.extension.ListMachinesPaged(patient(t), listRequest("unknown"))
	wantStatus(t, "an unknown token", err, codes.InvalidArgument, "page_token")
}

func TestKeptListsAreLimitedInNumberAndAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists snapshots
		keys := make([]listKey, mostSnapshots+1)
		for i := range keys {
			keys[i][0] = byte(i)
			lists.keep(keys[i], []*listedMachine{{ProviderId: "a"}})
			time.Sleep(time.Second)
		}
		if _, isKept := lists.find(keys[0]); isKept || len(lists.held) != mostSnapshots {
			t.Errorf("%d lists are kept", len(lists.held))
		}
		time.Sleep(snapshotAge - 2*time.Second)
		if _, isKept := lists.find(keys[mostSnapshots]); !isKept {
			t.Error("the newest list is forgotten too early")
		}
		time.Sleep(3 * time.Second)
		if _, isKept := lists.find(keys[mostSnapshots]); isKept || len(lists.held) != 0 {
			t.Errorf("%d old lists are kept", len(lists.held))
		}
	})
}
