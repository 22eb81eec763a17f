package cmi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/cmi/v1"
)

const (
	// The largest request has two provider specs of 1 MiB and secrets of 2 MiB. gRPC accepts 4 MiB by default.
	maxRequest = 5 << 20
	// A request for volume ids has a list of 16 MiB.
	maxVolumesRequest = 20 << 20
	// A caller without a deadline may not hold a machine's lock for longer.
	longestCall = 30 * time.Minute
	// The caller pings during long calls.
	shortestPing = 5 * time.Second

	defaultShutdownTimeout = 20 * time.Second
)

// Options are the settings of [Serve].
type Options struct {
	// Endpoint is `unix:///PATH`, `tcp://HOST:PORT` or `tls://HOST:PORT`. Use TCP in plain text on loopback only: calls
	// carry credentials.
	Endpoint string
	// TLS are the files for an endpoint with TLS.
	TLS TLSFiles
	// ShutdownTimeout limits how long running calls may take to end. Zero: 20 seconds.
	ShutdownTimeout time.Duration
	// Logger gets a line for each call. Nil: the default logger.
	Logger *slog.Logger
}

// Serve serves a back end until the context ends, and then lets running calls end. [Main] adds flags, the environment
// and signals.
func Serve[Spec any](ctx context.Context, info Info, backend Backend[Spec], options Options) error {
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if options.ShutdownTimeout == 0 {
		options.ShutdownTimeout = defaultShutdownTimeout
	}
	driver, err := newDriver(info, backend)
	if err != nil {
		return err
	}
	listener, security, err := listen(options)
	if err != nil {
		return err
	}
	server, healthServer := newServer(driver, options.Logger, security)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	options.Logger.Info("serving", "driver", info.Name, "version", info.Version, "address", listener.Addr().String())
	select {
	case err := <-served:
		return fmt.Errorf("serving ended: %w", err)
	case <-ctx.Done():
	}
	options.Logger.Info("shutting down")
	// A caller that watches the health would keep the server from its end.
	healthServer.Shutdown()
	late := time.AfterFunc(options.ShutdownTimeout, server.Stop)
	defer late.Stop()
	server.GracefulStop()
	return nil
}

func newServer[Spec any](
	driver *driver[Spec], logger *slog.Logger, options []grpc.ServerOption,
) (*grpc.Server, *health.Server) {
	size := maxRequest
	if implements[VolumeFinder](driver.backend) {
		size = maxVolumesRequest
	}
	server := grpc.NewServer(append(options,
		grpc.MaxRecvMsgSize(size),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: shortestPing, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(guard{logger}.intercept),
	)...)
	cmiv1.RegisterIdentityServer(server, driver)
	cmiv1.RegisterMachineServer(server, driver)
	capcmiv1.RegisterMachineExtensionServer(server, driver)
	healthServer := health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, healthServer)
	reflection.Register(server)
	return server, healthServer
}

// guard stands around every call: deadline, panics, codes, secrets and the log.
type guard struct{ logger *slog.Logger }

func (g guard) intercept(
	ctx context.Context, request any, method *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	begun := time.Now()
	call := newCall(request)
	ctx = context.WithValue(ctx, callKey{}, call)
	ctx, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	answer, err := g.recovered(ctx, request, method.FullMethod, handler)
	attributes := []any{"method", method.FullMethod, "took", time.Since(begun).Round(time.Microsecond)}
	if call.machine.Name != "" {
		attributes = append(attributes, "machine", call.machine.Name, "cluster", call.machine.Cluster)
	}
	var known *Error
	if !errors.As(err, &known) {
		g.logger.Log(ctx, level(method.FullMethod, err), "call", append(attributes, "code", status.Code(err).String())...)
		return answer, err
	}
	secrets := scrubberFor(request)
	attributes = append(attributes, "code", known.code.String(), "error", secrets.text(known.Error()))
	g.logger.Log(ctx, level(method.FullMethod, err), "call", attributes...)
	return nil, known.answer(ctx, secrets)
}

// level keeps the calls that arrive every few seconds out of the log.
func level(method string, err error) slog.Level {
	switch {
	case err != nil && status.Code(err) != codes.Unimplemented:
		return slog.LevelWarn
	case method == cmiv1.Identity_Probe_FullMethodName:
		return slog.LevelDebug
	default:
		return slog.LevelInfo
	}
}

// recovered turns a panic into INTERNAL. The value of a panic may hold secrets, and stays out of the log unless it comes
// from the runtime.
func (g guard) recovered(
	ctx context.Context, request any, method string, handler grpc.UnaryHandler,
) (answer any, err error) {
	defer func() {
		switch value := recover().(type) {
		case nil:
			return
		case runtime.Error:
			g.logger.Error("a call panicked", "method", method, "panic", value.Error(), "stack", string(debug.Stack()))
		default:
			g.logger.Error("a call panicked", "method", method, "panic", fmt.Sprintf("%T", value), "stack", string(debug.Stack()))
		}
		answer, err = nil, Internal("a bug in the driver: its log has the place")
	}()
	return handler(ctx, request)
}
