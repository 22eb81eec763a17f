//go:build unix

package cmitest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmitest"
)

// brokenVariable lets another test run TestBroken, which must fail.
const brokenVariable = "CMITEST_TEST_BROKEN"

// broken is a back end whose VMs never fit their spec, so that a repeated create fails. It also writes the warning of the
// race detector.
type broken struct{ *everything }

func (b broken) Find(ctx context.Context, id cmi.Identity, spec spec) ([]*cmi.VM, error) {
	vms, err := b.everything.Find(ctx, id, spec)
	for _, vm := range vms {
		vm.Tags[cmi.SpecTag] = "another"
	}
	fmt.Fprintln(os.Stderr, "WARNING: DATA RACE")
	return vms, err
}

func TestBroken(t *testing.T) {
	if os.Getenv(brokenVariable) == "" {
		t.Skip("TestRunFailsForABrokenDriver runs this test")
	}
	folder := cmitest.Shared(t, "folder", t.TempDir)
	cmitest.Run(t, cmi.Info{Name: "broken.example.com", Version: "v1"}, broken{&everything{folder}}, cmitest.Suite{
		ProviderSpec: map[string]any{"size": "small"},
		Secrets:      map[string]string{"token": "the-right-token"},
		Only:         []string{"create-makes-a-vm", "create-again"},
	})
}

func runBroken(t *testing.T, environment ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBroken$", "-test.v")
	command.Env = append(append(os.Environ(), brokenVariable+"=yes"), environment...)
	output, err := command.CombinedOutput()
	if err == nil {
		t.Errorf("the test of a broken driver passed:\n%s", output)
	}
	return string(output)
}

func TestRunFailsForABrokenDriver(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs capcmi")
	}
	output := runBroken(t)
	if !strings.Contains(output, "--- FAIL: TestBroken/create-again") {
		t.Errorf("no case failed:\n%s", output)
	}
	if !strings.Contains(output, "the race detector found a race in the driver") {
		t.Errorf("a race was not reported:\n%s", output)
	}
}

func TestRunNamesTheMissingProgram(t *testing.T) {
	output := runBroken(t, "CAPCMI=/no/such/program")
	if !strings.Contains(output, "install it, or set CAPCMI to its path") {
		t.Errorf("got:\n%s", output)
	}
}
