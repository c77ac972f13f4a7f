package servers

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"time"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"
)

const probeTimeout = 5 * time.Second

// askPostgres executes a query that returns one string. An answer shows that the server
// is ready. An open port does not show this, because a server that is starting or
// frozen also has an open port.
func askPostgres(ctx context.Context, dsn, query string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	config, err := pq.NewConfig(dsn)
	if err != nil {
		return "", errDSN // err may contain the password
	}
	config.ConnectTimeout = 0 // lib/pq would remove the deadline that the dialer sets
	connector, err := pq.NewConnectorConfig(config)
	if err != nil {
		return "", err
	}
	connector.Dialer(dialer{ctx})
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	err = db.QueryRowContext(ctx, query).Scan(&answer)
	return answer, err
}

// askRabbit logs in to a broker, opens the virtual host, and returns the name of the
// cluster. It fails while the broker is starting.
func askRabbit(ctx context.Context, url string) (cluster string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, err = amqp.ParseURI(url); err != nil {
		return "", errURL // err may contain the password
	}
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: dialer{ctx}.Dial})
	if err != nil {
		return "", err
	}
	cluster, _ = conn.Properties["cluster_name"].(string)
	return cluster, conn.Close()
}

// dialer opens connections that break at the deadline of a context. Neither lib/pq nor
// amqp091 itself ends a handshake when the context ends.
type dialer struct{ ctx context.Context }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(d.ctx, network, address)
}

// DialTimeout implements pq.Dialer.
func (d dialer) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return d.Dial(network, address)
}

// DialContext implements pq.DialerContext.
func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := d.ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	return conn, err
}

// await calls probe until it returns nil. It returns an error if the child ends first,
// or if probe has not succeeded after the timeout.
func await(ctx context.Context, c *child, name string, timeout time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-c.gone:
			return c.failure(name + " ended while it started")
		case <-ctx.Done():
			return c.failure(fmt.Sprintf("%s is not ready (%v): %v", name, context.Cause(ctx), err))
		}
	}
}
