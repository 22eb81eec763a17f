//go:build !unix

package cmi

import "net"

// listenPrivately relies on the permissions of the folder: this system has no umask.
func listenPrivately(path string) (net.Listener, error) { return net.Listen("unix", path) }
