//go:build unix

package cmi

import (
	"net"
	"syscall"
)

// listenPrivately makes a socket that only this user may open, from its first moment.
func listenPrivately(path string) (net.Listener, error) {
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	return net.Listen("unix", path)
}
