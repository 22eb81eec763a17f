package cmi

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// listen opens the endpoint and returns the options that secure it.
func listen(options Options) (net.Listener, []grpc.ServerOption, error) {
	scheme, rest, _ := strings.Cut(options.Endpoint, "://")
	switch scheme {
	case "unix":
		listener, err := listenUnix(rest)
		return listener, nil, err
	case "tcp":
		listener, err := net.Listen("tcp", rest)
		if err == nil && !isLoopback(listener.Addr()) {
			options.Logger.Warn("the endpoint has no TLS and is not on loopback: others can read credentials", "endpoint", options.Endpoint)
		}
		return listener, nil, err
	case "tls":
		config, err := options.TLS.config()
		if err != nil {
			return nil, nil, err
		}
		listener, err := net.Listen("tcp", rest)
		return listener, []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, err
	default:
		return nil, nil, fmt.Errorf(
			"the endpoint %q must be unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT; set CMI_ENDPOINT", options.Endpoint)
	}
}

func isLoopback(address net.Addr) bool {
	found, ok := address.(*net.TCPAddr)
	return ok && found.IP.IsLoopback()
}

func listenUnix(path string) (net.Listener, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("the endpoint unix://%s needs an absolute path, such as unix:///run/driver.sock", path)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return listenPrivately(path)
}

// removeStale removes the socket of a killed process, which would make binding fail. It keeps a socket that a process
// listens on, and any other file.
func removeStale(path string) error {
	found, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if found.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket: remove it, or choose another endpoint", path)
	}
	connection, err := net.Dial("unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("another process listens on %s", path), connection.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether a process listens on %s: %w", path, err)
	}
	return os.Remove(path)
}
