package servers

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"syscall"
	"time"
)

// RabbitConfig says how a private RabbitMQ is started.
type RabbitConfig struct {
	// BinDir holds rabbitmq-server and rabbitmqctl. Defaults to where packages
	// for Debian, Red Hat and Homebrew put them, then to that of PATH.
	BinDir string

	// Settings are lines of rabbitmq.conf, as "consumer_timeout = 5000".
	// Defaults to RabbitMQ's own.
	Settings []string

	// Patience is how long it may take to become ready. Defaults to 2 minutes.
	Patience time.Duration

	// Peer is a broker of a cluster that the new one joins. It must run while
	// that starts. Defaults to none.
	Peer *Rabbit
}

// Rabbit is a private RabbitMQ broker of one node, a child of this process.
// The user is guest, the password guest. Methods that change its state must
// not be called at the same time.
type Rabbit struct {
	config RabbitConfig
	dir    tempDir
	node   node
	epmd   *child // where Erlang nodes find each other; it stays when the broker is killed
	server *child
	close  func() error
}

// StartRabbit makes a new node and starts it. It is ready when StartRabbit
// returns, which takes a few seconds.
func StartRabbit(ctx context.Context, config RabbitConfig) (*Rabbit, error) {
	r, err := startRabbit(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: RabbitMQ: %w", err)
	}
	return r, nil
}

// URL returns the AMQP URL of one of its virtual hosts; "/" always exists.
func (r *Rabbit) URL(vhost string) string {
	return fmt.Sprintf("amqp://guest:guest@%s/%s", r.Address(), url.PathEscape(vhost))
}

// Address returns the host and port it listens on.
func (r *Rabbit) Address() string { return loopback(r.node.port) }

// Kill ends the broker with SIGKILL, and returns when it is gone. Persistent
// messages that were confirmed are there after [Rabbit.Restart], if their queue
// is: see [Rabbit.WriteDefinitions].
func (r *Rabbit) Kill() { r.server.kill() }

// Stop ends the broker as its operator would: it closes the connections.
func (r *Rabbit) Stop() { r.server.stop(syscall.SIGTERM, r.config.Patience) }

// Restart starts the broker again, on the same port and with the same data,
// and returns when it is ready. One that still runs is stopped first.
func (r *Rabbit) Restart(ctx context.Context) error {
	r.Stop()
	if err := r.start(ctx); err != nil {
		return fmt.Errorf("servers: RabbitMQ: restart: %w", err)
	}
	return nil
}

// Freeze stops the broker where it is: connections stay open, nothing answers.
func (r *Rabbit) Freeze() { r.server.freeze() }

// Thaw lets it go on after [Rabbit.Freeze].
func (r *Rabbit) Thaw() { r.server.thaw() }

// Close ends the broker and removes its data. Further calls return the same.
func (r *Rabbit) Close() error { return r.close() }

func (r *Rabbit) discard() error {
	// Nothing needs to be written any more, and a broker that is asked to end
	// takes seconds.
	r.server.kill()
	r.epmd.kill()
	return r.dir.remove()
}

func (r *Rabbit) path(name string) string { return filepath.Join(r.dir.path, name) }
