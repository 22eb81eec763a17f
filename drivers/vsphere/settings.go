package main

import (
	"context"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// settingsVariable names the file with the settings of the driver.
const settingsVariable = "VSPHERE_DRIVER_CONFIG"

// settings are what operators of the driver decide for all users.
type settings struct {
	// Default is the placement of specs that lack one.
	Default        placement `json:"default,omitempty"`
	FailureDomains []domain  `json:"failureDomains,omitempty"`
}

// domain is a failure domain: a placement that replaces the spec's.
type domain struct {
	Name string `json:"name"`
	// WorkersOnly keeps control planes away.
	WorkersOnly bool      `json:"workersOnly,omitempty"`
	Placement   placement `json:"placement"`
}

// readSettings reads the file of the settings, if there is one.
func readSettings(path string) (settings, error) {
	var read settings
	if path == "" {
		return read, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return read, fmt.Errorf("cannot read the settings: %w", err)
	}
	if err := yaml.UnmarshalStrict(text, &read); err != nil {
		return read, fmt.Errorf("cannot read the settings in %s: %w", path, err)
	}
	seen := map[string]bool{}
	for _, found := range read.FailureDomains {
		if found.Name == "" || seen[found.Name] {
			return read, fmt.Errorf("%s: each failure domain needs a unique name; got %q", path, found.Name)
		}
		seen[found.Name] = true
	}
	return read, nil
}

// placement returns where a spec's VM is placed: the failure domain's values, then the spec's, then the default ones.
func (b *backend) placement(s spec) (placement, error) {
	where := s.placement.over(b.settings.Default)
	if s.FailureDomain == "" {
		return where, nil
	}
	for _, known := range b.settings.FailureDomains {
		if known.Name == s.FailureDomain {
			return known.Placement.over(where), nil
		}
	}
	return placement{}, cmi.Invalid("/failureDomain", "the driver has no failure domain %s", s.FailureDomain)
}

// Zones returns the driver's failure domains.
func (b *backend) Zones(ctx context.Context, _ spec) ([]cmi.Zone, error) {
	if err := b.authorized(ctx); err != nil {
		return nil, err
	}
	zones := make([]cmi.Zone, len(b.settings.FailureDomains))
	for i, known := range b.settings.FailureDomains {
		zones[i] = cmi.Zone{Name: known.Name, ControlPlane: !known.WorkersOnly}
		if known.Placement.Datacenter != "" {
			zones[i].Attributes = map[string]string{"datacenter": known.Placement.Datacenter}
		}
	}
	return zones, nil
}
