// A driver in Go, as docs/drivers/languages.md explains it. Its back end is a folder with a file for each VM.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	capcmi "example.com/go-driver/gen/capcmi/v1"
	cmi "example.com/go-driver/gen/cmi/v1"
)

const (
	// The largest request has a provider spec of 1 MiB and secrets of 2 MiB, twice in UpdateMachine. gRPC takes
	// 4 MiB unless told otherwise.
	mostRequestBytes = 5 << 20
	// How long running calls may take to end after SIGTERM.
	grace = 10 * time.Second
)

func main() {
	log.SetFlags(log.LstdFlags | log.LUTC)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	folder := os.Getenv("GO_DRIVER_CLOUD")
	if folder == "" {
		return errors.New("GO_DRIVER_CLOUD has to name the folder that the VMs are kept in")
	}
	cloud, err := openCloud(folder)
	if err != nil {
		return err
	}
	endpoint := os.Getenv("CMI_ENDPOINT")
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(mostRequestBytes),
		grpc.UnaryInterceptor(guarded),
	}
	if strings.HasPrefix(endpoint, "tls://") {
		credentials, err := mutualTLS()
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials))
	}
	listener, err := listen(endpoint)
	if err != nil {
		return err
	}
	server := grpc.NewServer(options...)
	machines := &machineServer{cloud: cloud}
	cmi.RegisterIdentityServer(server, &identityServer{cloud: cloud})
	cmi.RegisterMachineServer(server, machines)
	capcmi.RegisterMachineExtensionServer(server, &extensionServer{machines: machines})
	healthServer := health.NewServer()
	healthpb.RegisterHealthServer(server, healthServer)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Printf("serving at %s", listener.Addr())
	select {
	case err := <-served:
		return fmt.Errorf("serving ended: %w", err)
	case <-ctx.Done():
	}
	// A watcher of the health would keep the server from its end.
	healthServer.Shutdown()
	late := time.AfterFunc(grace, server.Stop)
	defer late.Stop()
	server.GracefulStop()
	return nil
}

// listen takes the address that CMI_ENDPOINT names.
func listen(endpoint string) (net.Listener, error) {
	for _, scheme := range []string{"tcp://", "tls://"} {
		if address, ok := strings.CutPrefix(endpoint, scheme); ok {
			return net.Listen("tcp", address)
		}
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !strings.HasPrefix(path, "/") {
		return nil, errors.New("CMI_ENDPOINT has to be unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT")
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The socket is for this user alone from its first moment on.
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	return net.Listen("unix", path)
}

// removeStale removes the socket that a process has left which was killed: binding to it fails. One on which a
// process listens stays, and so does what is no socket.
func removeStale(path string) error {
	found, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if found.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	connection, err := net.Dial("unix", path)
	if err == nil {
		connection.Close()
		return fmt.Errorf("another process listens on %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("whether a process listens on %s can't be told: %w", path, err)
	}
	return os.Remove(path)
}

// guarded turns a panic, which would end the process and every call in it, into INTERNAL, and logs what was called.
// The request stays out of the log, and so does the value of the panic: both may hold secrets.
func guarded(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	begun := time.Now()
	defer func() {
		if recover() != nil {
			log.Printf("%s panicked\n%s", call.FullMethod, debug.Stack())
			answer, err = nil, status.Error(codes.Internal, "a bug in the driver: its log has the place")
		}
		log.Printf("%s %s %s", call.FullMethod, status.Code(err), time.Since(begun).Round(time.Microsecond))
	}()
	return handler(ctx, request)
}
