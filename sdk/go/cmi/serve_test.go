package cmi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/capcmi/v1"
	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/gen/cmi/v1"
)

const patience = 30 * time.Second

// fake is a back end in memory. The functions replace its methods where they are set.
type fake struct {
	vms      []*VM
	create   func(context.Context) (*VM, error)
	delete   func(*VM) error
	restarts []string
	// known are the ProviderIDs of the look-ups.
	known []string
}

type noFields struct{}

func (f *fake) Find(ctx context.Context, id Identity, _ noFields) ([]*VM, error) {
	f.known = append(f.known, ProviderIDOf(ctx))
	var found []*VM
	for _, vm := range f.vms {
		if vm.Name == id.Name {
			found = append(found, vm)
		}
	}
	return found, nil
}

func (f *fake) List(context.Context, string, noFields) ([]*VM, error) { return f.vms, nil }

func (f *fake) Create(ctx context.Context, id Identity, _ noFields, _ Bootstrap) (*VM, error) {
	if f.create != nil {
		return f.create(ctx)
	}
	vm := &VM{ID: "fake:///1", Name: id.Name, Tags: id.Tags}
	f.vms = append(f.vms, vm)
	return vm, nil
}

func (f *fake) Delete(_ context.Context, vm *VM) error { return f.delete(vm) }

func (f *fake) Restart(_ context.Context, vm *VM) error {
	f.restarts = append(f.restarts, "restart "+vm.ID)
	return nil
}

func (f *fake) Start(_ context.Context, vm *VM) error {
	f.restarts = append(f.restarts, "start "+vm.ID)
	return nil
}

// sharedLog is a log that several goroutines write.
type sharedLog struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *sharedLog) Write(text []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(text)
}

func (l *sharedLog) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

// served is a driver that serves.
type served struct {
	connection *grpc.ClientConn
	machines   cmiv1.MachineClient
	extension  capcmiv1.MachineExtensionClient
	log        *sharedLog
	stop       context.CancelFunc
	ended      chan error
}

func serve(t *testing.T, backend Backend[noFields]) *served {
	t.Helper()
	folder, err := os.MkdirTemp("", "cmi") // a socket needs a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return serveAt(t, backend, Options{Endpoint: "unix://" + filepath.Join(folder, "driver.sock")}, insecure.NewCredentials())
}

func serveAt(
	t *testing.T, backend Backend[noFields], options Options, security credentials.TransportCredentials,
) *served {
	t.Helper()
	s := &served{log: &sharedLog{}, ended: make(chan error, 1)}
	options.Logger = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.ended <- Serve(ctx, Info{Name: "fake.example.com", Version: "v1"}, backend, options) }()
	target := strings.TrimPrefix(strings.TrimPrefix(options.Endpoint, "tcp://"), "tls://")
	var err error
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: time.Second}}
	s.connection, err = grpc.NewClient(target, grpc.WithTransportCredentials(security), grpc.WithConnectParams(soon),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.connection.Close() })
	s.machines = cmiv1.NewMachineClient(s.connection)
	s.extension = capcmiv1.NewMachineExtensionClient(s.connection)
	return s
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func specOf(machine string) []byte {
	return []byte(`{"tags": {"kubernetes.io/cluster": "c", "capcmi.io/machine": "` + machine + `"}}`)
}

func vmOf(id, machine string) *VM {
	return &VM{ID: id, Name: "a", Tags: map[string]string{ClusterTag: "c", MachineTag: machine}}
}

func wantStatus(t *testing.T, what string, err error, code codes.Code, message string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), message) {
		t.Errorf("%s: got %v, want %s with %q", what, err, code, message)
	}
}

// CAP-01, CAP-02, CAP-03: no call touches the VM of another machine object.
func TestForeignVMIsLeftAlone(t *testing.T) {
	untouched := func(vm *VM) error { t.Errorf("%s was deleted", vm.ID); return nil }
	s := serve(t, &fake{vms: []*VM{vmOf("fake:///theirs", "theirs")}, delete: untouched})
	ctx := patient(t)
	_, err := s.machines.CreateMachine(ctx, &cmiv1.CreateMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "create", err, codes.AlreadyExists, "fake:///theirs")
	_, err = s.machines.GetMachineStatus(ctx, &cmiv1.GetMachineStatusRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "status", err, codes.NotFound, "no VM of machine a of cluster c exists")
	_, err = s.machines.DeleteMachine(ctx, &cmiv1.DeleteMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "delete", err, codes.OK, "")
}

