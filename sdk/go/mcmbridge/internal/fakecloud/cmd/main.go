// A driver of MCM behind the bridge, for tests. Environment: FAKE_CLOUD, the folder with the VMs.
package main

import (
	"log"
	"os"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/mcmbridge"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/mcmbridge/internal/fakecloud"
)

func main() {
	folder := os.Getenv("FAKE_CLOUD")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		log.Fatal(err)
	}
	info := cmi.Info{Name: "fake.example.com", Version: "v0.1.0"}
	mcmbridge.Main(info, &fakecloud.Driver{Folder: folder}, mcmbridge.Provider(fakecloud.Provider))
}
