package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestFailureDomainReplacesThePlacement(t *testing.T) {
	of := placement{
		Datacenter: "a", Cluster: "c", ResourcePool: "p", Folder: "f", Datastore: "d", Networks: []string{"n"}, Template: "t",
	}
	got := placement{Cluster: "c2", DatastoreCluster: "dc2", LibraryItem: "l/i"}.over(of)
	want := placement{
		Datacenter: "a", Cluster: "c2", Folder: "f", DatastoreCluster: "dc2", Networks: []string{"n"}, LibraryItem: "l/i",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := (placement{}).over(of); !reflect.DeepEqual(got, of) {
		t.Errorf("got %+v", got)
	}
}

func TestPathsAreBelowTheDatacenter(t *testing.T) {
	where := placement{Datacenter: "region/dc-a"}
	for want, parts := range map[string][]string{
		"/region/dc-a/vm":                  {""},
		"/region/dc-a/vm/nodes":            {"nodes"},
		"/region/dc-a/vm/nodes/one":        {"nodes", "one"},
		"/region/dc-a/vm/templates/debian": {"/region/dc-a/vm/templates/debian"},
	} {
		if got := where.path(vmFolder, parts...); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestFileOfSettings(t *testing.T) {
	read := func(text string) (settings, error) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return readSettings(path)
	}
	got, err := read("default: {cluster: c}\n" +
		"failureDomains: [{name: a, workersOnly: true, placement: {datacenter: dc-a, networks: [nodes]}}]\n")
	must(t, err)
	want := settings{
		Default: placement{Cluster: "c"},
		FailureDomains: []domain{
			{Name: "a", WorkersOnly: true, Placement: placement{Datacenter: "dc-a", Networks: []string{"nodes"}}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	for text, problem := range map[string]string{
		"failureDomains: [{name: a, colour: blue}]":   "colour",
		"failureDomains: [{name: a}, {name: a}]":      "a unique name",
		"failureDomains: [{placement: {cluster: c}}]": "a unique name",
		"default: {datastores: [a]}":                  "datastores",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	if got, err := readSettings(""); err != nil || !reflect.DeepEqual(got, settings{}) {
		t.Errorf("got %v, %v", got, err)
	}
}
