package rabbit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const schemeTLS = "amqps"

// dialer opens the network connection. It does the TLS handshake itself. Otherwise
// amqp091 would encrypt its frames before this package can add its own frames.
type dialer struct {
	uri  string
	tls  *tls.Config
	dial func(network, address string) (net.Conn, error) // may be nil
}

// withoutTLS returns the URI for amqp091: amqps is replaced by amqp, so that amqp091
// does not begin a second TLS handshake. Do not take the port to connect to from this
// URI, because amqp has another default port than amqps.
func (d dialer) withoutTLS() string {
	if rest, ok := strings.CutPrefix(d.uri, schemeTLS+":"); ok {
		return "amqp:" + rest
	}
	return d.uri
}

func (d dialer) open(ctx context.Context, network string) (net.Conn, error) {
	uri, err := amqp091.ParseURI(d.uri)
	if err != nil {
		return nil, err
	}
	dial := d.dial
	if dial == nil {
		dial = func(network, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	}
	conn, err := dial(network, net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)))
	if err != nil || uri.Scheme != schemeTLS {
		return conn, err
	}
	config := d.tls
	if config == nil {
		if config, err = tlsConfig(uri); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	if config.ServerName == "" {
		config.ServerName = uri.Host
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// tlsConfig returns the TLS settings in the URI, see
// https://www.rabbitmq.com/uri-query-parameters.html
func tlsConfig(uri amqp091.URI) (*tls.Config, error) {
	config := &tls.Config{ServerName: uri.ServerName}
	if uri.CACertFile != "" {
		pem, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("cacertfile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("cacertfile: the file has no certificate in PEM format")
		}
	}
	if uri.CertFile != "" && uri.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certfile and keyfile: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
