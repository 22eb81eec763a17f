//go:build cmifaults

package cmi

import (
	"log"
	"os"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// Only a build for tests reads the variable.
func init() {
	folder := faults.Folder(os.Getenv("CAPCMI_FAULTS"))
	if folder == "" {
		return
	}
	if err := folder.Make(); err != nil {
		log.Fatal(err)
	}
	faults.Active = folder
}
