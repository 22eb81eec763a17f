package cmitest

import (
	"encoding/json"
	"maps"
	"slices"
)

// Suite describes a back end to the conformance suite. The fields are settings of `capcmi conformance`; its
// documentation explains them. A change is a JSON merge patch on ProviderSpec.
type Suite struct {
	// ProviderSpec is the smallest spec that creates a VM. The only required field.
	ProviderSpec any `json:"providerSpec"`
	// Secrets are the credentials of every call, at least 12 bytes each.
	Secrets map[string]string `json:"secrets,omitempty"`
	// PublicSecretKeys are the keys of values that are not secret.
	PublicSecretKeys []string `json:"publicSecretKeys,omitempty"`
	// BadSecrets are missing or wrong credentials. Each must be UNAUTHENTICATED.
	BadSecrets []map[string]string `json:"badSecrets,omitempty"`
	// RestrictedSecrets are valid credentials without rights.
	RestrictedSecrets map[string]string `json:"restrictedSecrets,omitempty"`
	// MandatoryFields are JSON pointers to required fields. Run adds those that follow from the type of the spec.
	MandatoryFields []string `json:"mandatoryFields,omitempty"`
	// InvalidSpecs are changes that make the spec invalid. Run adds those that follow from the type of the spec.
	InvalidSpecs []any `json:"invalidSpecs,omitempty"`
	// OutOfRangeSpecs are changes that ask for a size that does not exist. Run adds those above a `max` of the spec.
	OutOfRangeSpecs []any `json:"outOfRangeSpecs,omitempty"`
	// QuotaBreakingSpec is a change that exceeds a quota.
	QuotaBreakingSpec any `json:"quotaBreakingSpec,omitempty"`
	// FullFailureDomain is a failure domain without room for ProviderSpec, while the others have room.
	FullFailureDomain string `json:"fullFailureDomain,omitempty"`
	// IncompatibleChange is a change that describes another VM.
	IncompatibleChange any `json:"incompatibleChange,omitempty"`
	// StaticAddresses are free addresses, for a spec that takes static addresses.
	StaticAddresses *FreeAddresses `json:"staticAddresses,omitempty"`
	// HotUpdates are changes that Update can make.
	HotUpdates []any `json:"hotUpdates,omitempty"`
	// OwnVolumes are PersistentVolumeSpecs of the back end, with the ids that VolumeID returns.
	OwnVolumes []Volume `json:"-"`
	// ForeignVolumes are PersistentVolumeSpecs of others.
	ForeignVolumes []any `json:"-"`
	// Migration is a sample class for Migrate.
	Migration *Migration `json:"migration,omitempty"`
	// UniqueNames says that the back end allows one VM for each name.
	UniqueNames bool `json:"uniqueNames,omitempty"`
	// LongestName is the longest name of a machine. Zero: 63.
	LongestName int `json:"longestName,omitempty"`
	// ManyMachines is the number of VMs in a long list: more than a page of the back end. Zero: 25.
	ManyMachines int `json:"manyMachines,omitempty"`
	// Parallel is the number of parallel cases. Zero: 8.
	Parallel int `json:"parallel,omitempty"`
	// CallSeconds is how long a call may take. Zero: 300.
	CallSeconds float64 `json:"callSeconds,omitempty"`
	// ShutDownSeconds is how long a guest may take to stop. Zero: 300.
	ShutDownSeconds float64 `json:"shutDownSeconds,omitempty"`

	// Require is the required verdict: `cmi.v1`, `basic` or `full`. Empty: `full`.
	Require string `json:"-"`
	// Only selects cases or rules by name. Empty: all.
	Only []string `json:"-"`
}

// FreeAddresses are five consecutive free addresses.
type FreeAddresses struct {
	// First is the first address.
	First string `json:"first"`
	// Prefix is the length of the prefix of their network.
	Prefix int `json:"prefix"`
	// Gateway is empty in a network without one.
	Gateway string `json:"gateway,omitempty"`
	// Network is the network of the VM, as users of the driver name it. Empty: the first one.
	Network string `json:"network,omitempty"`
}

// Volume is a volume of the back end.
type Volume struct {
	Spec any    `json:"spec"`
	ID   string `json:"volumeId"`
}

// Migration is a machine class of the platform's own kind, and the class that Migrate makes of it.
type Migration struct {
	APIGroup string `json:"apiGroup"`
	Kind     string `json:"kind"`
	Class    any    `json:"class"`
	// Expected is the result for a class with `metadata: {name: kept}`.
	Expected any `json:"expected"`
	// Broken are classes that cannot be converted.
	Broken []any `json:"broken,omitempty"`
}

// configuration is the file that capcmi reads.
type configuration struct {
	Suite
	NoCredentials     bool                `json:"noCredentials"`
	PersistentVolumes *persistentVolumes  `json:"persistentVolumes,omitempty"`
	Hooks             map[string][]string `json:"hooks"`
	Logs              []string            `json:"logs"`
}

type persistentVolumes struct {
	Own     []Volume `json:"own,omitempty"`
	Foreign []any    `json:"foreign,omitempty"`
}

func (s Suite) configuration(schema json.RawMessage) (configuration, error) {
	var fields struct {
		Properties map[string]struct {
			Type    string
			Maximum *float64
		}
		Required []string
	}
	if err := json.Unmarshal(schema, &fields); err != nil {
		return configuration{}, err
	}
	made := configuration{Suite: s, NoCredentials: len(s.Secrets) == 0}
	made.MandatoryFields = slices.Clone(s.MandatoryFields)
	for _, name := range fields.Required {
		made.MandatoryFields = append(made.MandatoryFields, "/"+name)
	}
	made.InvalidSpecs = append(slices.Clone(s.InvalidSpecs), map[string]any{"no-such-field": 1})
	made.OutOfRangeSpecs = slices.Clone(s.OutOfRangeSpecs)
	for _, name := range slices.Sorted(maps.Keys(fields.Properties)) {
		field, wrong := fields.Properties[name], any("a text")
		if field.Type == "string" {
			wrong = 7
		}
		made.InvalidSpecs = append(made.InvalidSpecs, map[string]any{name: wrong})
		if field.Maximum != nil {
			made.OutOfRangeSpecs = append(made.OutOfRangeSpecs, map[string]any{name: *field.Maximum + 1})
		}
	}
	if len(s.OwnVolumes)+len(s.ForeignVolumes) > 0 {
		made.PersistentVolumes = &persistentVolumes{s.OwnVolumes, s.ForeignVolumes}
	}
	return made, nil
}
