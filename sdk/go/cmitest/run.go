//go:build unix

// Package cmitest runs the conformance suite of the Common Machine Interface from go test.
//
//	func TestConformance(t *testing.T) {
//		cmitest.Run(t, info, &backend{}, cmitest.Suite{ProviderSpec: map[string]any{"size": "small"}})
//	}
//
// [Run] starts the driver as a process and runs `capcmi conformance` against it, with every hook. The driver and the hooks
// are the test program itself, started again: each runs the same test up to Run. So a back end must keep its VMs outside
// of the process. [Shared] passes a folder or an address to all processes.
//
// With `go test -race`, a race in the driver fails the test.
//
// The variable CAPCMI names the program capcmi. Without it, the program is on the PATH.
package cmitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/internal/faults"
)

// Environment of the processes of a run.
const (
	folderVariable = "CMITEST_FOLDER"
	parentVariable = "CMITEST_PARENT"
	sharedPrefix   = "CMITEST_SHARED_"
)

// The first argument of the processes that a run starts.
const (
	serveMode = "cmitest-serve"
	hookMode  = "cmitest-hook"
)

// Shared returns the same text in every process of a run. Only the first process calls the function: it makes a folder or
// starts a server.
func Shared(t *testing.T, name string, first func() string) string {
	t.Helper()
	if value, ok := os.LookupEnv(sharedPrefix + name); ok {
		return value
	}
	value := first()
	t.Setenv(sharedPrefix+name, value)
	return value
}

// Run runs the suite against a back end, with a subtest for each case. It must come last in its test.
func Run[Spec any](t *testing.T, info cmi.Info, backend cmi.Backend[Spec], suite Suite) {
	t.Helper()
	switch flag.Arg(0) {
	case serveMode:
		exit(serve(info, backend))
	case hookMode:
		exit(hooks[Spec]{info, backend, suite}.run(flag.Args()[1:]))
	}
	capcmi := find(t)
	run, err := newRun(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := run.end(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv(folderVariable, run.folder)
	t.Setenv(parentVariable, strconv.Itoa(os.Getpid()))
	schema, err := cmi.Schema[Spec]()
	if err != nil {
		t.Fatal(err)
	}
	config, err := suite.configuration(schema)
	if err != nil {
		t.Fatal(err)
	}
	config.Hooks = hooks[Spec]{info, backend, suite}.commands(run.command)
	config.Logs = []string{run.log()}
	if err := run.start(); err != nil {
		t.Fatal(err)
	}
	run.judge(t, capcmi, config)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func find(t *testing.T) string {
	t.Helper()
	name := os.Getenv("CAPCMI")
	if name == "" {
		name = "capcmi"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("the conformance suite needs the program capcmi: install it, or set CAPCMI to its path: %v", err)
	}
	return path
}

// process is a run, as each of its processes knows it.
type process struct {
	folder  string
	command []string
}

func newRun(test string) (process, error) {
	program, err := os.Executable()
	if err != nil {
		return process{}, err
	}
	// A short path: that of a Unix socket has at most 107 bytes.
	folder, err := os.MkdirTemp("", "cmitest")
	if err != nil {
		return process{}, err
	}
	run := process{folder, []string{program, "-test.run=^" + strings.ReplaceAll(test, "/", "$/^") + "$"}}
	return run, run.faults().Make()
}

func (p process) faults() faults.Folder { return faults.Folder(filepath.Join(p.folder, "faults")) }
func (p process) log() string           { return filepath.Join(p.folder, "driver.log") }
func (p process) pid() string           { return filepath.Join(p.folder, "driver.pid") }
func (p process) socket() string        { return filepath.Join(p.folder, "driver.sock") }
func (p process) endpoint() string      { return "unix://" + p.socket() }

// judge runs the suite and reports each case.
func (p process) judge(t *testing.T, capcmi string, config configuration) {
	t.Helper()
	settings, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file, report := filepath.Join(p.folder, "suite.json"), filepath.Join(p.folder, "report.json")
	if err := os.WriteFile(file, settings, 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"conformance", "--endpoint", p.endpoint(), "--config", file, "--wait", "30s", "--json", report}
	if len(config.Only) > 0 {
		arguments = append(arguments, "--only", strings.Join(config.Only, ","))
	} else {
		arguments = append(arguments, "--require", required(config.Suite))
	}
	output, failure := exec.CommandContext(t.Context(), capcmi, arguments...).CombinedOutput()
	subtests(t, report)
	text := strings.TrimSpace(string(output))
	lines := strings.Split(text, "\n")
	t.Log(strings.Join(lines[max(0, len(lines)-6):], "\n"))
	driver, err := os.ReadFile(p.log())
	if bytes.Contains(driver, []byte("WARNING: DATA RACE")) {
		t.Errorf("the race detector found a race in the driver:\n%s", driver)
	}
	if failure == nil && err == nil {
		return
	}
	t.Errorf("%s %s: %v\n%s\n\nthe driver's log ends:\n%s", capcmi, strings.Join(arguments, " "), failure, text,
		last(string(driver), 4<<10))
	if err != nil {
		t.Error(err)
	}
}

func required(suite Suite) string {
	if suite.Require == "" {
		return "full"
	}
	return suite.Require
}

func last(text string, most int) string { return text[max(0, len(text)-most):] }

// subtests reports the cases of the suite's report. There is none when the suite could not begin.
func subtests(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var report struct {
		Cases []struct{ Name, Title, Verdict, Reason string }
	}
	if err = errors.Join(err, json.Unmarshal(text, &report)); err != nil {
		t.Errorf("cannot read the report %s: %v", path, err)
	}
	for _, found := range report.Cases {
		t.Run(found.Name, func(t *testing.T) {
			switch found.Verdict {
			case "passed":
			case "skipped":
				t.Skip(found.Reason)
			default:
				t.Errorf("%s: %s: %s", found.Title, found.Verdict, found.Reason)
			}
		})
	}
}

// serve serves the back end in a process that the suite may kill.
func serve[Spec any](info cmi.Info, backend cmi.Backend[Spec]) error {
	run := process{folder: os.Getenv(folderVariable)}
	faults.Active = run.faults()
	parent, err := strconv.Atoi(os.Getenv(parentVariable))
	if err != nil {
		return fmt.Errorf("the variable %s: %w", parentVariable, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		// A test that was killed leaves no driver behind.
		for ; isAlive(parent); time.Sleep(time.Second) {
		}
		cancel()
	}()
	return cmi.Serve(ctx, info, backend, cmi.Options{Endpoint: run.endpoint()})
}
