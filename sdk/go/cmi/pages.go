package cmi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
)

// The beginning of every page token.
const pageToken = "cmi1:"

const (
	// The most lists that are kept for their next pages.
	mostSnapshots = 16
	// How long a list is kept. A caller that takes longer between two pages costs another list.
	snapshotAge = time.Minute
)

type listedMachine = capcmiv1.ListMachinesPagedResponse_ListedMachine

// page returns the machines after an id, and the token of the next page. The machines are sorted by their ids: the token
// of one list continues another one, also in another process.
func page(machines []*listedMachine, after string, size int) (found []*listedMachine, next string) {
	from, isThere := slices.BinarySearchFunc(machines, after, func(machine *listedMachine, id string) int {
		return strings.Compare(machine.ProviderId, id)
	})
	if isThere {
		from++
	}
	found = machines[from:]
	if size > 0 && len(found) > size {
		found = found[:size]
		next = base64.RawURLEncoding.EncodeToString([]byte(pageToken + found[size-1].ProviderId))
	}
	return found, next
}

func readToken(token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	after, ok := strings.CutPrefix(string(text), pageToken)
	if err != nil || !ok {
		return "", invalid("page_token is not one of this driver")
	}
	return after, nil
}

// snapshots are lists with more pages. They save the back end a list for each page.
type snapshots struct {
	mutex sync.Mutex
	held  map[listKey]snapshot
}

type snapshot struct {
	machines []*listedMachine
	taken    time.Time
}

// listKey identifies the provider spec and the credentials of a list. Nobody continues a list with other credentials.
type listKey [sha256.Size]byte

func listKeyOf(r *capcmiv1.ListMachinesPagedRequest) (listKey, error) {
	text, err := json.Marshal(map[string]any{"spec": r.ProviderSpec, "secrets": r.Secrets})
	if err != nil {
		return listKey{}, Internal("cannot encode the request").Because(err)
	}
	return sha256.Sum256(text), nil
}

func (s *snapshots) find(key listKey) ([]*listedMachine, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.forgetOld()
	found, ok := s.held[key]
	return found.machines, ok
}

// keep replaces the list of a key, and forgets the oldest list above the limit.
func (s *snapshots) keep(key listKey, machines []*listedMachine) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.held == nil {
		s.held = map[listKey]snapshot{}
	}
	s.held[key] = snapshot{machines, time.Now()}
	s.forgetOld()
	if len(s.held) > mostSnapshots {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(s.held)), func(a, b listKey) int {
			return s.held[a].taken.Compare(s.held[b].taken)
		})
		delete(s.held, oldest)
	}
}

func (s *snapshots) forget(key listKey) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.held, key)
}

func (s *snapshots) forgetOld() {
	maps.DeleteFunc(s.held, func(_ listKey, kept snapshot) bool { return time.Since(kept.taken) > snapshotAge })
}
