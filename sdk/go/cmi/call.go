package cmi

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// call is the part of a request that every method may need.
type call struct {
	secrets Secrets
	state   []byte
	// machine and providerID are those of the checked request; see describeCall.
	machine    Identity
	providerID string
}

type callKey struct{}

// Keys of the bootstrap data among the secrets of a request.
const (
	userDataKey       = "userData"
	userDataFormatKey = "userDataFormat"
)

func callOf(ctx context.Context) call {
	if found, ok := ctx.Value(callKey{}).(*call); ok {
		return *found
	}
	return call{}
}

// SecretsOf returns the credentials of the call that a context belongs to, without the bootstrap data.
func SecretsOf(ctx context.Context) Secrets { return callOf(ctx).secrets }

// WithSecrets returns a context with credentials, for tests of a back end.
func WithSecrets(ctx context.Context, secrets Secrets) context.Context {
	made := callOf(ctx)
	made.secrets = secrets
	return context.WithValue(ctx, callKey{}, &made)
}

// StateOf returns the state that an earlier call about the machine has left in VM.State. It may be lost.
func StateOf(ctx context.Context) []byte { return callOf(ctx).state }

// WithState returns a context with a state, for tests of a back end.
func WithState(ctx context.Context, state []byte) context.Context {
	made := callOf(ctx)
	made.state = state
	return context.WithValue(ctx, callKey{}, &made)
}

// ProviderIDOf returns the ProviderID of the VM that the machine had when it was last seen. It is empty while the caller
// knows of no VM.
func ProviderIDOf(ctx context.Context) string { return callOf(ctx).providerID }

// WithProviderID returns a context with a ProviderID, for tests of a back end.
func WithProviderID(ctx context.Context, id string) context.Context {
	made := callOf(ctx)
	made.providerID = id
	return context.WithValue(ctx, callKey{}, &made)
}

func newCall(request any) *call {
	found := &call{secrets: Secrets{}}
	for key, value := range secretsIn(request) {
		if key != userDataKey && key != userDataFormatKey {
			found.secrets[key] = value
		}
	}
	if request, ok := request.(interface{ GetLastKnownState() []byte }); ok {
		found.state = request.GetLastKnownState()
	}
	return found
}

// describeCall records which machine and VM the call is about.
func describeCall(ctx context.Context, id Identity, providerID string) {
	if found, ok := ctx.Value(callKey{}).(*call); ok {
		found.machine, found.providerID = id, providerID
	}
}

func secretsIn(request any) map[string][]byte {
	if request, ok := request.(interface{ GetSecrets() map[string][]byte }); ok {
		return request.GetSecrets()
	}
	return nil
}

// Shorter values and lines occur in texts by chance.
const (
	shortestSecret = 4
	shortestLine   = 12
)

// scrubber removes the secrets of a request from texts, also where a library has encoded them.
type scrubber struct{ replacer *strings.Replacer }

func scrubberFor(request any) scrubber {
	var forms []string
	for key, value := range secretsIn(request) {
		if len(value) < shortestSecret || key == userDataFormatKey {
			continue
		}
		forms = append(forms, encodings(value)...)
	}
	// The longest first: a secret may contain another one.
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, form := range slices.Compact(forms) {
		pairs = append(pairs, form, redacted)
	}
	return scrubber{strings.NewReplacer(pairs...)}
}

func encodings(value []byte) []string {
	text := string(value)
	quoted, _ := json.Marshal(text) // a string always has a JSON form
	forms := []string{
		text,
		strings.TrimSpace(text),
		string(quoted[1 : len(quoted)-1]),
		url.QueryEscape(text),
		url.PathEscape(text),
		hex.EncodeToString(value),
		base64.StdEncoding.EncodeToString(value),
		base64.RawStdEncoding.EncodeToString(value),
		base64.URLEncoding.EncodeToString(value),
		base64.RawURLEncoding.EncodeToString(value),
	}
	// A library may quote one line of a text.
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) >= shortestLine {
			forms = append(forms, line)
		}
	}
	return slices.DeleteFunc(forms, func(form string) bool { return len(form) < shortestSecret })
}

func (s scrubber) text(text string) string { return s.replacer.Replace(text) }
