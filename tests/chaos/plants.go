package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

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

// planted reports whether a part is broken on purpose.
func (l life) planted(plant string) bool { return slices.Contains(strings.Split(l.Plant, ","), plant) }

// addNaively adds handlers that run in a transaction, without any middleware of the
// library.
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
// topic in the parameter to.
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
