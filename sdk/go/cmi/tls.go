package cmi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles are PEM files for an endpoint with TLS. Both sides show a certificate: a client that may call uses the rights
// of the driver. The files are read again for each connection.
type TLSFiles struct {
	// Certificate and Key are those of the driver.
	Certificate, Key string
	// ClientCA has the authorities of the clients that may call.
	ClientCA string
}

func (f TLSFiles) config() (*tls.Config, error) {
	if f.Certificate == "" || f.Key == "" || f.ClientCA == "" {
		return nil, errors.New("an endpoint with tls:// needs --tls-cert-file, --tls-key-file and --client-ca-file")
	}
	// Unusable files end the driver now, instead of each connection later.
	if _, err := f.read(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.read() },
	}, nil
}

func (f TLSFiles) read() (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot use the certificate %s with the key %s: %w", f.Certificate, f.Key, err)
	}
	authority, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", f.ClientCA)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2"},
	}, nil
}
