package mcmbridge

import (
	"context"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Option adapts the bridge to a driver.
type Option func(*bridge)

// Provider sets MachineClass.provider, such as `AWS`. Many drivers refuse the classes of other providers.
func Provider(name string) Option {
	return func(b *bridge) { b.provider = name }
}

// Tags sets the names of the tags that the driver compares. Without it, they are [SlashTags].
func Tags(form TagForm) Option {
	return func(b *bridge) { b.form = form }
}

// Main serves a driver until SIGTERM or SIGINT, and ends the process. [cmi.Main] has the flags and variables.
func Main(info cmi.Info, driver driver.Driver, options ...Option) {
	cmi.Main(info, New(info, driver, options...))
}

// New returns the back end that [Main] serves, for tests with package cmitest.
func New(info cmi.Info, driver driver.Driver, options ...Option) cmi.Backend[cmi.OpenSpec] {
	return newBridge(info, driver, options).offered()
}

func newBridge(info cmi.Info, driver driver.Driver, options []Option) *bridge {
	made := &bridge{driver: driver, form: SlashTags, window: info.ConsistencyWindow}
	for _, option := range options {
		option(made)
	}
	return made
}

// bridge is a driver of MCM as a back end.
type bridge struct {
	driver   driver.Driver
	provider string
	form     TagForm
	window   time.Duration
}

// always are the calls that every driver has.
type always interface {
	cmi.Backend[cmi.OpenSpec]
	cmi.Matcher[cmi.OpenSpec]
	cmi.Initializer[cmi.OpenSpec]
	cmi.Rechecker
	cmi.Cleaner[cmi.OpenSpec]
}

var (
	_ always           = &bridge{}
	_ cmi.VolumeFinder = &bridge{}
	_ cmi.Migrator     = &bridge{}
)

// offered hides the calls that the driver does not implement.
func (b *bridge) offered() cmi.Backend[cmi.OpenSpec] {
	_, migrates := b.driver.(migrator)
	switch findsVolumes := b.findsVolumes(); {
	case findsVolumes && migrates:
		return b
	case findsVolumes:
		return struct {
			always
			cmi.VolumeFinder
		}{b, b}
	case migrates:
		return struct {
			always
			cmi.Migrator
		}{b, b}
	default:
		return struct{ always }{b}
	}
}

func (b *bridge) findsVolumes() bool {
	_, err := b.driver.GetVolumeIDs(context.Background(), &driver.GetVolumeIDsRequest{})
	return codeOf(err) != codes.Unimplemented
}
