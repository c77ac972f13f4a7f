package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

func validateConnection(config amqp.ConnectionConfig) error {
	if config.AmqpURI == "" {
		return errors.New("rabbit: Connection.AmqpURI is empty")
	}
	var errs []error
	if _, err := amqp091.ParseURI(config.AmqpURI); err != nil {
		errs = append(errs, uriError(config.AmqpURI))
	}
	if config.TLSConfig != nil && config.AmqpConfig != nil && config.AmqpConfig.TLSClientConfig != nil {
		errs = append(errs, errors.New(
			"rabbit: Connection.TLSConfig and Connection.AmqpConfig.TLSClientConfig are both set"))
	}
	return errors.Join(errs...)
}

// uriError does not say what the parser found: parsers quote what they cannot
// read, and a password with a "#" in it is read as a port.
func uriError(uri string) error {
	switch {
	case !strings.HasPrefix(uri, "amqp://") && !strings.HasPrefix(uri, "amqps://"):
		return errors.New("rabbit: Connection.AmqpURI must start with amqp:// or amqps://")
	case strings.ContainsAny(uri, " \t\r\n"):
		return errors.New("rabbit: Connection.AmqpURI contains white space")
	}
	return errors.New("rabbit: Connection.AmqpURI cannot be parsed (not shown here, for the password in it); " +
		"user, password and virtual host have to be percent-encoded, and parameters be numbers where they should")
}

// connect opens a connection within dialTimeout. What comes back beside it is
// what it runs on.
func connect(
	ctx context.Context, config amqp.ConnectionConfig, publishes bool, dialTimeout, writeTimeout time.Duration,
) (*amqp091.Connection, *mux, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()

	settings := connectionSettings(config)
	d := dialer{uri: config.AmqpURI, tls: settings.TLSClientConfig, dial: settings.Dial}
	var shared *mux
	inTime := func() bool { return ctx.Err() == nil }
	settings.Dial = func(network, _ string) (net.Conn, error) {
		conn, err := d.open(ctx, network)
		if err != nil {
			return nil, err
		}
		shared = newMux(newSocket(conn, writeTimeout))
		shared.publishes, shared.wanted = publishes, settings.ChannelMax
		inTime = context.AfterFunc(ctx, func() { shared.abort(ctx.Err()) }) // stops it, later
		return shared, nil
	}

	conn, err := amqp091.DialConfig(d.withoutTLS(), settings)
	switch {
	case !inTime():
		err = fmt.Errorf("no connection within %v", dialTimeout)
	case err == nil:
		return conn, shared, nil
	}
	if shared != nil {
		if reason := shared.refusal(); reason != nil {
			err = reason // amqp091 guesses from when the connection was closed
		}
		shared.abort(err) // amqp091 leaves it open when the handshake fails
		<-shared.done
	}
	return nil, nil, redact(err)
}

// connectionSettings are amqp091's, as watermill-amqp would use them. They are
// a copy as deep as amqp091 writes into them.
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
