package rabbit

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/watermill-once/once/internal/telemetry"
)

var errConnectionClosed = errors.New("the connection is closed")

// reconnector keeps one connection up until its context ends. It logs when the connection
// is established or lost, but not every attempt.
type reconnector struct {
	ctx      context.Context
	config   amqp.ConnectionConfig
	dial     dialSettings
	pause    retryPause
	logger   watermill.LoggerAdapter
	connects *telemetry.Counter
}

// connectionUser uses the connections that a reconnector opens.
type connectionUser interface {
	// serve uses the connection until the connection is lost or is no longer needed, and
	// returns the reason. The result graceful says whether the broker can be expected to
	// reply to a close.
	serve(c *connection) (graceful bool, reason error)

	// disconnected is called with the reason when an attempt to connect has failed, and
	// when the connection was lost.
	disconnected(reason error)
}

func (r *reconnector) run(user connectionUser) {
	lossLogged := false
	disconnected := func(err error) {
		user.disconnected(err)
		if !lossLogged && r.ctx.Err() == nil {
			r.logger.Error("RabbitMQ connection unavailable, retrying", err, nil)
			lossLogged = true
		}
	}
	for failed := 0; r.pause.wait(r.ctx, failed); {
		c, err := connect(r.ctx, r.config, r.dial)
		r.connects.Add(1, telemetry.Succeeded(err))
		if err != nil {
			disconnected(err)
			failed++
			continue
		}
		r.logger.Info("RabbitMQ connection established", nil)
		lossLogged = false

		began := time.Now()
		graceful, reason := user.serve(c)
		disconnected(reason)
		c.end(graceful)
		failed = r.pause.failures(failed, began)
	}
}