// A careless Find or List must not reach the VMs of another cluster.
func TestVMOfAnotherClusterIsDropped(t *testing.T) {
	vm := vmOf("fake:///1", "ours")
	vm.Tags[ClusterTag] = "other"
	s := serve(t, &fake{vms: []*VM{vm}})
	_, err := s.machines.GetMachineStatus(patient(t), &cmiv1.GetMachineStatusRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "status", err, codes.NotFound, "")
	list, err := s.machines.ListMachines(patient(t), &cmiv1.ListMachinesRequest{ProviderSpec: specOf("ours")})
	if err != nil || len(list.MachineList) > 0 {
		t.Errorf("got %v, %v", list, err)
	}
}

func TestSeveralVMsAreAllDeletedAndNeverChosen(t *testing.T) {
	backend := &fake{vms: []*VM{vmOf("fake:///2", "ours"), vmOf("fake:///1", "ours")}}
	backend.delete = func(vm *VM) error {
		backend.vms = backend.vms[1:]
		return ErrGone
	}
	s := serve(t, backend)
	_, err := s.machines.GetMachineStatus(patient(t), &cmiv1.GetMachineStatusRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "status", err, codes.OutOfRange, "fake:///1, fake:///2")
	_, err = s.machines.CreateMachine(patient(t), &cmiv1.CreateMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "create", err, codes.FailedPrecondition, "fake:///1, fake:///2")
	_, err = s.machines.DeleteMachine(patient(t), &cmiv1.DeleteMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "delete", err, codes.OK, "")
	if len(backend.vms) > 0 {
		t.Errorf("%d VMs are left", len(backend.vms))
	}
}

// DRV-23: OK is a promise that the VM is gone.
func TestDeleteIsBusyWhileTheVMIsThere(t *testing.T) {
	s := serve(t, &fake{vms: []*VM{vmOf("fake:///1", "ours")}, delete: func(*VM) error { return nil }})
	_, err := s.machines.DeleteMachine(patient(t), &cmiv1.DeleteMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "delete", err, codes.Aborted, "still being deleted: fake:///1")
}

// cleaning is a back end whose machines leave parts behind.
type cleaning struct {
	*fake
	cleaned []string
}

func (c *cleaning) Clean(_ context.Context, id Identity, _ noFields) error {
	c.cleaned = append(c.cleaned, id.Name)
	return nil
}

func TestDeleteReturnsTheStateAndCleansUpWhenNoVMIsLeft(t *testing.T) {
	backend := &cleaning{fake: &fake{vms: []*VM{vmOf("fake:///1", "ours")}}}
	backend.delete = func(vm *VM) error { vm.State = []byte("detaching"); return nil }
	s := serve(t, backend)
	request := &cmiv1.DeleteMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")}
	var trailer metadata.MD
	_, err := s.machines.DeleteMachine(patient(t), request, grpc.Trailer(&trailer))
	wantStatus(t, "a VM that is left", err, codes.Aborted, "")
	if got := trailer.Get(stateKey); !slices.Equal(got, []string{"detaching"}) || len(backend.cleaned) > 0 {
		t.Errorf("the state is %v, and cleaned are %v", got, backend.cleaned)
	}
	backend.delete = func(vm *VM) error {
		vm.State, backend.vms = []byte("gone"), nil
		return nil
	}
	answer, err := s.machines.DeleteMachine(patient(t), request)
	if err != nil || string(answer.LastKnownState) != "gone" || !slices.Equal(backend.cleaned, []string{"a"}) {
		t.Errorf("got %v, %v; cleaned are %v", answer, err, backend.cleaned)
	}
}

