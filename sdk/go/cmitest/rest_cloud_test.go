//go:build unix

package cmitest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	restLatency = 3 * time.Millisecond
	// For how long a list may miss a change.
	restLag = 50 * time.Millisecond
	// How long a deletion takes.
	restDeletion = 30 * time.Millisecond
	restPage     = 20
)

// restCloud is a VM platform behind a REST API with latency, quotas, pages, deletions that take time and lists that lag
// behind.
type restCloud struct {
	mutex  sync.Mutex
	vms    []*restVM
	tokens map[string]*restVM
	made   int
}

type restVM struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Size     string            `json:"size"`
	Labels   map[string]string `json:"labels"`
	UserData []byte            `json:"userData"`
	State    string            `json:"state"`

	created, deleted time.Time
}

type restList struct {
	VMs  []*restVM `json:"vms"`
	Next string    `json:"next"`
}

func newRESTCloud(t *testing.T) string {
	cloud := &restCloud{tokens: map[string]*restVM{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /vms", cloud.list)
	mux.HandleFunc("POST /vms", cloud.create)
	mux.HandleFunc("DELETE /vms/{id}", cloud.delete)
	mux.HandleFunc("POST /vms/{id}/stop", cloud.stop)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(restLatency)
		switch r.Header.Get("Authorization") {
		case "Bearer the-right-token":
			mux.ServeHTTP(w, r)
		case "Bearer the-token-without-rights":
			http.Error(w, "forbidden", http.StatusForbidden)
		default:
			http.Error(w, "unknown token", http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func (c *restCloud) create(w http.ResponseWriter, r *http.Request) {
	made := &restVM{}
	if err := json.NewDecoder(r.Body).Decode(made); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if made.Size == "xlarge" {
		w.Header().Set("Retry-After", "60")
		http.Error(w, "the quota has no xlarge VM", http.StatusTooManyRequests)
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	token := r.Header.Get("Idempotency-Key")
	if known := c.tokens[token]; known != nil && known.deleted.IsZero() {
		answer(w, known)
		return
	}
	c.made++
	made.ID, made.State, made.created = fmt.Sprintf("vm-%06d", c.made), "running", time.Now()
	c.vms = append(c.vms, made)
	c.tokens[token] = made
	answer(w, made)
}

// list returns a page of the VMs as they were a moment ago.
func (c *restCloud) list(w http.ResponseWriter, r *http.Request) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	seen := time.Now().Add(-restLag)
	query := r.URL.Query()
	var found []*restVM
	for _, vm := range c.vms {
		isDeleted := !vm.deleted.IsZero() && vm.deleted.Before(seen)
		if vm.created.Before(seen) && !isDeleted && vm.Labels["cluster"] == query.Get("cluster") {
			found = append(found, vm)
		}
	}
	from, _ := strconv.Atoi(query.Get("page")) // none: the first
	page := restList{VMs: found[min(from, len(found)):min(from+restPage, len(found))]}
	if from+restPage < len(found) {
		page.Next = strconv.Itoa(from + restPage)
	}
	answer(w, page)
}

func (c *restCloud) delete(w http.ResponseWriter, r *http.Request) {
	c.change(w, r, func(vm *restVM) {
		if vm.deleted.IsZero() {
			vm.State, vm.deleted = "deleting", time.Now().Add(restDeletion)
		}
	})
}

func (c *restCloud) stop(w http.ResponseWriter, r *http.Request) {
	c.change(w, r, func(vm *restVM) { vm.State = "stopped" })
}

func (c *restCloud) change(w http.ResponseWriter, r *http.Request, change func(*restVM)) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	at := slices.IndexFunc(c.vms, func(vm *restVM) bool { return vm.ID == r.PathValue("id") })
	if at < 0 || !c.vms[at].deleted.IsZero() && c.vms[at].deleted.Before(time.Now()) {
		http.Error(w, "no such VM", http.StatusNotFound)
		return
	}
	change(c.vms[at])
	answer(w, c.vms[at])
}

func answer(w http.ResponseWriter, value any) {
	if err := json.NewEncoder(w).Encode(value); err != nil {
		panic(err)
	}
}
