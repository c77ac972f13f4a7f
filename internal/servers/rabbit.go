package servers

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"syscall"
	"time"
)

// RabbitConfig configures a private RabbitMQ.
type RabbitConfig struct {
	// BinDir is the directory of rabbitmq-server and rabbitmqctl. Defaults to the
	// directories of the packages for Debian, Red Hat and Homebrew, then to PATH.
	BinDir string

	// Settings are lines of rabbitmq.conf, for example "consumer_timeout = 5000". All other
	// settings have RabbitMQ's defaults.
	Settings []string

	// Patience is how long the start may take. Defaults to 5 minutes.
	Patience time.Duration

	// Peer is a broker whose cluster the new broker joins. It must be running when the
	// new broker starts. If it is nil, the new broker is not part of a cluster.
	Peer *Rabbit
}

// Rabbit is a private RabbitMQ broker with one node, which runs as a child of this
// process. The user is guest, with the password guest. Do not call two methods that
// change the state of the broker at the same time.
type Rabbit struct {
	config RabbitConfig
	dir    tempDir
	node   node
	epmd   *child // Erlang's port mapper; it keeps running when the broker is killed
	server *child
	close  func() error
}

// StartRabbit creates and starts a new node, and returns when it is ready. This takes a
// few seconds.
func StartRabbit(ctx context.Context, config RabbitConfig) (*Rabbit, error) {
	r, err := startRabbit(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: RabbitMQ: %w", err)
	}
	return r, nil
}

// URL returns the AMQP URL of a virtual host; "/" always exists.
func (r *Rabbit) URL(vhost string) string {
	return fmt.Sprintf("amqp://guest:guest@%s/%s", r.Address(), url.PathEscape(vhost))
}

// Address returns the host and port of the server.
func (r *Rabbit) Address() string { return loopback(r.node.port) }

// Kill ends the broker with SIGKILL, and returns when it has ended. Confirmed
// persistent messages still exist after [Rabbit.Restart] if their queue still exists,
// see [Rabbit.WriteDefinitions].
func (r *Rabbit) Kill() { r.server.kill() }

// Stop shuts the broker down. The broker closes its connections.
func (r *Rabbit) Stop() { r.server.stop(syscall.SIGTERM, r.config.Patience) }

// Restart starts the broker again, on the same port and with the same data, and returns
// when it is ready. It stops a running broker first.
func (r *Rabbit) Restart(ctx context.Context) error {
	r.Stop()
	if err := r.start(ctx); err != nil {
		return fmt.Errorf("servers: RabbitMQ: restart: %w", err)
	}
	return nil
}

// Freeze stops the broker with SIGSTOP. Connections stay open, but the broker does not
// answer.
func (r *Rabbit) Freeze() { r.server.freeze() }

// Thaw lets the broker continue after [Rabbit.Freeze].
func (r *Rabbit) Thaw() { r.server.thaw() }

// Close ends the broker and removes its data. Further calls do nothing, and return the
// result of the first call.
func (r *Rabbit) Close() error { return r.close() }

func (r *Rabbit) discard() error {
	// The data is not needed any more, and a shutdown would take seconds.
	r.server.kill()
	r.epmd.kill()
	return r.dir.remove()
}

func (r *Rabbit) path(name string) string { return filepath.Join(r.dir.path, name) }
