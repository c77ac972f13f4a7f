package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	stock "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/outbox/pgxoutbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// content is the content of each event and job.
var content = strings.Repeat("order ", 50)

// peers contains the systems that are compared, in the order in which they are measured.
var peers = []peer{
	{"nothing: the business row alone", 1, openBare},
	{"watermill-once, pgx", 1, ours},
	{"River, as documented", 1, withRiver(asDocumented)},
	{"River, looking for jobs each ms", 1, withRiver(oftener)},
	{"stock Watermill", 10, stockWatermill},
}

func openBare(_ context.Context, s *scene) (commit, work, error) {
	return func(ctx context.Context, id string) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, business, id)
			return err
		})
	}, nil, nil
}

// queue returns the configuration of a new quorum queue, which RabbitMQ deletes when
// nobody has used it for a minute.
func (s *scene) queue(topic string) wamqp.Config {
	config := wamqp.NewDurableQueueConfig(s.url)
	config.Queue.GenerateName = wamqp.GenerateQueueNameConstant(topic)
	config.Queue.Arguments = map[string]any{"x-queue-type": "quorum", "x-expires": int32(time.Minute.Milliseconds())}
	return config
}

func ours(ctx context.Context, s *scene) (commit, work, error) {
	db := sql.OpenDB(lazytx.Connector(stdlib.GetPoolConnector(s.pool)))
	db.SetMaxIdleConns(connected)
	s.first = db.Close
	if err := schema.Up(ctx, db, schema.Config{}); err != nil {
		return nil, nil, err
	}
	topic := "once-peers-" + uuid.NewString()
	hint := func() {}
	commit := func(ctx context.Context, id string) error {
		return pgxoutbox.InTx(ctx, s.pool, func(tx pgx.Tx, events message.Publisher) error {
			if _, err := tx.Exec(ctx, business, id); err != nil {
				return err
			}
			return events.Publish(topic, message.NewMessage(id, []byte(content)))
		}, func() { hint() })
	}
	work := func(ctx context.Context, handled *handled) error {
		config := s.queue(topic)
		config.Marshaler = rabbit.Marshaler{}
		quiet := watermill.NopLogger{}
		publisher, err1 := rabbit.NewPublisher(config, rabbit.PublisherConfig{Logger: quiet})
		subscriber, err2 := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: quiet})
		consumer, err3 := once.NewConsumer(db, once.ConsumerConfig{Logger: quiet})
		router, err4 := message.NewRouter(message.RouterConfig{}, quiet)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		f, err := forwarder.New(db, publisher, forwarder.Config{Logger: quiet})
		if err != nil {
			return err
		}
		hint = f.Hint
		router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				handled.begin(msg.UUID)
				produced, err := h(msg)
				if err == nil {
					handled.end()
				}
				return produced, err
			}
		})
		consumer.AddHandler(router, "peers", topic, subscriber,
			func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				_, err := tx.ExecContext(ctx, effect, msg.UUID)
				return nil, err
			})
		return once.Run(ctx, 25*time.Second, router, f, publisher)
	}
	return commit, work, nil
}

// stockWatermill uses watermill-sql's publisher, Watermill's forwarder and
// watermill-amqp. Its consumer keeps a table of ids, so that a message has one effect. A
// subscription handles one message at a time, so eight subscriptions are used.
func stockWatermill(ctx context.Context, s *scene) (commit, work, error) {
	db := stdlib.OpenDBFromPool(s.pool)
	db.SetMaxIdleConns(connected)
	s.first = db.Close
	quiet := watermill.NopLogger{}
	topic := "once-peers-" + uuid.NewString()
	schemaOf := wsql.DefaultPostgreSQLSchema{}
	if _, err := db.ExecContext(ctx, `CREATE TABLE ids (id text PRIMARY KEY)`); err != nil {
		return nil, nil, err
	}
	tables, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		ConsumerGroup: "peers", SchemaAdapter: schemaOf, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, quiet)
	if err == nil {
		err = tables.SubscribeInitialize("events")
	}
	if err != nil {
		return nil, nil, err
	}
	commit := func(ctx context.Context, id string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it does nothing
		if _, err := tx.ExecContext(ctx, business, id); err != nil {
			return err
		}
		stored, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: schemaOf}, quiet)
		if err != nil {
			return err
		}
		events := stock.NewPublisher(stored, stock.PublisherConfig{ForwarderTopic: "events"})
		if err := events.Publish(topic, message.NewMessage(id, []byte(content))); err != nil {
			return err
		}
		return tx.Commit()
	}
	work := func(ctx context.Context, handled *handled) error {
		config := s.queue(topic)
		config.Publish.ConfirmDelivery = true
		config.Publish.ChannelPoolSize = 10
		publisher, err1 := wamqp.NewPublisher(config, quiet)
		subscriber, err2 := wamqp.NewSubscriber(config, quiet)
		router, err3 := message.NewRouter(message.RouterConfig{}, quiet)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		f, err := stock.NewForwarder(tables, publisher, quiet, stock.Config{ForwarderTopic: "events"})
		if err != nil {
			return err
		}
		for n := range writers {
			router.AddConsumerHandler(fmt.Sprint("peers-", n), topic, subscriber, func(msg *message.Message) error {
				handled.begin(msg.UUID)
				err := handleOnce(msg.Context(), db, msg.UUID)
				if err == nil {
					handled.end()
				}
				return err
			})
		}
		errs := make(chan error, 2)
		go func() { errs <- router.Run(ctx) }()
		go func() { errs <- f.Run(context.WithoutCancel(ctx)) }()
		<-ctx.Done()
		return errors.Join(f.Close(), router.Close(), <-errs, <-errs, publisher.Close(), subscriber.Close())
	}
	return commit, work, nil
}

func handleOnce(ctx context.Context, db *sql.DB, id string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	result, err := tx.ExecContext(ctx, `INSERT INTO ids (id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
	if err != nil {
		return err
	}
	if fresh, err := result.RowsAffected(); err != nil || fresh == 0 {
		return err
	}
	if _, err := tx.ExecContext(ctx, effect, id); err != nil {
		return err
	}
	return tx.Commit()
}
