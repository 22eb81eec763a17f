package mcmbridge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// TagForm has the names of the tags that a driver compares.
type TagForm struct {
	// Cluster and Role begin the names of the two tags. The id of the cluster and the role follow.
	Cluster, Role string
	// Slash replaces the slash in the names of all tags, for platforms that forbid it.
	Slash string
}

var (
	// SlashTags is the form of AWS: `kubernetes.io/cluster/ID` and `kubernetes.io/role/node`.
	SlashTags = TagForm{Cluster: "kubernetes.io/cluster/", Role: "kubernetes.io/role/", Slash: "/"}
	// DashTags is the form of Azure and OpenStack: `kubernetes.io-cluster-ID` and `kubernetes.io-role-node`.
	DashTags = TagForm{Cluster: "kubernetes.io-cluster-", Role: "kubernetes.io-role-", Slash: "-"}
)

// role is the part of a role's tag after its beginning.
type role string

// everyMachine is the role of all VMs of a cluster, also of those that MCM made.
const everyMachine role = "node"

func machineRole(id cmi.Identity) role { return role("machine-" + digest(id.Machine)) }

func specRole(id cmi.Identity, spec cmi.OpenSpec) (role, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encoding the provider spec: %w", err)
	}
	return role("spec-" + digest(id.Machine+"\x00"+string(text))), nil
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// filter returns the tags of a class that means the VMs of a cluster with a role.
func (f TagForm) filter(cluster string, roles ...role) map[string]string {
	tags := map[string]string{f.Cluster + cluster: "1"}
	for _, role := range roles {
		tags[f.Role+string(role)] = "1"
	}
	return tags
}

// all returns the tags of a new VM.
func (f TagForm) all(id cmi.Identity, spec cmi.OpenSpec) (map[string]string, error) {
	roles := []role{everyMachine}
	if id.Machine != "" {
		bySpec, err := specRole(id, spec)
		if err != nil {
			return nil, err
		}
		roles = append(roles, machineRole(id), bySpec)
	}
	tags := f.filter(id.Cluster, roles...)
	for name, value := range id.Tags {
		tags[strings.ReplaceAll(name, "/", f.Slash)] = value
	}
	return tags, nil
}

// check refuses a user's tag that the driver could compare in place of a tag of the bridge.
func (f TagForm) check(id cmi.Identity) error {
	own := f.filter(id.Cluster, everyMachine)
	for name := range id.Tags {
		shown := strings.ReplaceAll(name, "/", f.Slash)
		_, isOwn := own[shown]
		if !isOwn && (strings.Contains(shown, f.Cluster) || strings.Contains(shown, f.Role)) {
			pointer := "/tags/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
			return cmi.Invalid(pointer, "the driver sets the tags %s… and %s… itself: remove it", f.Cluster, f.Role)
		}
	}
	return nil
}