func TestBackEndKnowsTheProviderIDOfTheRequest(t *testing.T) {
	backend := &fake{vms: []*VM{vmOf("fake:///1", "ours")}}
	s := serve(t, backend)
	_, err := s.machines.GetMachineStatus(patient(t), &cmiv1.GetMachineStatusRequest{
		MachineName: "a", ProviderSpec: specOf("ours"), ProviderID: "fake:///1",
	})
	wantStatus(t, "status", err, codes.OK, "")
	_, err = s.machines.CreateMachine(patient(t), &cmiv1.CreateMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
	wantStatus(t, "create", err, codes.OK, "")
	if want := []string{"fake:///1", ""}; !slices.Equal(backend.known, want) {
		t.Errorf("got %q, want %q", backend.known, want)
	}
}

// An adopted VM need not have a machine tag, and neither need a request about it.
func TestAdoptedVMIsKnownByItsID(t *testing.T) {
	s := serve(t, &fake{vms: []*VM{vmOf("fake:///1", "theirs"), vmOf("fake:///2", "")}})
	spec := []byte(`{"tags": {"kubernetes.io/cluster": "c"}}`)
	for id, code := range map[string]codes.Code{"": codes.OK, "fake:///2": codes.OK, "fake:///3": codes.NotFound} {
		request := &cmiv1.GetMachineStatusRequest{MachineName: "a", ProviderSpec: spec, ProviderID: id}
		answer, err := s.machines.GetMachineStatus(patient(t), request)
		wantStatus(t, "the id "+id, err, code, "")
		if err == nil && answer.ProviderID != "fake:///2" {
			t.Errorf("the id %q finds %s", id, answer.ProviderID)
		}
	}
	_, err := s.machines.GetMachineStatus(patient(t), &cmiv1.GetMachineStatusRequest{MachineName: "a", ProviderSpec: specOf("")})
	wantStatus(t, "an empty tag", err, codes.InvalidArgument, "/tags/capcmi.io~1machine")
}

// CMI-10, CMI-34: a second call neither waits nor creates.
func TestOneChangingCallRunsForEachMachine(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := serve(t, &fake{create: func(context.Context) (*VM, error) {
		close(begun)
		<-end
		return vmOf("fake:///1", "ours"), nil
	}})
	first := make(chan error, 1)
	request := &cmiv1.CreateMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")}
	go func() {
		_, err := s.machines.CreateMachine(patient(t), request)
		first <- err
	}()
	<-begun
	var trailer metadata.MD
	_, err := s.machines.CreateMachine(patient(t), request, grpc.Trailer(&trailer))
	wantStatus(t, "the second create", err, codes.Aborted, "another call for machine a of cluster c is running")
	if got := trailer.Get(nothingBegunKey); len(got) != 1 || got[0] != "true" {
		t.Errorf("the second create has the trailer %v", trailer)
	}
	close(end)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// OPS-11: neither a panic nor an error may carry a secret into an answer or the log.
func TestPanicsAndErrorsKeepSecrets(t *testing.T) {
	const canary = "canary-4711-of-a-tenant"
	backend := &fake{}
	s := serve(t, backend)
	request := &cmiv1.CreateMachineRequest{
		MachineName: "a", ProviderSpec: specOf("ours"), Secrets: map[string][]byte{"token": []byte(canary)},
	}
	backend.create = func(context.Context) (*VM, error) { panic("token " + canary) }
	_, err := s.machines.CreateMachine(patient(t), request)
	wantStatus(t, "a panic", err, codes.Internal, "a bug in the driver")
	backend.create = func(ctx context.Context) (*VM, error) {
		token, err := SecretsOf(ctx).Need("token")
		return nil, errors.Join(err, errors.New("https://cloud?token="+token))
	}
	_, err = s.machines.CreateMachine(patient(t), request)
	wantStatus(t, "a foreign error", err, codes.Unknown, "the driver's log shows it")
	backend.create = func(ctx context.Context) (*VM, error) {
		return nil, Unauthenticated("the token %s is wrong", string(SecretsOf(ctx)["token"]))
	}
	_, err = s.machines.CreateMachine(patient(t), request)
	wantStatus(t, "a quoted credential", err, codes.Unauthenticated, "the token [redacted] is wrong")
	text := s.log.String()
	if strings.Contains(text, canary) || !strings.Contains(text, "https://cloud?token=[redacted]") ||
		!strings.Contains(text, "TestPanicsAndErrorsKeepSecrets") {
		t.Errorf("the log is\n%s", text)
	}
}

func TestUnusableVMOfTheBackEndIsInternal(t *testing.T) {
	backend := &fake{}
	s := serve(t, backend)
	for name, vm := range map[string]*VM{
		"no VM": nil, "no id": {Name: "a"}, "a long id": {ID: strings.Repeat("i", 513)},
		"a long state": {ID: "a", State: make([]byte, 5000)}, "a long name": {ID: "a", NodeName: strings.Repeat("n", 254)},
	} {
		backend.create = func(context.Context) (*VM, error) { return vm, nil }
		_, err := s.machines.CreateMachine(patient(t), &cmiv1.CreateMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
		wantStatus(t, name, err, codes.Internal, "the driver re")
	}
}

// initializing is a back end with Initialize, and rechecking one that cannot tell whether a VM is initialized.
type initializing struct {
	*fake
	initialized int
}

func (i *initializing) Initialize(context.Context, *VM, noFields) error { i.initialized++; return nil }

type rechecking struct{ *initializing }

func (rechecking) Rechecks() {}

func TestVMWithoutAReasonIsInitializedForARecheckerOnly(t *testing.T) {
	plain := &initializing{fake: &fake{vms: []*VM{vmOf("fake:///1", "ours")}}}
	recheck := rechecking{&initializing{fake: &fake{vms: []*VM{vmOf("fake:///1", "ours")}}}}
	for _, backend := range []Backend[noFields]{plain, recheck} {
		request := &capcmiv1.InitializeMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")}
		if _, err := serve(t, backend).extension.InitializeMachine(patient(t), request); err != nil {
			t.Error(err)
		}
	}
	if plain.initialized != 0 || recheck.initialized != 1 {
		t.Errorf("initialized %d and %d times", plain.initialized, recheck.initialized)
	}
}

func TestRestartStartsAVMThatIsOff(t *testing.T) {
	vm := vmOf("fake:///1", "ours")
	backend := &fake{vms: []*VM{vm}}
	s := serve(t, backend)
	for _, power := range []Power{Running, Stopped, PowerUnknown} {
		vm.Power = power
		request := &capcmiv1.RestartMachineRequest{MachineName: "a", ProviderSpec: specOf("ours"), ProviderId: vm.ID}
		if _, err := s.extension.RestartMachine(patient(t), request); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(backend.restarts, ", "); got != "restart fake:///1, start fake:///1, restart fake:///1" {
		t.Errorf("got %s", got)
	}
}

// CMI-07: a call without its interface is neither offered nor served.
func TestOnlyImplementedCallsAreOffered(t *testing.T) {
	s := serve(t, &fake{})
	offered, err := s.extension.GetExtensionCapabilities(patient(t), &capcmiv1.GetExtensionCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := offered.String(); !strings.Contains(got, "RESTART_MACHINE") || strings.Contains(got, "UPDATE_MACHINE") ||
		offered.Zones || len(offered.HotUpdatable) > 0 {
		t.Errorf("got %s", got)
	}
	_, err = s.extension.UpdateMachine(patient(t), &capcmiv1.UpdateMachineRequest{})
	wantStatus(t, "update", err, codes.Unimplemented, "")
}

func TestHealthAndReflectionAreServed(t *testing.T) {
	s := serve(t, &fake{})
	health, err := grpc_health_v1.NewHealthClient(s.connection).Check(patient(t), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("got %v, %v", health, err)
	}
	reflection, err := grpc_reflection_v1.NewServerReflectionClient(s.connection).ServerReflectionInfo(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	list := &grpc_reflection_v1.ServerReflectionRequest_ListServices{}
	if err := reflection.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: list}); err != nil {
		t.Fatal(err)
	}
	answer, err := reflection.Recv()
	if err != nil || !strings.Contains(answer.String(), "capcmi.v1.MachineExtension") {
		t.Errorf("got %v, %v", answer, err)
	}
}

// A running call ends before the process does.
func TestShutdownWaitsForRunningCalls(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := serve(t, &fake{create: func(context.Context) (*VM, error) {
		close(begun)
		<-end
		return vmOf("fake:///1", "ours"), nil
	}})
	answered := make(chan error, 1)
	go func() {
		_, err := s.machines.CreateMachine(patient(t), &cmiv1.CreateMachineRequest{MachineName: "a", ProviderSpec: specOf("ours")})
		answered <- err
	}()
	<-begun
	s.stop()
	for !strings.Contains(s.log.String(), "shutting down") {
		time.Sleep(time.Millisecond)
	}
	close(end)
	if err := errors.Join(<-answered, <-s.ended); err != nil {
		t.Error(err)
	}
}

func TestOnlyASocketWithoutAListenerIsReplaced(t *testing.T) {
	folder := t.TempDir()
	stale, used, file := filepath.Join(folder, "a"), filepath.Join(folder, "b"), filepath.Join(folder, "c")
	abandoned, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	abandoned.SetUnlinkOnClose(false)
	listening, err := net.Listen("unix", used)
	if err = errors.Join(err, abandoned.Close(), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer listening.Close()
	for path, want := range map[string]string{
		stale: "", used: "another process listens", file: "is not a socket", "relative": "absolute path",
	} {
		listener, err := listenUnix(path)
		if err == nil {
			defer listener.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	found, err := os.Stat(stale)
	if err != nil || found.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", found, err)
	}
}

func TestUnusableEndpointIsNamed(t *testing.T) {
	for _, endpoint := range []string{"", "localhost:80", "http://localhost:80", "tls://127.0.0.1:0", "unix:///no/such/folder/a"} {
		err := Serve(t.Context(), Info{}, &fake{}, Options{Endpoint: endpoint})
		if err == nil || !strings.Contains(err.Error(), "endpoint") && !strings.Contains(err.Error(), "/no/such/folder") {
			t.Errorf("%q: got %v", endpoint, err)
		}
	}
}

// OPS-17: certificates are renewed while the driver runs.
func TestTLSAcceptsRenewedCertificates(t *testing.T) {
	folder := t.TempDir()
	files := TLSFiles{filepath.Join(folder, "crt"), filepath.Join(folder, "key"), filepath.Join(folder, "ca")}
	first := newAuthority(t)
	first.write(t, files)
	address := freeAddress(t)
	s := serveAt(t, &fake{}, Options{Endpoint: "tls://" + address, TLS: files}, first.client(t))
	if _, err := s.machines.ListMachines(patient(t), &cmiv1.ListMachinesRequest{ProviderSpec: specOf("a")}); err != nil {
		t.Fatal(err)
	}
	second := newAuthority(t)
	second.write(t, files)
	for _, test := range []struct {
		authority authority
		accepted  bool
	}{{second, true}, {first, false}} {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(test.authority.client(t)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = cmiv1.NewMachineClient(connection).ListMachines(patient(t), &cmiv1.ListMachinesRequest{ProviderSpec: specOf("a")})
		if (err == nil) != test.accepted {
			t.Errorf("accepted: got %v, want %t", err, test.accepted)
		}
		_ = connection.Close()
	}
}

func freeAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// authority signs its own certificate, which is that of the driver and of its client.
type authority struct{ certificate, key []byte }

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "driver"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	encoded, encoding := x509.MarshalPKCS8PrivateKey(key)
	if err = errors.Join(err, encoding); err != nil {
		t.Fatal(err)
	}
	return authority{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}),
	}
}

func (a authority) write(t *testing.T, files TLSFiles) {
	t.Helper()
	err := errors.Join(os.WriteFile(files.Certificate, a.certificate, 0o600), os.WriteFile(files.Key, a.key, 0o600),
		os.WriteFile(files.ClientCA, a.certificate, 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

func (a authority) client(t *testing.T) credentials.TransportCredentials {
	t.Helper()
	pair, err := tls.X509KeyPair(a.certificate, a.key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.certificate)
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots})
}
