package failpoints

import (
	"database/sql"
	"strings"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	stock "github.com/ThreeDotsLabs/watermill/components/forwarder"

	"github.com/watermill-once/once/internal/test/kit"
)

// old inserts rows that have expired.
func old(w *world) {
	w.Helper()
	w.exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		VALUES (1, 'old', 'orders', '', '{}', now() - interval '2 hours', now() - interval '2 hours')`)
	w.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('old', 'orders', '', now() - interval '40 days')`)
	w.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, finished_at)
		VALUES ('orders', 'orders', 'old', '', '', 'resolved', now(), now() - interval '40 days')`)
}

// crashed starts processes that end when their handler gets the message m1, until the crash budget
// of m1 is used up. Messages that were handled at the same time lose their crashes, because with
// one more they would be quarantined too.
func crashed(w *world) {
	for w.count(`once_parked WHERE message_id = 'm1' AND crashes >= 2`) == 0 {
		if status := begin(w.T, w.program, w.life, "").end(w.T); status.ExitStatus() != exitStatus {
			w.Fatalf("the handler should end the process, but the process ended with %v", status)
		}
	}
	w.exec(`UPDATE once_parked SET crashes = 0 WHERE message_id <> 'm1'`)
}

// damaged inserts a parked row that cannot be decoded.
func damaged(w *world) {
	w.Helper()
	w.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		VALUES ('orders', 'orders', 'damaged', '', '', 'waiting', now())`)
}

func forgotten(w *world) {
	w.Helper()
	for _, table := range []string{"once_outbox_sent", "once_inbox", "once_parked"} {
		if n := w.count(table + ` WHERE message_id = 'old'`); n > 0 {
			w.Errorf("an expired row is still in %s", table)
		}
	}
	w.same("sent", w.strings(`SELECT message_id FROM once_outbox_sent`), w.wanted())
}

// deadLetter inserts a dead letter that blocks its key, and a message of this key that
// waits.
func deadLetter(w *world) {
	w.Helper()
	w.put("d1", "d2")
	w.exec(`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts,
			last_error, reason, unknown)
		SELECT position, message_id, topic, ordering_key, payload, metadata, created_at, 20, 'refused', 'exhausted', false
		FROM once_outbox WHERE message_id = 'd1'`)
	w.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
		SELECT ordering_key, position, position, 'dead' FROM once_outbox WHERE message_id = 'd1'`)
	w.exec(`DELETE FROM once_outbox WHERE message_id = 'd1'`)
}

// backingOff inserts a message that waits for its next attempt, and another message of the same
// key, which waits behind it.
func backingOff(w *world) {
	w.Helper()
	w.put("d1", "d2")
	w.exec(`UPDATE once_outbox SET due_at = now() + interval '1 hour', failing_since = now(), attempts = 1, last_error = 'refused'
		WHERE message_id = 'd1'`)
	w.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
		SELECT ordering_key, position, position, 'refused' FROM once_outbox WHERE message_id = 'd1'`)
}

func replayedOnce(w *world) {
	w.Helper()
	w.audited("replay", len(stuck))
	if n := w.count(`once_parked WHERE message_id IN (` + join(stuck) + `) AND state = 'resolved' AND replays = 1`); n != len(stuck) {
		w.Errorf("%d entries were replayed once", n)
	}
}

// stockTables creates the tables of Watermill's own forwarder, and fills them with
// messages and one invalid row.
func stockTables(w *world) {
	w.Helper()
	const topic = "forwarder_topic"
	tables := wsql.DefaultPostgreSQLSchema{}
	sub, err := wsql.NewSubscriber(w.DB, wsql.SubscriberConfig{
		SchemaAdapter: tables, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
	}, nil)
	if err == nil {
		err = sub.SubscribeInitialize(topic)
	}
	kit.OK(w, err)
	w.inTx(func(tx *sql.Tx) error {
		stored, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: tables}, nil)
		if err != nil {
			return err
		}
		events := stock.NewPublisher(stored, stock.PublisherConfig{ForwarderTopic: topic})
		for _, id := range three {
			if err := events.Publish(orders, newMessage(id)); err != nil {
				return err
			}
		}
		malformed := newMessage("malformed")
		malformed.Payload = []byte(strings.Repeat("7", 7))
		return stored.Publish(topic, malformed)
	})
}
