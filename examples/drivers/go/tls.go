package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
)

// tlsFiles are the driver's certificate and its key, and the authority of the clients that may call.
type tlsFiles struct{ certificate, key, clientCA string }

// mutualTLS is for CMI_ENDPOINT with tls://, where both sides show a certificate: a client that is let in can use
// the rights of the driver.
func mutualTLS() (credentials.TransportCredentials, error) {
	var files tlsFiles
	for name, place := range map[string]*string{
		"GO_DRIVER_TLS_CERT_FILE":      &files.certificate,
		"GO_DRIVER_TLS_KEY_FILE":       &files.key,
		"GO_DRIVER_TLS_CLIENT_CA_FILE": &files.clientCA,
	} {
		if *place = os.Getenv(name); *place == "" {
			return nil, fmt.Errorf("CMI_ENDPOINT with tls:// needs %s", name)
		}
	}
	// What can't be read ends the driver now, and not each connection later.
	if _, err := files.read(); err != nil {
		return nil, err
	}
	// Read again for every connection: certificates are renewed while the process runs.
	return credentials.NewTLS(&tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.read() },
	}), nil
}

func (f tlsFiles) read() (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(f.certificate, f.key)
	if err != nil {
		return nil, fmt.Errorf("the certificate %s and the key %s can't be used: %w", f.certificate, f.key, err)
	}
	authority, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate of an authority", f.clientCA)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2"},
	}, nil
}
