package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/outbox"
)

// exitStatus is the exit status of a process whose handler calls os.Exit.
const exitStatus = 7

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
