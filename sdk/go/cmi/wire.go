package cmi

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
)

// Keys of the trailing metadata.
const (
	machineCodeKey  = "capcmi-machine-code"
	stateKey        = "capcmi-last-known-state-bin"
	responseKey     = "capcmi-response-bin"
	retryAfterKey   = "capcmi-retry-after-ms"
	nothingBegunKey = "capcmi-nothing-begun"
)

const (
	// The default limit of many clients for all headers of an answer, and the share of the headers that gRPC and
	// proxies add.
	maxHeaders   = 8 << 10
	otherHeaders = 384
	// The overhead that HTTP/2 counts for each header.
	perHeader = 32
	// The size of a machine with its names alone.
	machineNames = len(responseKey) + perHeader + (maxID+maxName+16)*4/3
	maxMessage   = 2 << 10
	cutMark      = " [...]"
)

// toWire returns a VM in the form of the extension.
func toWire(vm *VM) *capcmiv1.Machine {
	machine := &capcmiv1.Machine{
		ProviderId:     vm.ID,
		NodeName:       vm.nodeName(),
		PowerState:     capcmiv1.PowerState(vm.Power),
		FailureDomain:  vm.Zone,
		LastKnownState: vm.State,
	}
	for _, address := range vm.Addresses {
		machine.Addresses = append(machine.Addresses, &capcmiv1.MachineAddress{
			Type: capcmiv1.MachineAddress_Type(address.Type), Address: address.Text,
		})
	}
	return machine
}

// trailers are metadata that leave room for other headers.
type trailers struct {
	metadata metadata.MD
	room     int
}

func newTrailers() *trailers { return &trailers{metadata.MD{}, maxHeaders - otherHeaders} }

func (t *trailers) text(key, value string) {
	t.room -= len(key) + perHeader + len(value)
	t.metadata.Set(key, value)
}

func (t *trailers) bytes(key string, value []byte) {
	t.room -= len(key) + perHeader + (len(value)*4+2)/3
	t.metadata.Set(key, string(value)) // gRPC encodes it
}

// machine adds a VM, without addresses and then without its failure domain where they find no room.
func (t *trailers) machine(machine *capcmiv1.Machine) {
	most := max(0, t.room-len(responseKey)-perHeader) / 4 * 3
	addresses := machine.Addresses
	machine.Addresses = nil
	size := proto.Size(machine)
	for _, address := range addresses {
		// The key of the field takes one byte.
		if size += 1 + protowire.SizeBytes(proto.Size(address)); size > most {
			break
		}
		machine.Addresses = append(machine.Addresses, address)
	}
	if proto.Size(machine) > most {
		machine.FailureDomain = ""
	}
	if encoded, err := proto.Marshal(machine); err == nil && len(encoded) <= most {
		t.bytes(responseKey, encoded)
	}
}

// beside sends the fields of a VM that a response of cmi.v1 lacks.
func beside(ctx context.Context, vm *VM) {
	sent := newTrailers()
	sent.machine(toWire(vm))
	// Only a call that has ended refuses metadata.
	_ = grpc.SetTrailer(ctx, sent.metadata)
}

// answer returns the status of an error, and sends the rest of it beside. Secrets are removed before a message is cut.
func (e *Error) answer(ctx context.Context, secrets scrubber) error {
	sent := newTrailers()
	if e.uninitialized {
		sent.text(machineCodeKey, "Uninitialized")
	}
	if e.retryAfter > 0 {
		sent.text(retryAfterKey, strconv.FormatInt(e.retryAfter.Round(time.Millisecond).Milliseconds(), 10))
	}
	if e.nothingBegun && e.vm == nil {
		sent.text(nothingBegunKey, "true")
	}
	state := e.state
	if state == nil && e.vm != nil {
		state = e.vm.State
	}
	if len(state) > 0 && len(state) <= maxState {
		sent.bytes(stateKey, state)
	}
	message := cut(secrets.text(e.message), min(max(0, sent.room-machineNames), maxMessage))
	sent.room -= headerSize(message)
	if e.vm != nil {
		machine := toWire(e.vm)
		machine.LastKnownState = nil
		sent.machine(machine)
	}
	_ = grpc.SetTrailer(ctx, sent.metadata)
	return status.Error(e.code, message)
}

// cut shortens a message between words: the caller searches it for secrets and would not find half of one.
func cut(message string, most int) string {
	message = strings.ToValidUTF8(message, string(utf8.RuneError))
	if headerSize(message) <= most {
		return message
	}
	for at := min(len(message), most); at > 0; {
		at = strings.LastIndexAny(message[:at], " \n\t")
		if at >= 0 && headerSize(message[:at])+headerSize(cutMark) <= most {
			return message[:at] + cutMark
		}
	}
	return cutMark
}

// headerSize returns the most bytes of a message in its header, which is percent-encoded.
func headerSize(message string) int {
	size := 0
	for i := range len(message) {
		if c := message[i]; c >= ' ' && c <= '~' && c != '%' {
			size++
		} else {
			size += 3
		}
	}
	return size
}
