// Package faults lets the conformance suite cause faults in a driver. Files in a folder cause them: a hook creates and
// removes the files. A production build never sets [Active].
package faults

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Active is the folder with the faults of this process. Empty: there are no faults.
var Active Folder

// Salt makes other client tokens, so that a hook can make a second VM of a machine.
var Salt string

// Folder is a folder with a file for each fault.
type Folder string

// Fault is the name of a file.
type Fault string

// The faults, each with the name of its hook.
const (
	Unavailable    Fault = "unavailable"
	Unknown        Fault = "unknown"
	Internal       Fault = "internal"
	Exhaust        Fault = "exhaust"
	Unhealthy      Fault = "unhealthy"
	Starting       Fault = "starting"
	Slow           Fault = "slow"           // the file holds milliseconds
	FailInitialize Fault = "failInitialize" // the file holds a number of calls
	LoseCreate     Fault = "loseCreate"
	LoseDelete     Fault = "loseDelete"
)

// Make creates the folder, and another beside it for the files that Clear keeps.
func (f Folder) Make() error {
	return errors.Join(os.MkdirAll(string(f), 0o700), os.MkdirAll(f.lasting(""), 0o700))
}

// Set causes a fault. The content is a number, or empty.
func (f Folder) Set(fault Fault, content string) error {
	return os.WriteFile(f.path(string(fault)), []byte(content), 0o600)
}

// Clear ends all faults.
func (f Folder) Clear() error {
	found, err := os.ReadDir(string(f))
	for _, file := range found {
		if removal := os.Remove(f.path(file.Name())); !errors.Is(removal, os.ErrNotExist) {
			err = errors.Join(err, removal)
		}
	}
	return err
}

// Has says whether a fault is set.
func (f Folder) Has(fault Fault) bool {
	if f == "" {
		return false
	}
	_, err := os.Stat(f.path(string(fault)))
	return err == nil
}

// Take says whether a fault is set, and ends it.
func (f Folder) Take(fault Fault) bool {
	return f != "" && os.Remove(f.path(string(fault))) == nil
}

// Count takes one from the number of a fault, and says whether any was left.
func (f Folder) Count(fault Fault) bool {
	left, ok := f.number(fault)
	if !ok || left < 1 {
		return false
	}
	return f.Set(fault, strconv.Itoa(left-1)) == nil
}

// Wait delays a call by the fault [Slow].
func (f Folder) Wait(ctx context.Context) {
	millis, ok := f.number(Slow)
	if !ok {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(millis) * time.Millisecond):
	}
}

// Changed records a change of the back end, and Changes returns their number.
func (f Folder) Changed() error {
	if f == "" {
		return nil
	}
	file, err := os.OpenFile(f.lasting("changes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write([]byte{'.'})
	return errors.Join(err, file.Close())
}

// Changes returns the number of changes so far.
func (f Folder) Changes() (int64, error) {
	found, err := os.Stat(f.lasting("changes"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return found.Size(), nil
}

// Lock forbids every operation on the VMs of a machine, and Unlock allows them again.
func (f Folder) Lock(cluster, machine string) error {
	return os.WriteFile(f.lock(cluster, machine), nil, 0o600)
}

// Unlock ends a lock.
func (f Folder) Unlock(cluster, machine string) error { return os.Remove(f.lock(cluster, machine)) }

// Locked says whether the VMs of a machine are locked.
func (f Folder) Locked(cluster, machine string) bool {
	if f == "" {
		return false
	}
	_, err := os.Stat(f.lock(cluster, machine))
	return err == nil
}

func (f Folder) lock(cluster, machine string) string {
	sum := sha256.Sum256([]byte(cluster + "\x00" + machine))
	return f.lasting(hex.EncodeToString(sum[:]))
}

func (f Folder) number(fault Fault) (int, bool) {
	if f == "" {
		return 0, false
	}
	text, err := os.ReadFile(f.path(string(fault)))
	if err != nil {
		return 0, false
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return number, err == nil
}

// lasting names a file that Clear keeps.
func (f Folder) lasting(name string) string { return filepath.Join(string(f)+".lasting", name) }

func (f Folder) path(name string) string { return filepath.Join(string(f), name) }
