package rabbit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
)

// dialSettings contains the settings of a connection that are not part of
// watermill-amqp's configuration.
type dialSettings struct {
	confirmChannels bool // whether the connection needs confirm channels of package amqpwire
	dialTimeout     time.Duration
	writeTimeout    time.Duration
}

// connect opens a connection. It fails if this takes longer than dial.dialTimeout.
func connect(ctx context.Context, config amqp.ConnectionConfig, dial dialSettings) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.dialTimeout)
	defer cancel()

	settings := connectionSettings(config)
	d := dialer{uri: config.AmqpURI, tls: settings.TLSClientConfig, dial: settings.Dial}
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
		err = fmt.Errorf("no connection within %v", dial.dialTimeout)
	case err == nil:
		return &connection{
			amqp:    conn,
			wire:    wire,
			closed:  conn.NotifyClose(make(chan *amqp091.Error, 1)),
			timeout: dial.dialTimeout,
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

// connectionSettings returns the same amqp091 settings as watermill-amqp would use. It
// copies every value that amqp091 changes, so that the caller's configuration stays
// unchanged.
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
