package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/rabbit"
)

// environment is the environment variable that tells a process what to do. Its value is
// the JSON of a struct of type life.
const environment = "ONCE_CHAOS_ROLE"

// Roles of the processes.
const (
	writing    = "writer"
	forwarding = "forwarder"
	consuming  = "consumer"
)

// life is the configuration of one process of a member.
type life struct {
	Role    string        `json:"role"`
	Name    string        `json:"name"` // unique
	DSN     string        `json:"dsn"`
	Pgx     bool          `json:"pgx"`  // the driver is pgx, not lib/pq
	Lazy    bool          `json:"lazy"` // lazytx is used: events are sent with COMMIT, and BEGIN with the first statement
	AMQP    string        `json:"amqp"`
	Nodes   []string      `json:"nodes"`   // addresses of the nodes of RabbitMQ
	Quorum  bool          `json:"quorum"`  // queues are quorum queues
	Poll    time.Duration `json:"poll"`    // between two looks at the tables of forwarders and consumers; 0 means their default
	Journal string        `json:"journal"` // writers only
	Plant   string        `json:"plant"`   // parts that are broken on purpose
}

// order is a command that the test process writes to the standard input of a process.
type order struct {
	Do    string        `json:"do"`
	Kind  string        `json:"kind"`
	Count int           `json:"count"`
	For   time.Duration `json:"for"`
}

// actor contains the fields that the processes of all roles need.
type actor struct {
	life

	tally  *tally
	orders chan order
}

// play runs a process until its standard input ends, and returns its exit status.
// told is the life of the process as JSON.
func play(told string) int {
	a := &actor{tally: newTally(), orders: make(chan order, 100)}
	if err := json.Unmarshal([]byte(told), &a.life); err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %s is for the processes that this command starts, and must not be set: %v\n", environment, err)
		return statusUsage
	}
	if err := a.play(); err != nil {
		fmt.Fprintln(os.Stderr, a.Name, err)
		if refused, ok := errors.AsType[*amqp.Error](err); ok && refused.Code == amqp.AccessRefused {
			return refusedStatus
		}
		return 1
	}
	return 0
}

func (a *actor) play() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var o order
			if json.Unmarshal(lines.Bytes(), &o) == nil {
				a.orders <- o
			}
		}
	}()
	go a.tally.report(os.Stdout)
	db, err := a.open()
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetConnMaxIdleTime(2 * time.Second) // idle connections are closed, so that after the run only leaked connections remain
	switch a.Role {
	case writing:
		return a.write(ctx, db)
	case forwarding:
		return a.forward(ctx, db)
	case consuming:
		return a.consume(ctx, db)
	case branching:
		return a.branch(ctx, db)
	}
	return errors.New("no such role: " + a.Role)
}

func (l life) open() (*sql.DB, error) {
	var connector driver.Connector
	dsn := l.DSN
	if l.Role == forwarding && l.planted(plantPauses) {
		dsn += " application_name=blind"
	}
	if l.Pgx {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		connector = stdlib.GetConnector(*config)
	} else {
		c, err := pq.NewConnector(dsn)
		if err != nil {
			return nil, err
		}
		connector = c
	}
	if l.Lazy {
		connector = lazytx.Connector(connector)
	}
	return sql.OpenDB(connector), nil
}

// exchanges returns a configuration with a fanout exchange for each topic and a queue
// for its consumer. A full queue refuses messages, and never drops one.
func exchanges(url string, quorum bool) wamqp.Config {
	config := wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix("effects"))
	config.Marshaler = rabbit.Marshaler{}
	config.Queue.Arguments = amqp.Table{"x-overflow": "reject-publish"}
	if quorum {
		config.Queue.Arguments[amqp.QueueTypeArg] = amqp.QueueTypeQuorum
	}
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 20 * time.Millisecond, BackoffMaxInterval: 500 * time.Millisecond,
	}
	return config
}

func queueOf(topic string) string { return topic + "_effects" }

func (a *actor) forward(ctx context.Context, db *sql.DB) error {
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	fwd, publisher, err := a.newForwarder(db)
	if err != nil {
		return err
	}
	if a.planted(plantDelete) || a.planted(plantOrder) {
		a.forwardBadly(ctx, db, publisher)
		return publisher.Close()
	}
	return errors.Join(fwd.Run(ctx), publisher.Close())
}

// newForwarder returns a forwarder. Its intervals are short, so that it notices faults
// while they are active. It gives up only on messages that the broker can never accept.
func (a *actor) newForwarder(db *sql.DB) (*forwarder.Forwarder, *rabbit.Publisher, error) {
	publisher, err := rabbit.NewPublisher(exchanges(a.AMQP, a.Quorum), rabbit.PublisherConfig{
		Nodes:          a.Nodes,
		ConfirmTimeout: 5 * time.Second,
		ReadyTimeout:   500 * time.Millisecond,
		DialTimeout:    5 * time.Second,
		WriteTimeout:   3 * time.Second,
		CloseTimeout:   3 * time.Second,
		MeterProvider:  a.tally.meters,
		Logger:         newLog(a.Name),
	})
	if err != nil {
		return nil, nil, err
	}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{
		PollMax:       a.Poll,
		Backoff:       forwarder.Exponential(50*time.Millisecond, 500*time.Millisecond),
		MaxAttempts:   1_000_000,
		StallTimeout:  5 * time.Second,
		Lease:         forwarderLease,
		CloseTimeout:  5 * time.Second,
		MeterProvider: a.tally.meters,
		Logger:        newLog(a.Name),
	})
	return fwd, publisher, err
}

const forwarderLease = 2 * time.Second
