package rabbit

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/telemetry"
)

var errConnectionClosed = errors.New("connection closed")

// keeper keeps a connection up until its context ends. It logs when that
// changes, not at every attempt.
type keeper struct {
	ctx       context.Context
	config    wamqp.ConnectionConfig
	publishes bool // and so has channels of our own
	pace      pace
	dial      time.Duration // for setting up a connection, and for each request on it
	write     time.Duration
	logger    watermill.LoggerAdapter
	connects  *telemetry.Counter
}

// keeps is what somebody does with the connections that are kept up for it.
type keeps interface {
	// serve uses the connection until it is lost or no more needed, and says
	// why. It says polite if the broker can be expected to answer a close.
	serve(l *link) (polite bool, why error)

	// disconnected is told why there is no connection.
	disconnected(why error)
}

func (k *keeper) keep(who keeps) {
	quiet := false // the loss has been logged
	disconnected := func(err error) {
		who.disconnected(err)
		if !quiet && k.ctx.Err() == nil {
			k.logger.Error("No connection to RabbitMQ, will keep trying", err, nil)
			quiet = true
		}
	}
	for failed := 0; k.pace.pause(k.ctx, failed); failed++ {
		l, err := k.open()
		k.connects.Add(1, telemetry.Succeeded(err))
		if err != nil {
			disconnected(err)
			continue
		}
		k.logger.Info("Connected to RabbitMQ", nil)
		quiet = false

		began := time.Now()
		polite, why := who.serve(l)
		disconnected(why)
		l.end(polite)
		if k.pace.lasted(began) {
			failed = -1
		}
	}
}

func (k *keeper) open() (*link, error) {
	conn, shared, err := connect(k.ctx, k.config, k.publishes, k.dial, k.write)
	if err != nil {
		return nil, err
	}
	return &link{
		conn:    conn,
		mux:     shared,
		closed:  conn.NotifyClose(make(chan *amqp.Error, 1)),
		timeout: k.dial,
	}, nil
}
