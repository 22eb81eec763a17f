// A driver for VMware vSphere on the kit of sdk/go. Its VMs are clones of a VM template or of a content library item.
package main

import (
	"fmt"
	"os"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// version is set by the build.
var version = "v0.0.0"

func info() cmi.Info {
	return cmi.Info{Name: "vsphere.capcmi.io", Version: version, ListHasState: true}
}

func main() {
	settings, err := readSettings(os.Getenv(settingsVariable))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cmi.Main(info(), newBackend(settings))
}

// backend is all vCenters that credentials of calls name.
type backend struct {
	settings settings
	sessions *sessions
}

func newBackend(found settings) *backend {
	return &backend{settings: found, sessions: newSessions()}
}

var (
	_ cmi.Backend[spec]     = &backend{}
	_ cmi.Initializer[spec] = &backend{}
	_ cmi.Zoner[spec]       = &backend{}
	_ cmi.Sizer[spec]       = &backend{}
	_ cmi.Stopper           = &backend{}
	_ cmi.Starter           = &backend{}
	_ cmi.Restarter         = &backend{}
	_ cmi.VolumeFinder      = &backend{}
)
