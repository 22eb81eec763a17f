package cmi

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// Main serves a back end until SIGTERM or SIGINT, and ends the process. It reads these flags and variables:
//
//	--endpoint                   CMI_ENDPOINT               unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT
//	--tls-cert-file              CAPCMI_TLS_CERT_FILE       the certificate for tls://
//	--tls-key-file               CAPCMI_TLS_KEY_FILE        its key
//	--client-ca-file             CAPCMI_CLIENT_CA_FILE      the authorities of the clients
//	--graceful-shutdown-timeout                             how long running calls may take to end
//	--logging-format                                        text or json
//	--log-level                                             debug, info, warn or error
//	--version                                               prints the version
//
// Flags that the program has defined before in package flag are read, too.
//
// The type Spec is a struct with the user's fields of the provider spec. Their names come from the tags `json`. A field
// without `omitempty` or `omitzero` is required. The tag `cmi` has more, separated by commas:
//
//	cmi:"enum=small|large"   the allowed values
//	cmi:"min=10,max=1000"    the allowed range; OUT_OF_RANGE outside
//	cmi:"hot"                Update changes the field of a running VM
//
// A tag `jsonschema` describes the field. See also [Defaulter], [Validator] and [OpenSpec]. The package reads the field
// `tags`.
func Main[Spec any](info Info, backend Backend[Spec]) {
	if err := run(info, backend); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", info.Name, err)
		os.Exit(1)
	}
}

func run[Spec any](info Info, backend Backend[Spec]) error {
	options, err := flags(info)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	return Serve(ctx, info, backend, options)
}

func flags(info Info) (Options, error) {
	var options Options
	fromEnvironment := func(value *string, name, variable, usage string) {
		flag.StringVar(value, name, os.Getenv(variable), usage+"; variable: "+variable)
	}
	fromEnvironment(&options.Endpoint, "endpoint", "CMI_ENDPOINT", "unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT")
	fromEnvironment(&options.TLS.Certificate, "tls-cert-file", "CAPCMI_TLS_CERT_FILE", "the certificate for tls://")
	fromEnvironment(&options.TLS.Key, "tls-key-file", "CAPCMI_TLS_KEY_FILE", "the key of the certificate")
	fromEnvironment(&options.TLS.ClientCA, "client-ca-file", "CAPCMI_CLIENT_CA_FILE", "the authorities of the clients")
	flag.DurationVar(&options.ShutdownTimeout, "graceful-shutdown-timeout", defaultShutdownTimeout,
		"how long running calls may take to end")
	format := flag.String("logging-format", "text", "text or json")
	level := new(slog.Level)
	flag.TextVar(level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	version := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *version {
		fmt.Println(info.Name, info.Version)
		os.Exit(0)
	}
	if flag.NArg() > 0 {
		return options, fmt.Errorf("unknown argument %q", flag.Arg(0))
	}
	var err error
	options.Logger, err = logger(*format, level)
	return options, err
}

func logger(format string, level slog.Leveler) (*slog.Logger, error) {
	settings := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, settings)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, settings)), nil
	default:
		return nil, fmt.Errorf("--logging-format is %q and must be text or json", format)
	}
}
