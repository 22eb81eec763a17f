//go:build unix

package cmitest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long a killed driver may take to end.
const endsWithin = 30 * time.Second

// start starts the driver. It outlives this process, which may be a hook.
func (p process) start() error {
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	driver := exec.Command(p.command[0], slices.Concat(p.command[1:], []string{serveMode})...)
	driver.Stdout, driver.Stderr = log, log
	driver.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := driver.Start(); err != nil {
		return fmt.Errorf("cannot start the driver: %w", err)
	}
	go func() { _ = driver.Wait() }() // its log has the reason of its end
	return os.WriteFile(p.pid(), []byte(strconv.Itoa(driver.Process.Pid)), 0o600)
}

// kill ends the driver without warning, and returns when nothing listens on its socket.
func (p process) kill() error {
	text, err := os.ReadFile(p.pid())
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has not been started
	}
	pid, conversion := strconv.Atoi(strings.TrimSpace(string(text)))
	if err = errors.Join(err, conversion); err != nil {
		return fmt.Errorf("cannot tell the driver's process: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot kill the driver: %w", err)
	}
	for deadline := time.Now().Add(endsWithin); ; time.Sleep(10 * time.Millisecond) {
		connection, err := net.Dial("unix", p.socket())
		if err != nil {
			return nil
		}
		if err := connection.Close(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the driver, process %d, has not ended within %s", pid, endsWithin)
		}
	}
}

// end removes what the run has made.
func (p process) end() error { return errors.Join(p.kill(), os.RemoveAll(p.folder)) }

func isAlive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
