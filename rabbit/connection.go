package rabbit

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

type connection struct {
	amqp   *amqp091.Connection
	wire   *amqpwire.Conn
	closed chan *amqp091.Error

	timeout time.Duration // time limit of a request
	alone   bool          // whether it belongs to a single subscription
	node    string        // host and port of the node
	others  bool          // whether there are other nodes

	activity atomic.Int64 // number of messages that it has delivered, and of checks of the node
}

// closeWait limits the wait for the broker's reply to a close, and then for the socket, which is
// closed at once when a wait takes longer.
const closeWait = time.Second

func (c *connection) request(ctx context.Context, f func() error) error {
	return c.requestWithin(ctx, c.timeout, f)
}

// requestWithin closes the socket if f takes longer than limit, or if ctx ends, because amqp091 has
// no deadline for requests.
func (c *connection) requestWithin(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.wire.Abort(fmt.Errorf("the broker did not reply within %v", limit)) })
	defer stop()
	return f()
}

// longRequest calls f, which waits for a queue or for the broker's metadata store. There is no
// deadline: a stuck queue or store must not close the connection, which others use. Heartbeats detect
// a broker that does not respond; without them, the deadline of request applies.
func (c *connection) longRequest(f func() error) error {
	if c.amqp.Config.Heartbeat == 0 {
		return c.request(context.Background(), f)
	}
	return f()
}

// err is the reason that amqp091 reports, which is less precise.
func (c *connection) lossReason(err error) error {
	return redact(cmp.Or(c.wire.Failure(), err))
}

// reason and ok are what c.closed has returned.
func (c *connection) closeReason(reason *amqp091.Error, ok bool) error {
	if !ok {
		return errConnectionClosed
	}
	return c.lossReason(reason)
}

// If graceful is true, end asks the broker first. It returns when the socket is closed.
func (c *connection) end(graceful bool) {
	if graceful {
		_ = c.requestWithin(context.Background(), closeWait, c.amqp.Close)
	}
	if !c.amqp.IsClosed() {
		c.wire.Abort(net.ErrClosed)
	}
	defer time.AfterFunc(closeWait, func() { c.wire.Abort(net.ErrClosed) }).Stop()
	<-c.wire.Done()
}

// dialSettings are the settings of a connection that are not in watermill-amqp's configuration.
type dialSettings struct {
	confirmChannels bool // whether the connection needs confirm channels of package amqpwire
	dialTimeout     time.Duration
	writeTimeout    time.Duration
	nodes           *nodes
}

// connect tries the nodes one after another. Each has the same part of the time.
func connect(ctx context.Context, config amqp.ConnectionConfig, dial dialSettings) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.dialTimeout)
	defer cancel()
	uri, err := amqp091.ParseURI(config.AmqpURI)
	if err != nil {
		return nil, uriError(config.AmqpURI)
	}
	// A Dial function may connect to something else than the address.
	resolve := config.AmqpConfig == nil || config.AmqpConfig.Dial == nil
	all := dial.nodes.inOrder(ctx, uri, resolve)
	to := target{limit: dial.dialTimeout / time.Duration(len(all)), others: len(all) > 1}
	var failed error
	for _, to.address = range all {
		c, err := connectTo(ctx, config, dial, to)
		if err == nil {
			dial.nodes.connectedTo(to.address)
			return c, nil
		}
		switch {
		case !to.others:
			return nil, err
		case failed == nil:
			failed = fmt.Errorf("%s: %w", to.hostPort, err)
		default:
			failed = fmt.Errorf("%w; %s: %w", failed, to.hostPort, err)
		}
	}
	return nil, failed
}

// target is a node to which connectTo connects within limit.
type target struct {
	address

	limit  time.Duration
	others bool
}

func connectTo(ctx context.Context, config amqp.ConnectionConfig, dial dialSettings, to target) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, to.limit)
	defer cancel()

	settings := connectionSettings(config)
	if to.others {
		settings.Heartbeat = cmp.Or(settings.Heartbeat, severalNodesHeartbeat) // the heartbeat of the URI has priority
	}
	d := dialer{uri: config.AmqpURI, to: to.address, tls: settings.TLSClientConfig, dial: settings.Dial}
	var wire *amqpwire.Conn
	inTime := func() bool { return ctx.Err() == nil }
	settings.Dial = func(network, _ string) (net.Conn, error) {
		conn, err := d.open(ctx, network)
		if err != nil {
			return nil, err
		}
		wire = amqpwire.NewConn(conn, amqpwire.Config{
			WriteTimeout: dial.writeTimeout, ConfirmChannels: dial.confirmChannels, ChannelMax: settings.ChannelMax,
		})
		inTime = context.AfterFunc(ctx, func() { wire.Abort(ctx.Err()) }) // inTime stops the AfterFunc when it is called
		return wire, nil
	}

	conn, err := amqp091.DialConfig(d.withoutTLS(), settings)
	switch {
	case !inTime():
		err = fmt.Errorf("no connection within %v", to.limit.Round(time.Millisecond))
	case err == nil:
		return &connection{
			amqp:    conn,
			wire:    wire,
			closed:  conn.NotifyClose(make(chan *amqp091.Error, 1)),
			timeout: dial.dialTimeout,
			others:  to.others,
			node:    to.hostPort,
		}, nil
	}
	if wire != nil {
		if reason := wire.CloseReason(); reason != nil {
			err = reason // use our reason, because amqp091 guesses a reason from the time of the close
		}
		wire.Abort(err) // amqp091 leaves the socket open if the handshake fails
		<-wire.Done()
	}
	return nil, redact(err)
}

// connectionSettings copies what amqp091 changes, so that the caller's stays unchanged.
func connectionSettings(config amqp.ConnectionConfig) amqp091.Config {
	var settings amqp091.Config
	if config.AmqpConfig != nil {
		settings = *config.AmqpConfig
	}
	settings.Locale = cmp.Or(settings.Locale, "en_US")
	settings.Properties = maps.Clone(settings.Properties)
	if uri, err := amqp091.ParseURI(config.AmqpURI); err == nil {
		settings.ChannelMax = cmp.Or(settings.ChannelMax, uri.ChannelMax)
	}
	if settings.TLSClientConfig == nil {
		settings.TLSClientConfig = config.TLSConfig
	}
	if settings.TLSClientConfig != nil {
		settings.TLSClientConfig = settings.TLSClientConfig.Clone()
	}
	return settings
}

const schemeTLS = "amqps"

// dialer does the TLS handshake itself. Otherwise amqp091 would encrypt its frames before this
// package can add its own.
type dialer struct {
	uri  string
	to   address
	tls  *tls.Config
	dial func(network, address string) (net.Conn, error) // may be nil
}

// withoutTLS returns the URI for amqp091, which would otherwise begin a second TLS handshake. amqp
// has another default port than amqps, so do not take the port from it.
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
	conn, err := dial(network, d.to.hostPort)
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
		config.ServerName = d.to.host
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// The TLS settings in a URI: https://www.rabbitmq.com/uri-query-parameters.html
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
