package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// exitStatus is the exit status of a process whose handler calls os.Exit.
const exitStatus = 7

// refusedStatus is the exit status of a process that had no rights at RabbitMQ when it started.
const refusedStatus = 8

// tooLong is how long a slow handler takes. It is longer than the short consumer timeout that the
// broker has during the fault consumer-timeout.
const tooLong = 5 * time.Second

// stumbles is how many attempts of a stumbling message fail. They include all immediate
// attempts, so the message is parked before it succeeds.
const stumbles = 2

// handler returns the handler of a consumer. The handler writes the effect of a message,
// and returns another message for some of the messages. It fails for some kinds of
// messages. A fault such as "replay" repairs the handler for a kind by inserting the kind
// into the table mended.
func (c *consumer) handler(consumer string) once.HandlerFunc {
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		kind := msg.Metadata.Get(headerKind)
		if err := c.misbehave(ctx, tx, kind, msg.UUID); err != nil {
			return nil, err
		}
		if consumer == notices {
			var down bool
			err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM outage)`).Scan(&down)
			if down {
				err = retry.Unavailable(errors.New("the provider is down"))
			}
			if err != nil {
				return nil, err
			}
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id, consumer, intact) VALUES ($1, $2, $3)`,
			effectOf(consumer, msg.UUID), consumer, bytes.Equal(msg.Payload, payload(msg.UUID, kind))); err != nil {
			return nil, err
		}
		if !echoes(consumer, kind, msg.UUID) {
			return nil, nil
		}
		e := event{id: echo(msg.UUID), kind: plain}
		_, err := tx.ExecContext(ctx, `
			INSERT INTO business (message_id, number, tx, topic, kind, ordering_key) VALUES ($1, 0, $2, $3, $4, '')`,
			e.id, "echo", notices, e.kind)
		return []*message.Message{once.To(notices, withMetadataOf(msg, e.message()))}, err
	}
}

// withMetadataOf copies the metadata of the handled message to the message that the
// handler returns, as many handlers do. It does not copy the ordering key and the number
// of the message within this key, because the returned message has no such number.
func withMetadataOf(handled, to *message.Message) *message.Message {
	for key, value := range handled.Metadata {
		if key != headerNumber && key != outbox.OrderingKey && to.Metadata.Get(key) == "" {
			to.Metadata.Set(key, value)
		}
	}
	return to
}

