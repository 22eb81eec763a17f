package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/session/keepalive"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

const (
	// vCenter ends a session that is idle for 30 minutes by default.
	keepAliveEvery = 10 * time.Minute
	// A session that no call has used for so long ends: its credentials may have changed.
	unusedFor = time.Hour
	// How long a logout may take.
	logoutWithin = 10 * time.Second
)

// sessions are the sessions with vCenters, one for each credential.
type sessions struct {
	mutex sync.Mutex
	open  map[[sha256.Size]byte]*vcenter

	keepAliveEvery, unusedFor time.Duration
}

func newSessions() *sessions {
	return &sessions{
		open: map[[sha256.Size]byte]*vcenter{}, keepAliveEvery: keepAliveEvery, unusedFor: unusedFor,
	}
}

// vcenter is a vCenter as the user of one credential.
type vcenter struct {
	credentials credentials
	all         *sessions
	// login has the client. Who takes it may log in.
	login chan *login
	// first is the first session. It has the user's name in vCenter's tasks.
	first  atomic.Pointer[types.UserSession]
	clones *clones

	mutex sync.Mutex
	// unread are the VMs that the last list has left out.
	unread map[types.ManagedObjectReference]error
	// known are the VMs of machines by instance UUID.
	known map[string]types.ManagedObjectReference
}

// login is a session.
type login struct {
	client *vim25.Client

	mutex sync.Mutex
	used  time.Time
}

// vcenter returns the vCenter of a call.
func (b *backend) vcenter(ctx context.Context) (*vcenter, error) {
	found, err := credentialsOf(ctx)
	if err != nil {
		return nil, err
	}
	return b.sessions.of(found)
}

func (s *sessions) of(found credentials) (*vcenter, error) {
	key, err := found.key()
	if err != nil {
		return nil, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.open[key] == nil {
		made := &vcenter{
			credentials: found, all: s, login: make(chan *login, 1), clones: newClones(),
			known: map[string]types.ManagedObjectReference{},
		}
		made.login <- nil
		s.open[key] = made
	}
	return s.open[key], nil
}

func (s *sessions) forget(v *vcenter) {
	key, err := v.credentials.key()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err == nil && s.open[key] == v {
		delete(s.open, key)
	}
}

// do runs a function with a client. When the session has expired, it logs in and runs the function once more. The
// refused request had no effect, so a function may make one change. It may make several if they can be repeated.
func (v *vcenter) do(ctx context.Context, call func(context.Context, *vim25.Client) error) error {
	current, err := v.session(ctx, nil)
	if err != nil {
		return err
	}
	if err = call(ctx, current.client); !hasExpired(err) {
		return err
	}
	if current, err = v.session(ctx, current); err != nil {
		return err
	}
	return call(ctx, current.client)
}

// session returns a session other than the expired one.
func (v *vcenter) session(ctx context.Context, expired *login) (*login, error) {
	var current *login
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case current = <-v.login:
	}
	defer func() { v.login <- current }()
	if current == nil || current == expired {
		made, err := v.open(ctx)
		if err != nil {
			if current == nil {
				v.all.forget(v)
			}
			return nil, err
		}
		if current != nil {
			go current.end()
		}
		current = made
	}
	current.use()
	return current, nil
}

func (v *vcenter) open(ctx context.Context) (*login, error) {
	transport, err := v.credentials.transport()
	if err != nil {
		return nil, err
	}
	client, err := vim25.NewClient(ctx, transport)
	if err != nil {
		return nil, unconnected(ctx, err)
	}
	if !client.IsVC() {
		return nil, cmi.Forbidden("the server is not a vCenter but %s", client.ServiceContent.About.FullName)
	}
	made := &login{client: client}
	made.use()
	alive := keepalive.NewHandlerSOAP(transport, v.all.keepAliveEvery, func() error { return v.keepAlive(made, transport) })
	client.RoundTripper = alive
	opened, err := methods.Login(ctx, client, &types.Login{
		This: *client.ServiceContent.SessionManager, UserName: v.credentials.username, Password: v.credentials.password,
		Locale: session.Locale,
	})
	if err != nil {
		return nil, unconnected(ctx, err)
	}
	v.first.CompareAndSwap(nil, &opened.Returnval)
	return made, nil
}

var errUnused = errors.New("no call uses the session")

// keepAlive keeps a session, or ends one that no call uses. An error stops the timer.
func (v *vcenter) keepAlive(kept *login, transport soap.RoundTripper) error {
	ctx, cancel := context.WithTimeout(context.Background(), logoutWithin)
	defer cancel()
	if time.Since(kept.lastUse()) < v.all.unusedFor {
		_, err := methods.GetCurrentTime(ctx, transport)
		if hasExpired(err) {
			return err
		}
		return nil // a server that is away may come back
	}
	v.all.forget(v)
	_, err := methods.Logout(ctx, transport, &types.Logout{This: *kept.client.ServiceContent.SessionManager})
	return errors.Join(errUnused, err)
}

func (l *login) use() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.used = time.Now()
}

func (l *login) lastUse() time.Time {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.used
}

// end stops the timer of a session that vCenter has ended.
func (l *login) end() {
	if alive, ok := l.client.RoundTripper.(*keepalive.HandlerSOAP); ok {
		alive.Stop()
	}
	l.client.CloseIdleConnections()
}

// authorized makes a call that every user of vCenter's inventory may make.
func (b *backend) authorized(ctx context.Context) error {
	v, err := b.vcenter(ctx)
	if err != nil {
		return err
	}
	return explain(v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		_, err := methods.GetCurrentTime(ctx, client)
		return err
	}), "read vCenter")
}
