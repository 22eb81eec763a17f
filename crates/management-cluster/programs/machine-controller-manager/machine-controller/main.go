// machine-controller is the machine controller of machine-controller-manager's Go module, as every provider
// builds it, for a driver that is called over CMI.
package main

import (
	"fmt"
	"os"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/app"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/app/options"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
)

func main() {
	settings := options.NewMCServer()
	settings.AddFlags(pflag.CommandLine)
	endpoint := pflag.String("driver", "", "where the driver listens, as gRPC names it: unix:///PATH")
	flag.InitFlags()
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := run(settings, *endpoint); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(settings *options.MCServer, endpoint string) error {
	connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("--driver: %w", err)
	}
	return app.Run(settings, &cmiDriver{connection})
}
