package conformance

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// queue is a transport that delivers messages at least once. It keeps them in a table, so they
// remain when the process ends. Like RabbitMQ, it prefetches messages, and marks redelivered
// messages.
type queue struct {
	db       *sql.DB
	inFlight int // maximum number of unacked messages
}

const queueTable = `CREATE TABLE queue (
	message_id TEXT PRIMARY KEY, delivered INTEGER NOT NULL DEFAULT 0, acked INTEGER NOT NULL DEFAULT 0)`

func (q queue) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			for together := range slices.Chunk(q.prefetch(ctx), q.inFlight) {
				if !q.hand(ctx, out, together) {
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// hand delivers messages, and waits until they are acked or nacked, or until ctx ends.
func (q queue) hand(ctx context.Context, out chan<- *message.Message, msgs []*message.Message) bool {
	for _, msg := range msgs {
		reach("receive", before)
		select {
		case out <- msg:
		case <-ctx.Done():
			return false
		}
	}
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
			reach("ack", before)
			q.exec(`UPDATE queue SET acked = 1 WHERE message_id = $1`, msg.UUID)
			reach("ack", after)
		case <-msg.Nacked():
		case <-ctx.Done():
			return false // the next process gets an unacked message again
		}
	}
	return true
}

func (q queue) prefetch(ctx context.Context) []*message.Message {
	rows, err := q.db.QueryContext(ctx, `SELECT message_id, delivered FROM queue WHERE acked = 0 ORDER BY message_id`)
	if err != nil {
		return nil // either the consumer shuts down, or the caller fetches again
	}
	defer rows.Close()
	var all []*message.Message
	for rows.Next() {
		var id string
		var delivered int
		if rows.Scan(&id, &delivered) != nil {
			return nil
		}
		msg := newMessage(id)
		if delivered > 0 {
			msg.Metadata.Set("once_redelivered", "true")
		}
		all = append(all, msg)
	}
	if rows.Err() != nil {
		return nil
	}
	_ = rows.Close()
	for _, msg := range all {
		q.exec(`UPDATE queue SET delivered = 1 WHERE message_id = $1`, msg.UUID)
	}
	return all
}

func (q queue) exec(query string, args ...any) {
	if _, err := q.db.Exec(query, args...); err != nil {
		panic(err)
	}
}

func (q queue) Close() error { return nil }
