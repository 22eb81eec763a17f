//go:build cmifaults

package cmi

import (
	"os"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// Only a build for tests reads the variable.
func init() { faults.Active = faults.Folder(os.Getenv("CAPCMI_FAULTS")) }
