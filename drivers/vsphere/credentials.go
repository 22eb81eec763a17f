package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Keys of the Secret.
const (
	serverKey     = "server"
	usernameKey   = "username"
	passwordKey   = "password"
	authorityKey  = "ca.crt"
	thumbprintKey = "thumbprint"
)

// credentials are the keys of a Secret.
type credentials struct {
	server, username, password string
	// authority is PEM, and thumbprint the SHA-256 of the server's certificate. Both may be empty.
	authority, thumbprint string
}

func credentialsOf(ctx context.Context) (credentials, error) {
	secrets := cmi.SecretsOf(ctx)
	read := credentials{
		authority:  string(secrets[authorityKey]),
		thumbprint: strings.ToUpper(strings.TrimSpace(string(secrets[thumbprintKey]))),
	}
	for _, needed := range []struct {
		key   string
		value *string
	}{{serverKey, &read.server}, {usernameKey, &read.username}, {passwordKey, &read.password}} {
		var err error
		if *needed.value, err = secrets.Need(needed.key); err != nil {
			return read, err
		}
	}
	read.server = strings.TrimSpace(read.server)
	return read, nil
}

// key identifies the credentials without showing them.
func (c credentials) key() ([sha256.Size]byte, error) {
	text, err := json.Marshal([]string{c.server, c.username, c.password, c.authority, c.thumbprint})
	return sha256.Sum256(text), err
}

func (c credentials) user() *url.Userinfo { return url.UserPassword(c.username, c.password) }

// endpoint returns the address of the API. There is no way to plain text: a scheme is refused.
func (c credentials) endpoint() (*url.URL, error) {
	host := c.server
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "" || strings.ContainsAny(c.server, "/@?# ") {
		return nil, cmi.Unauthenticated("the key %s of the Secret must be HOST or HOST:PORT, without a scheme", serverKey)
	}
	return &url.URL{Scheme: "https", Host: c.server, Path: vim25.Path}, nil
}

// transport returns a client that speaks TLS only, and verifies the server.
func (c credentials) transport() (*soap.Client, error) {
	endpoint, err := c.endpoint()
	if err != nil {
		return nil, err
	}
	client := soap.NewClient(endpoint, false)
	if c.authority != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(c.authority)) {
			return nil, cmi.Unauthenticated("the key %s of the Secret has no certificate in PEM", authorityKey)
		}
		client.DefaultTransport().TLSClientConfig.RootCAs = pool
	}
	if c.thumbprint != "" {
		pin(client.DefaultTransport().TLSClientConfig, c.thumbprint)
	}
	client.CheckRedirect = refuseRedirect
	return client, nil
}

var errOtherCertificate = errors.New("the server has another certificate than the thumbprint names")

// pin accepts the certificate with a thumbprint and no other one, whoever signed it.
func pin(config *tls.Config, thumbprint string) {
	config.InsecureSkipVerify = true // the comparison takes its place
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if soap.ThumbprintSHA256(state.PeerCertificates[0]) != thumbprint {
			return errOtherCertificate
		}
		return nil
	}
}

// refuseRedirect keeps the password from another server, and from plain text.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
