// Command cqrs sends a command, whose handler publishes an event, with Watermill's cqrs component. It needs no servers:
//
//	go run ./examples/cqrs
//
// Each handler takes effect once. Its transaction contains its writes and the events that it publishes.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

type (
	PlaceOrder struct {
		ID    string
		Cents int
	}
	OrderPlaced struct {
		ID    string
		Cents int
	}
	OrderBilled struct{ ID string }
)

const (
	commandsTopic, eventsTopic = "commands", "events"
	business                   = `
		CREATE TABLE IF NOT EXISTS orders (id TEXT);
		CREATE TABLE IF NOT EXISTS invoices (order_id TEXT, cents INTEGER)`
)

var (
	tables    = schema.Config{Dialect: schema.SQLite}
	marshaler = eventbus.Marshaler{CommandEventMarshaler: cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName}}
)

func main() {
	dir, err := os.MkdirTemp("", "cqrs-")
	if err == nil {
		err = errors.Join(run(context.Background(), filepath.Join(dir, "cqrs.db"), os.Stdout), os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run places an order, and returns when it is billed.
func run(ctx context.Context, file string, out io.Writer) error {
	ctx, billed := context.WithCancel(ctx)
	defer billed()
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return err
	}
	if err := schema.Up(ctx, db, tables); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, business); err != nil {
		return err
	}
	box, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		return err
	}
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	if err != nil {
		return err
	}
	fwd, err := forwarder.New(db, transport, forwarder.Config{Schema: tables})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	commands, events, err := buses(eventbus.Publisher(box.Publisher))
	if err != nil {
		return err
	}
	s := &shop{events: events, out: out, billed: billed}
	if err := s.addHandlers(db, router, transport.Subscriber()); err != nil {
		return err
	}
	err = box.InTx(ctx, db, func(tx *sql.Tx, _ message.Publisher) error {
		return commands.Send(eventbus.WithTx(ctx, tx), PlaceOrder{ID: "order-1", Cents: 1290})
	})
	if err != nil {
		return err
	}
	return once.Run(ctx, 0, router, fwd, db)
}

func buses(publisher message.Publisher) (*cqrs.CommandBus, *cqrs.EventBus, error) {
	commands, err := cqrs.NewCommandBusWithConfig(publisher, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return commandsTopic, nil },
		Marshaler:            marshaler,
	})
	if err != nil {
		return nil, nil, err
	}
	events, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return eventsTopic, nil },
		Marshaler:            marshaler,
	})
	return commands, events, err
}

type shop struct {
	events *cqrs.EventBus
	out    io.Writer
	billed func()
}

func (s *shop) addHandlers(db *sql.DB, router *message.Router, sub message.Subscriber) error {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables})
	if err != nil {
		return err
	}
	commands, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return commandsTopic, nil },
		SubscriberConstructor: func(params cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			known := eventbus.KnownEvents(marshaler, params.Handler.NewCommand())
			return consumer.Subscriber(router, params.HandlerName, sub, known), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	events, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return eventsTopic, nil },
		SubscriberConstructor: func(params cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			known := eventbus.KnownEvents(marshaler, OrderPlaced{}, OrderBilled{})
			return consumer.Subscriber(router, params.EventGroupName, sub, known), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	// The names of the consumers: never change them.
	if err := commands.AddHandlers(cqrs.NewCommandHandler("orders", s.place)); err != nil {
		return err
	}
	return events.AddHandlersGroup("billing", cqrs.NewGroupEventHandler(s.bill), cqrs.NewGroupEventHandler(s.report))
}

func (s *shop) place(ctx context.Context, command *PlaceOrder) error {
	tx, _ := dedup.TxFromContext(ctx) // the inbox always sets it
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1)`, command.ID); err != nil {
		return err
	}
	return s.events.Publish(ctx, OrderPlaced(*command)) // in the same transaction
}

func (s *shop) bill(ctx context.Context, event *OrderPlaced) error {
	tx, _ := dedup.TxFromContext(ctx)
	if _, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES ($1, $2)`, event.ID, event.Cents); err != nil {
		return err
	}
	return s.events.Publish(ctx, OrderBilled{event.ID})
}

func (s *shop) report(ctx context.Context, event *OrderBilled) error {
	fmt.Fprintln(s.out, event.ID, "is billed")
	return dedup.AfterCommit(ctx, s.billed)
}
