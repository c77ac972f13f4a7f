package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/url"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	bodySize    = 490
	headerCount = 6
)

var body = append(append([]byte(`{"text":"`), bytes.Repeat([]byte("x"), bodySize-11)...), `"}`...)

func newMessage() *message.Message {
	msg := message.NewMessage(uuid.Must(uuid.NewV7()).String(), body)
	for n := range headerCount {
		msg.Metadata[fmt.Sprintf("header-%d", n)] = "a value of some length"
	}
	return msg
}

// broker is a fresh queue behind a fanout exchange of the same name.
type broker struct {
	url  string
	name string
}

// onFreshQueue runs a measurement with a queue and a database of its own.
func onFreshQueue(
	ctx context.Context, o options, kind string, messages int,
	do func(ctx context.Context, o options, b *broker, messages int) (float64, error),
) (rate float64, err error) {
	conn, err := amqp.Dial(o.amqpURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	b := &broker{url: o.amqpURL, name: "once-bench-" + uuid.NewString()}
	if _, err := channel.QueueDeclare(b.name, true, false, false, false, amqp.Table{"x-queue-type": kind}); err != nil {
		return 0, err
	}
	defer channel.QueueDelete(b.name, false, false, false) //nolint:errcheck // the queue is this run's own, and the run is over
	if err := channel.ExchangeDeclare(b.name, "fanout", true, false, false, false, nil); err != nil {
		return 0, err
	}
	defer channel.ExchangeDelete(b.name, false, false) //nolint:errcheck // likewise
	if err := channel.QueueBind(b.name, "", b.name, false, nil); err != nil {
		return 0, err
	}
	rate, err = do(ctx, o, b, messages)
	if err != nil {
		return 0, err
	}
	return rate, b.count(channel, messages)
}

// count says whether the queue got at least the messages that were confirmed.
func (b *broker) count(channel *amqp.Channel, least int) error {
	queue, err := channel.QueueDeclarePassive(b.name, true, false, false, false, nil)
	if err != nil {
		return err
	}
	if queue.Messages < least {
		return fmt.Errorf("%d messages were confirmed, but %d are in the queue", least, queue.Messages)
	}
	return nil
}

// config is watermill-amqp's for the queue, with confirms and a channel pool.
func (b *broker) config() wamqp.Config {
	config := wamqp.NewDurablePubSubConfig(b.url, wamqp.GenerateQueueNameConstant(b.name))
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 10
	return config
}

// freshDatabase creates a database and returns a connection to it.
func freshDatabase(ctx context.Context, o options) (db *sql.DB, drop func(), err error) {
	admin, err := sql.Open("postgres", o.pgDSN)
	if err != nil {
		return nil, nil, err
	}
	name := "once_bench_" + uuid.NewString()
	if _, err := admin.ExecContext(ctx, `CREATE DATABASE "`+name+`" TEMPLATE template0`); err != nil {
		_ = admin.Close()
		return nil, nil, err
	}
	address, err := url.Parse(o.pgDSN)
	if err != nil {
		_ = admin.Close()
		return nil, nil, err
	}
	address.Path = "/" + name
	if db, err = sql.Open("postgres", address.String()); err != nil {
		_ = admin.Close()
		return nil, nil, err
	}
	return db, func() {
		_ = db.Close()
		_, _ = admin.ExecContext(context.WithoutCancel(ctx), `DROP DATABASE "`+name+`" WITH (FORCE)`)
		_ = admin.Close()
	}, nil
}
