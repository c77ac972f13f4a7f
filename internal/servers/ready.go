package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"
)

const probeTimeout = 5 * time.Second

// askPostgres says what is wrong with the PostgreSQL at dsn; ready is a query
// that is answered, because the port opens before.
func askPostgres(ctx context.Context, dsn, query string) (answer string, err error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return "", errors.New("the DSN cannot be read") // err could hold the password
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err = db.QueryRowContext(ctx, query).Scan(&answer)
	return answer, err
}

// askRabbit says what is wrong with the RabbitMQ at url; ready is a complete
// AMQP handshake with an open virtual host. The answer is the cluster's name.
func askRabbit(ctx context.Context, url string) (cluster string, err error) {
	if _, err = amqp.ParseURI(url); err != nil {
		return "", errors.New("the URL cannot be read") // err could hold the password
	}
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: probeTimeout}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return conn, conn.SetDeadline(time.Now().Add(probeTimeout))
	}})
	if err != nil {
		return "", err
	}
	cluster, _ = conn.Properties["cluster_name"].(string)
	return cluster, conn.Close()
}

// await polls probe until it returns nil. It gives up when the child has
// ended, or after patience.
func await(ctx context.Context, c *child, name string, patience time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil && c.running() {
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
