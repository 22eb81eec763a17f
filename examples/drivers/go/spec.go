package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The tags that say which cluster a VM belongs to, and which machine object.
const (
	clusterTag  = "kubernetes.io/cluster"
	identityTag = "capcmi.io/machine"
)

var (
	machineName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	providerID  = regexp.MustCompile(`^folder:///[0-9a-f]{32}$`)
	// The sizes that there are, with the most GB that their root file systems may have.
	sizes = map[string]int64{"small": 100, "large": 1000}
)

const leastRootFsGB = 10

// vmSpec is the provider spec. Two are equal when they ask for the same VM of the same machine.
type vmSpec struct {
	VMPool     string            `json:"vmPool"`
	Size       string            `json:"size"`
	RootFsSize int64             `json:"rootFsSize"`
	Tags       map[string]string `json:"tags"`
}

func (s vmSpec) equal(other vmSpec) bool {
	return s.VMPool == other.VMPool && s.Size == other.Size && s.RootFsSize == other.RootFsSize &&
		maps.Equal(s.Tags, other.Tags)
}

func refused(format string, arguments ...any) error {
	return status.Errorf(codes.InvalidArgument, format, arguments...)
}

// readSpec reads a provider spec in full before anything is done: what is misread makes the wrong VM.
//
// encoding/json takes `VMPOOL` for `vmPool`, replaces bytes that are no UTF-8, and leaves a field as it is where the
// value is null. So names are compared here, and null is refused.
func readSpec(text []byte, required ...string) (vmSpec, error) {
	spec := vmSpec{RootFsSize: leastRootFsGB}
	if !utf8.Valid(text) {
		return spec, refused("ProviderSpec is no UTF-8")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return spec, refused("ProviderSpec is no JSON object")
	}
	var tags map[string]*string
	places := map[string]any{"vmPool": &spec.VMPool, "size": &spec.Size, "rootFsSize": &spec.RootFsSize, "tags": &tags}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		place, known := places[name]
		if !known {
			return spec, refused("ProviderSpec has the field /%s, which is not known", name)
		}
		if err := json.Unmarshal(fields[name], place); err != nil || string(fields[name]) == "null" {
			return spec, refused("ProviderSpec has a value of the wrong type in /%s", name)
		}
	}
	spec.Tags = make(map[string]string, len(tags))
	for name, value := range tags {
		if value == nil {
			return spec, refused("ProviderSpec has null for the tag %s in /tags", name)
		}
		spec.Tags[name] = *value
	}
	if spec.VMPool == "" {
		return spec, refused("ProviderSpec needs a text in /vmPool")
	}
	if spec.Size == "" {
		return spec, refused("ProviderSpec needs a text in /size")
	}
	for _, tag := range required {
		if strings.TrimSpace(spec.Tags[tag]) == "" {
			return spec, refused("ProviderSpec needs the tag %s in /tags", tag)
		}
	}
	return spec, nil
}

// checkSize is for a create alone: what there is may change, and a VM that was made before has to be found and
// deleted all the same.
func (s vmSpec) checkSize() error {
	most, known := sizes[s.Size]
	if !known || s.RootFsSize < 0 {
		return refused("ProviderSpec has the /size %q or a negative /rootFsSize", s.Size)
	}
	if s.RootFsSize < leastRootFsGB || s.RootFsSize > most {
		return status.Errorf(codes.OutOfRange, "ProviderSpec has the /rootFsSize %d; a VM of /size %s has %d to %d",
			s.RootFsSize, s.Size, leastRootFsGB, most)
	}
	return nil
}

// key says which VM a request means.
type key struct {
	cluster, machine, identity string
	// Empty when it is not known.
	id   string
	spec vmSpec
}

// readKey checks what all requests about a machine have.
func readKey(name string, text []byte, id string) (key, error) {
	if len(name) > 253 || !machineName.MatchString(name) {
		return key{}, refused("MachineName has to be a DNS subdomain of 1 to 253 bytes")
	}
	if id != "" && !providerID.MatchString(id) {
		return key{}, refused("ProviderID does not read %s", providerID)
	}
	spec, err := readSpec(text, clusterTag, identityTag)
	if err != nil {
		return key{}, err
	}
	return key{spec.Tags[clusterTag], name, spec.Tags[identityTag], id, spec}, nil
}

func (k key) String() string {
	return fmt.Sprintf("machine %s of cluster %s", k.machine, k.cluster)
}
