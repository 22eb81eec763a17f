package main

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// others returns the sessions of drivers.
func (s *simulated) others(t *testing.T) []string {
	t.Helper()
	manager := session.NewManager(s.admin.Client)
	mine, err := manager.UserSession(t.Context())
	must(t, err)
	all, err := s.sessionKeys(t.Context())
	must(t, err)
	var keys []string
	for _, key := range all {
		if key != mine.Key {
			keys = append(keys, key)
		}
	}
	return keys
}

func (s *simulated) expireSessions(t *testing.T) {
	t.Helper()
	must(t, session.NewManager(s.admin.Client).TerminateSession(t.Context(), s.others(t)))
}

func TestOneSessionServesAllCallsOfACredential(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	for range 3 {
		must(t, b.authorized(ctx))
	}
	if open := vcenter.others(t); len(open) != 1 {
		t.Errorf("there are %d sessions", len(open))
	}
}

func TestExpiredSessionIsReplaced(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	vcenter.expireSessions(t)
	vm := found(t, b, ctx, id, smallest())
	vcenter.expireSessions(t)
	if listed, err := b.List(ctx, id.Cluster, spec{}); err != nil || len(listed) != 1 {
		t.Errorf("got %v, %v", listed, err)
	}
	vcenter.expireSessions(t)
	must(t, b.Delete(ctx, vm))
}

func TestSessionThatExpiresWithinACreateIsReplaced(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	expired := &types.NotAuthenticated{NoPermission: types.NoPermission{PrivilegeId: "System.View"}}
	for _, method := range []string{"FindByInventoryPath", "CloneVM_Task", "ReconfigVM_Task", "PowerOnVM_Task"} {
		vcenter.inject(method, expired, 1)
	}
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	found(t, b, ctx, id, smallest())
}

func TestSessionThatExpiresWithinAListIsReplaced(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b, id := vcenter.access.context(t.Context()), newBackend(settings{}), identity("one")
	_, err := create(b, ctx, id, smallest(), cloudConfig)
	must(t, err)
	for _, method := range []string{"CreateContainerView", "RetrievePropertiesEx", "DestroyView"} {
		vcenter.inject(method, &types.NotAuthenticated{}, 1)
		if listed, err := b.List(ctx, id.Cluster, spec{}); err != nil || len(listed) != 1 {
			t.Errorf("%s: got %v, %v", method, listed, err)
		}
	}
}

func TestVCenterThatRefusesEverySessionIsUnavailable(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	vcenter.inject("FindAllByUuid", &types.NotAuthenticated{}, 0)
	_, err := b.Find(ctx, identity("one"), smallest())
	refusedWith(t, err, codes.Unavailable, "ended the session twice")
}

func TestSessionThatNoCallUsesEnds(t *testing.T) {
	vcenter := newVCenter(t)
	ctx, b := vcenter.access.context(t.Context()), newBackend(settings{})
	b.sessions.keepAliveEvery, b.sessions.unusedFor = 10*time.Millisecond, 100*time.Millisecond
	must(t, b.authorized(ctx))
	for deadline := time.Now().Add(10 * time.Second); len(vcenter.others(t)) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the session does not end")
		}
	}
	must(t, b.authorized(ctx)) // with a new session
}

// with returns the context of a call with changed keys of the Secret. An empty value takes a key away.
func (a access) with(ctx context.Context, changes map[string]string) context.Context {
	secrets := cmi.Secrets{}
	for _, all := range []map[string]string{a.secrets(), changes} {
		for key, value := range all {
			secrets[key] = cmi.Secret(value)
		}
	}
	return cmi.WithSecrets(ctx, secrets)
}

func TestCredentialsAreChecked(t *testing.T) {
	vcenter := newVCenter(t)
	b := newBackend(settings{})
	other := strings.Repeat("00:", 31) + "00"
	for name, each := range map[string]struct {
		changes map[string]string
		code    codes.Code
		text    string
	}{
		"no server":         {map[string]string{serverKey: ""}, codes.Unauthenticated, "the key server of the Secret is empty"},
		"plain text":        {map[string]string{serverKey: "http://vcenter"}, codes.Unauthenticated, "without a scheme"},
		"a path":            {map[string]string{serverKey: vcenter.access.Server + "/sdk"}, codes.Unauthenticated, "HOST:PORT"},
		"a wrong password":  {map[string]string{passwordKey: "wrong"}, codes.Unauthenticated, "the user or the password"},
		"no trust":          {map[string]string{thumbprintKey: ""}, codes.FailedPrecondition, "certificate is not trusted"},
		"a broken CA":       {map[string]string{authorityKey: "PEM"}, codes.Unauthenticated, "no certificate in PEM"},
		"another server":    {map[string]string{thumbprintKey: other}, codes.FailedPrecondition, "another certificate"},
		"a user without it": {map[string]string{usernameKey: guest, passwordKey: guestPassword}, codes.PermissionDenied, "System.View"},
	} {
		t.Log(name)
		err := b.authorized(vcenter.access.with(t.Context(), each.changes))
		refusedWith(t, err, each.code, each.text)
	}
	if len(b.sessions.open) != 1 {
		t.Errorf("%d refused credentials are kept", len(b.sessions.open)-1)
	}
}

func TestCertificateIsTrustedByItsCA(t *testing.T) {
	vcenter := newVCenter(t)
	certificate := vcenter.server.Certificate()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	ctx := vcenter.access.with(t.Context(), map[string]string{thumbprintKey: "", authorityKey: string(text)})
	must(t, newBackend(settings{}).authorized(ctx))
}

// Go repeats headers with credentials at another port of the same host.
func TestRedirectToPlainTextIsRefused(t *testing.T) {
	var leaks atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaks.Add(1) }))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer secure.Close()
	reach := access{secure.Listener.Addr().String(), soap.ThumbprintSHA256(secure.Certificate())}
	if err := newBackend(settings{}).authorized(reach.context(t.Context())); err == nil || leaks.Load() > 0 {
		t.Errorf("got %v, and %d requests in plain text", err, leaks.Load())
	}
}