func (c *consumer) misbehave(ctx context.Context, tx *sql.Tx, kind, id string) error {
	switch kind {
	case plain, oversized:
		return nil
	case slow:
		rest(ctx, tooLong)
		return nil
	case intended:
		return c.carryOut(ctx, id)
	case hoarding:
		_, err := tx.ExecContext(ctx, `INSERT INTO hoard (message_id, bytes) VALUES ($1, $2)`, id, make([]byte, 1<<20))
		return err
	case stumbling:
		var attempts int
		if err := c.db.QueryRowContext(ctx, `
			INSERT INTO attempts AS a VALUES ($1, 1) ON CONFLICT (message_id) DO UPDATE SET n = a.n + 1 RETURNING n`,
			id).Scan(&attempts); err != nil || attempts > stumbles {
			return err
		}
		return errors.New("the handler fails")
	}
	var mended bool
	if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM mended WHERE kind = $1)`, kind).Scan(&mended); err != nil || mended {
		return err
	}
	c.tally.add("misbehaved/"+kind, 1)
	switch kind {
	case panicking:
		panic("the handler panics")
	case exiting:
		os.Exit(exitStatus)
	case timingOut:
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
		return err
	case leavingOpen:
		rows, err := tx.QueryContext(ctx, `SELECT generate_series(1, 1000)`) //nolint:sqlclosecheck // that is the fault
		if err != nil || !rows.Next() {
			return errors.Join(err, errors.New("the handler has no rows"))
		}
		if err := rows.Err(); err != nil {
			return err
		}
	case endingTx:
		_, err := tx.ExecContext(ctx, `ROLLBACK AND CHAIN`)
		return err
	case endingSession:
		_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	}
	return errors.New("the handler fails")
}

// Parts that can be broken on purpose, with a mistake that a service could contain.
const (
	plantInbox   = "inbox"   // the consumer has no inbox: messages take effect twice
	plantDelete  = "delete"  // the forwarder deletes rows before the confirm: messages are lost
	plantOrder   = "order"   // the forwarder sends several messages of a key at the same time: their order changes
	plantIntents = "intents" // the consumer does not ask whether a mail was sent: mails are sent twice
	plantKeyLock = "keylock" // transactions publish without the lock of the key: their order changes
	plantPauses  = "pauses"  // the forwarder does not see the pauses: paused messages are sent
	plantLate    = "late"    // the consumer ignores versions that arrive after a higher one: they are lost
	plantOutbox  = "outbox"  // the writer commits an event in a separate transaction: phantoms appear
)

var plants = []string{plantInbox, plantDelete, plantOrder, plantOutbox, plantIntents, plantKeyLock, plantPauses, plantLate}

func (l life) planted(plant string) bool { return slices.Contains(strings.Split(l.Plant, ","), plant) }

func (c *consumer) addNaively(router *message.Router) error {
	for _, topic := range topics {
		sub, err := c.subscriber(8)
		if err != nil {
			return err
		}
		c.addNaive(router, topic, sub, c.handler(topic), notices)
	}
	return nil
}

// addNaive adds one handler. The messages that this handler returns are published to the
// topic in to.
func (c *consumer) addNaive(router *message.Router, topic string, sub message.Subscriber, handle once.HandlerFunc, to string) {
	router.AddConsumerHandler(topic, topic, sub, func(msg *message.Message) error {
		tx, err := c.db.BeginTx(msg.Context(), nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
		produced, err := handle(msg.Context(), tx, msg)
		if err != nil {
			return err
		}
		if len(produced) > 0 {
			if err := outbox.Publisher(tx).Publish(to, produced...); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}

// forwardBadly sends the messages of the outbox from several goroutines, and ignores
// the order of keys. With plantDelete it does not wait for confirms either.
func (a *actor) forwardBadly(ctx context.Context, db *sql.DB, publisher *rabbit.Publisher) {
	for ctx.Err() == nil {
		if n, err := a.batch(ctx, db, publisher); n == 0 || err != nil {
			rest(ctx, 20*time.Millisecond)
		}
	}
}

func (a *actor) batch(ctx context.Context, db *sql.DB, publisher *rabbit.Publisher) (n int, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	rows, err := tx.QueryContext(ctx, `
		SELECT position, topic, message_id, payload, metadata FROM once_outbox ORDER BY position LIMIT 200 FOR UPDATE SKIP LOCKED`)
	if err != nil {
		return 0, err
	}
	var (
		positions []int64
		topics    []string
		messages  []*message.Message
	)
	defer rows.Close()
	for rows.Next() {
		var (
			position       int64
			topic, id      string
			body, metadata []byte
		)
		if err := rows.Scan(&position, &topic, &id, &body, &metadata); err != nil {
			return 0, err
		}
		msg := message.NewMessage(id, body)
		if err := json.Unmarshal(metadata, &msg.Metadata); err != nil {
			return 0, err
		}
		positions, topics, messages = append(positions, position), append(topics, topic), append(messages, msg)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	remove := func(positions []int64) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM once_outbox WHERE position = ANY($1)`, pq.Array(positions)); err != nil {
			return err
		}
		return tx.Commit()
	}
	if a.planted(plantDelete) {
		if err := remove(positions); err != nil {
			return 0, err
		}
		for i, msg := range messages {
			_ = publisher.Publish(topics[i], msg)
		}
		return len(messages), nil
	}
	var (
		mu        sync.Mutex
		confirmed []int64
		workers   sync.WaitGroup
	)
	next := make(chan int)
	for range 8 {
		workers.Go(func() {
			for i := range next {
				if publisher.Publish(topics[i], messages[i]) == nil {
					mu.Lock()
					confirmed = append(confirmed, positions[i])
					mu.Unlock()
				}
			}
		})
	}
	for i := range messages {
		next <- i
	}
	close(next)
	workers.Wait()
	return len(confirmed), remove(confirmed)
}
