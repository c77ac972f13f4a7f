package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/lazytx"
	"github.com/watermill-once/once/rabbit"
)

// environment tells a process which role it plays.
const environment = "ONCE_CHAOS_ROLE"

// Roles.
const (
	writing    = "writer"
	forwarding = "forwarder"
	consuming  = "consumer"
)

// life is what a process is told.
type life struct {
	Role    string `json:"role"`
	Name    string `json:"name"` // no two lives have the same
	DSN     string `json:"dsn"`
	Lazy    bool   `json:"lazy"` // its transactions begin with their first statement
	AMQP    string `json:"amqp"`
	Journal string `json:"journal"` // a writer's
	Plant   string `json:"plant"`   // what is broken on purpose
}

// order is what a process is told later, by its standard input.
type order struct {
	Do    string        `json:"do"`
	Kind  string        `json:"kind"`
	Count int           `json:"count"`
	For   time.Duration `json:"for"`
}

// actor is what all roles have.
type actor struct {
	life

	tally  *tally
	orders chan order
}

// play lives a life until standard input ends, and returns its exit status.
func play(told string) int {
	a := &actor{tally: newTally(), orders: make(chan order, 100)}
	if err := json.Unmarshal([]byte(told), &a.life); err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %s is for the processes that this command starts, and must not be set: %v\n", environment, err)
		return statusUsage
	}
	if err := a.play(); err != nil {
		fmt.Fprintln(os.Stderr, a.Name, err)
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
	connector, err := pq.NewConnector(a.DSN)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	if a.Lazy {
		db = sql.OpenDB(lazytx.Connector(connector))
	}
	defer db.Close()
	db.SetConnMaxIdleTime(2 * time.Second) // so that what leaks is what is left
	switch a.Role {
	case writing:
		return a.write(ctx, db)
	case forwarding:
		return a.forward(ctx, db)
	case consuming:
		return a.consume(ctx, db)
	}
	return errors.New("no such role: " + a.Role)
}

// exchanges is a fanout exchange for each topic and a queue for its consumer. A
// queue that is full says no; it never drops.
func exchanges(url string) wamqp.Config {
	config := wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix("effects"))
	config.Marshaler = rabbit.Marshaler{}
	config.Queue.Arguments = amqp.Table{"x-overflow": "reject-publish"}
	return config
}

func queueOf(topic string) string { return topic + "_effects" }
