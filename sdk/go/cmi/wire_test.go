package cmi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/cmi/v1"
)

// DRV-30: an error never becomes NOT_FOUND, and its text never leaves the driver.
func TestErrorsOfTheBackEndGetCodes(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		err  error
		code codes.Code
	}{
		{t.Context(), errors.New("a secret text"), codes.Unknown},
		{t.Context(), ErrGone, codes.Unknown},
		{t.Context(), status.Error(codes.NotFound, "a secret text"), codes.Unknown},
		{t.Context(), &net.OpError{Op: "dial", Err: errors.New("a secret text")}, codes.Unavailable},
		{t.Context(), &url.Error{Op: "Get", URL: "https://a secret text", Err: io.EOF}, codes.Unavailable},
		{t.Context(), &url.Error{Op: "Get", URL: "a secret text", Err: context.DeadlineExceeded}, codes.DeadlineExceeded},
		{t.Context(), fmt.Errorf("a secret text: %w", context.Canceled), codes.DeadlineExceeded},
		{ended, fmt.Errorf("a secret text: %w", context.Canceled), codes.Canceled},
		{t.Context(), fmt.Errorf("around: %w", Exhausted("full")), codes.ResourceExhausted},
		{t.Context(), WithCode(codes.DataLoss, "lost"), codes.DataLoss},
		{t.Context(), WithCode(codes.NotFound, "no image"), codes.Unknown},
		{t.Context(), WithCode(codes.OK, "fine"), codes.Unknown},
	} {
		got := coded(test.ctx, test.err)
		if got.code != test.code || strings.Contains(got.message, "secret") {
			t.Errorf("%v: got %v, want %s", test.err, got, test.code)
		}
	}
}

// CMI-13: libraries quote and encode credentials in their errors.
func TestSecretsAreRemovedInEveryEncoding(t *testing.T) {
	secret := "p&ss \"word\"/4711+"
	quoted, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	scrubber := scrubberFor(&cmiv1.CreateMachineRequest{Secrets: map[string][]byte{
		"token":     []byte(secret),
		userDataKey: []byte("#cloud-config\nbootstrap-token-of-a-node\n"),
		"short":     []byte("abc"),
	}})
	for _, form := range []string{
		secret, string(quoted), url.QueryEscape(secret), url.PathEscape(secret),
		base64.StdEncoding.EncodeToString([]byte(secret)), fmt.Sprintf("%x", secret), "bootstrap-token-of-a-node",
	} {
		text := scrubber.text("the API refused <" + form + "> abc")
		if strings.Contains(text, form) || !strings.HasSuffix(text, "> abc") {
			t.Errorf("%s left %s", form, text)
		}
	}
}

func TestSecretsAreNotFormatted(t *testing.T) {
	boot := Bootstrap{UserData: Secret("canary-4711")}
	text, err := json.Marshal(boot)
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%v %+v %#v %s %x %q %d", boot, boot, boot.UserData, boot.UserData, boot.UserData, boot, boot.UserData) +
		string(text)
	if strings.Contains(shown, "canary") || strings.Contains(shown, "63616e") || strings.Contains(shown, "99 97") {
		t.Errorf("got %s", shown)
	}
}

func TestMissingCredentialIsNamed(t *testing.T) {
	_, err := Secrets{"user": Secret("a")}.Need("token")
	wantCode(t, "a missing key", err, codes.Unauthenticated, "the key token; it has: user")
	_, err = Secrets{}.Need("token")
	wantCode(t, "no keys", err, codes.Unauthenticated, "the key token; it has no keys")
	_, err = Secrets{"token": Secret(" \n")}.Need("token")
	wantCode(t, "an empty value", err, codes.Unauthenticated, "the key token of the Secret is empty")
}

// An HTTP client refuses a header with a line end, which `echo` leaves behind a token.
func TestLineEndBehindCredentialIsRemoved(t *testing.T) {
	got, err := Secrets{"token": Secret("a b\r\n")}.Need("token")
	if got != "a b" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// Clients accept 8 KiB of headers.
func TestAnswerHeadersStayWithinTheirLimit(t *testing.T) {
	vm := &VM{ID: strings.Repeat("i", maxID), Name: strings.Repeat("n", maxName), State: make([]byte, maxState)}
	for range 200 {
		vm.Addresses = append(vm.Addresses, Address{InternalDNS, strings.Repeat("a", 100)})
	}
	err := Uninitialized("%s", strings.Repeat("ä word ", 2000))
	err.vm = vm
	sent := newTrailers()
	sent.bytes(stateKey, vm.State)
	most := min(max(0, sent.room-machineNames), maxMessage)
	message := cut(err.message, most)
	sent.room -= headerSize(message)
	sent.machine(toWire(vm))
	if sent.room < 0 || headerSize(message) > most || !strings.HasSuffix(message, cutMark) {
		t.Errorf("%d bytes are left, and the message has %d", sent.room, headerSize(message))
	}
	if cut("short", maxMessage) != "short" || cut(strings.Repeat("x", 9000), maxMessage) != cutMark {
		t.Error("a message is cut within a word")
	}
}

func TestAsManyAddressesAreSentAsFindRoom(t *testing.T) {
	for _, length := range []int{1, 123, 124, 128, 256} {
		vm := &VM{ID: "id", Name: "name"}
		for range 5000 {
			vm.Addresses = append(vm.Addresses, Address{InternalIP, strings.Repeat("a", length)})
		}
		sent := newTrailers()
		most := (sent.room - len(responseKey) - perHeader) / 4 * 3
		sent.machine(toWire(vm))
		var kept capcmiv1.Machine
		if err := proto.Unmarshal([]byte(sent.metadata.Get(responseKey)[0]), &kept); err != nil {
			t.Fatal(err)
		}
		vm.Addresses = vm.Addresses[:len(kept.Addresses)+1]
		if proto.Size(&kept) > most || proto.Size(toWire(vm)) <= most {
			t.Errorf("%d addresses of %d bytes were sent", len(kept.Addresses), length)
		}
	}
}
