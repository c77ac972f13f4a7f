package badinput

import (
	"database/sql"
	"fmt"
	"io"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/outbox"
)

// sabotage is a statement that damages a table. If refused is true, the database must
// refuse it.
type sabotage struct {
	do      string
	refused bool
	lite    string // the statement for SQLite, if it differs
}

// sabotages contains statements that damage tables, but not the rows of messages. All
// messages must still be handled.
var sabotages = map[string]sabotage{
	"hold of nobody":                {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('nobody', 1, 1, 'refused')`},
	"hold of a key, without a head": {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key', 999999, 0, 'refused')`},
	"hold with a negative head":     {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key-2', -1, -1, '')`},
	"hold of the dead, without one": {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key-3', 7777, 7777, 'dead')`},
	"hold of an empty key":          {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('', 9223372036854775807, -9223372036854775808, 'x')`},
	"hold of a key twice":           {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('a', 1, 1, ''), ('a', 1, 1, '')`, refused: true},
	"hold without a key":            {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES (NULL, 1, 1, '')`, refused: true, lite: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('b', NULL, 1, '')`},
	"hold at a word":                {do: `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('c', 'here', 1, '')`, refused: true},

	"slot 64":                        {do: `INSERT INTO once_slots (slot) VALUES (64)`, refused: true},
	"slot -1":                        {do: `INSERT INTO once_slots (slot) VALUES (-1)`, refused: true},
	"slot 7 twice":                   {do: `INSERT INTO once_slots (slot) VALUES (7)`, refused: true},
	"slot moved":                     {do: `UPDATE once_slots SET slot = 100 WHERE slot = 7`, refused: true},
	"slot owned by nobody":           {do: `UPDATE once_slots SET owner = 'nobody' WHERE slot < 5`},
	"slot leased to nobody":          {do: `UPDATE once_slots SET lease_until = '2200-01-01' WHERE slot BETWEEN 5 AND 9`, lite: `UPDATE once_slots SET lease_until = 7258118400000 WHERE slot BETWEEN 5 AND 9`},
	"slot owned and leased long ago": {do: `UPDATE once_slots SET owner = 'gone', lease_until = '1999-01-01' WHERE slot BETWEEN 10 AND 14`, lite: `UPDATE once_slots SET owner = 'gone', lease_until = -1 WHERE slot BETWEEN 10 AND 14`},
	"slot owned for ever":            {do: `UPDATE once_slots SET owner = 'ghost', lease_until = 'infinity' WHERE slot BETWEEN 15 AND 19`, lite: `UPDATE once_slots SET owner = 'ghost', lease_until = 9223372036854775807 WHERE slot BETWEEN 15 AND 19`, refused: true},
	"slot with a lease of words":     {do: `UPDATE once_slots SET lease_until = 'soon' WHERE slot = 20`, refused: true},
	"slot with an empty owner":       {do: `UPDATE once_slots SET owner = '', lease_until = '1999-01-01' WHERE slot BETWEEN 21 AND 25`, lite: `UPDATE once_slots SET owner = '', lease_until = 1 WHERE slot BETWEEN 21 AND 25`},
	"slots that are missing":         {do: `DELETE FROM once_slots WHERE slot > 55`},

	"forwarder that is gone":    {do: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('gone', '1999-01-01')`, lite: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('gone', 1)`},
	"forwarder gone elsewhere":  {do: `INSERT INTO once_forwarders (owner, lease_until, destination) VALUES ('elsewhere', '1999-01-01', 'another')`, lite: `INSERT INTO once_forwarders (owner, lease_until, destination) VALUES ('elsewhere', 1, 'another')`},
	"forwarder to nowhere":      {do: `INSERT INTO once_forwarders (owner, lease_until, destination) VALUES ('nowhere', '1999-01-01', NULL)`, lite: `INSERT INTO once_forwarders (owner, lease_until, destination) VALUES ('nowhere', 1, NULL)`, refused: true},
	"forwarder without a lease": {do: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('none', NULL)`, refused: true},
	"forwarder without a name":  {do: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('', '1999-01-01')`, lite: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('', 1)`},
	"forwarder for ever":        {do: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('ever', 'infinity')`, lite: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('ever', 9223372036854775807)`, refused: true},
	"forwarder since ever":      {do: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('since', '1000-01-01 BC')`, lite: `INSERT INTO once_forwarders (owner, lease_until) VALUES ('since', -9223372036854775808)`},

	"durable: a message of nobody": {do: `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('', '', '')`},
	"durable: an endless name":     {do: `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('` + long + `', '` + long + `', '')`},
	"durable: processed never":     {do: `INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('never', 'worker', '', 'infinity')`, lite: `INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('never', 'worker', '', 9223372036854775807)`},
	"durable: processed for ever":  {do: `INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('ever', 'worker', '', '-infinity')`, lite: `INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('ever', 'worker', '', -9223372036854775808)`},
	"durable: no digest":           {do: `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('a', 'worker', NULL)`, refused: true},
	"durable: no consumer":         {do: `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('a', NULL, '')`, refused: true},
	"durable: processed by words":  {do: `INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('b', 'worker', '', 'soon')`, refused: true},

	"dead: everything is odd": {do: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown, died_at)
		VALUES (-1, '', '', '', '[]', 'infinity', -1, '', '', false, '-infinity')`, lite: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown, died_at)
		VALUES (-1, '', '', '', 'no JSON', 9223372036854775807, -1, '', '', 0, -9223372036854775808)`},
	"dead: metadata with a NUL": {do: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		VALUES (1, 'nul', 'events', '', '{"a":"\u0000"}', now(), 1, '', 'malformed', true)`, lite: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		VALUES (1, 'nul', 'events', '', '{"a":"\u0000"}', 1, 1, '', 'malformed', 1)`},
	"dead: metadata with half an emoji": {do: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		VALUES (1, 'half', 'events', '', '{"a":"\ud83d"}', now(), 1, '', 'malformed', true)`, lite: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		VALUES (1, 'half', 'events', '', '{"a":"\ud83d"}', 1, 1, '', 'malformed', 1)`},
	"dead: metadata is NULL": {do: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		VALUES (1, 'null', 'events', '', NULL, now(), 1, '', '', true)`, refused: true, lite: `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		VALUES (1, 'null', 'events', '', NULL, 1, 1, '', '', 1)`},

	"versions: of nothing": {do: `INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at) VALUES ('', '', '', -9223372036854775808, 1, 'infinity')`, lite: `INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at) VALUES ('', '', '', -9223372036854775808, 1, 9223372036854775807)`},
	"versions: a word":     {do: `INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at) VALUES ('a', '', '', 'one', 1, '1999-01-01')`, refused: true},

	"replays: no JSON": {do: `INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id) VALUES ('other', 'no JSON', '{', '', '', 'paused', -1, -1)`, refused: true},
	"replays: for ever": {
		do: `INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id, token, lease_until, started_at, ended_at)
		VALUES ('another', '{}', '{}', '', '', 'running', 9223372036854775807, 9223372036854775807, 'ghost', 'infinity', '-infinity', 'infinity')`,
		lite: `INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id, token, lease_until, started_at, ended_at)
		VALUES ('another', '{}', '{}', '', '', 'running', 9223372036854775807, 9223372036854775807, 'ghost', 9223372036854775807, -9223372036854775808, 9223372036854775807)`,
	},
	"replays: of another state": {do: `INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id) VALUES ('', '{}', '{}', '', '', 'done', 1, 1)`, refused: true},

	"consumers: of nobody":     {do: `INSERT INTO once_consumers (topic, consumer, embedded, seen_at) VALUES ('', '', true, 'infinity')`, lite: `INSERT INTO once_consumers (topic, consumer, embedded, seen_at) VALUES ('', '', 1, 9223372036854775807)`},
	"consumers: seen never":    {do: `INSERT INTO once_consumers (topic, consumer, seen_at) VALUES ('events', 'never', '-infinity')`, lite: `INSERT INTO once_consumers (topic, consumer, seen_at) VALUES ('events', 'never', -9223372036854775808)`},
	"consumers: the same name": {do: `INSERT INTO once_consumers (topic, consumer) VALUES ('x', 'x'), ('x', 'x')`, refused: true},
	"consumers: seen by words": {do: `INSERT INTO once_consumers (topic, consumer, seen_at) VALUES ('a', 'b', 'soon')`, refused: true},

	"instances: of nobody":   {do: `INSERT INTO once_consumer_instances (topic, consumer, owner, started_at, seen_at) VALUES ('', '', '', '-infinity', 'infinity')`, lite: `INSERT INTO once_consumer_instances (topic, consumer, owner, started_at, seen_at) VALUES ('', '', '', -9223372036854775808, 9223372036854775807)`},
	"instances: of no owner": {do: `INSERT INTO once_consumer_instances (topic, consumer, owner) VALUES ('a', 'b', NULL)`, refused: true},

	"audit: at no time": {do: `INSERT INTO once_audit (at, actor, action, subject) VALUES ('infinity', '', '', '` + long + `')`, lite: `INSERT INTO once_audit (at, actor, action, subject) VALUES (9223372036854775807, '', '', '` + long + `')`},
	"audit: of nobody":  {do: `INSERT INTO once_audit (actor, action, subject) VALUES (NULL, '', '')`, refused: true},
}

func TestTablesEditedByHand(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachWorld(t, lease, func(w *world) {
		for name, s := range sabotages {
			w.Run(name, func(t *testing.T) {
				do := s.do
				if w.lite() && s.lite != "" {
					do = s.lite
				}
				if _, err := w.db.ExecContext(t.Context(), do); (err != nil) != s.refused {
					t.Errorf("%s: %v", do, err)
				}
			})
		}
		if !w.lite() { // parts refuse to start while the sequence is behind the table of blocked keys
			w.exec(`SELECT setval(pg_get_serial_sequence('once_outbox', 'position'), 10000)`)
		}
		w.exec(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('done before', 'worker', 'of something else')`)

		// These messages use every slot, and the blocked keys.
		box, err := outbox.New(outbox.Config{Schema: w.config})
		kit.OK(t, err)
		const many = 400
		kit.OK(t, box.InTx(t.Context(), w.db, func(_ *sql.Tx, events message.Publisher) error {
			for n := range many {
				msg := message.NewMessage(name(n), []byte(name(n)))
				if n < 40 {
					outbox.SetOrderingKey(msg, []string{"key", "key-2", "key-3", "nobody"}[n%4])
				}
				if err := events.Publish(topic, msg); err != nil {
					return err
				}
			}
			return events.Publish(topic, message.NewMessage("done before", []byte("done before")))
		}))
		letters := w.count(`once_outbox_dead`)
		w.consume()
		w.forward()
		w.settled(many+1+letters, 0)
		found := w.fates()
		for n := range many {
			if got := found[name(n)]; len(got) != 1 || got[0] != delivered {
				t.Errorf("%s is %v", name(n), got)
			}
		}
		if got := found["done before"]; len(got) != 1 || got[0] != collision {
			t.Errorf("the fates of a message whose id is in the inbox with another digest are %v", got)
		}
		w.checkReads()
	})
}

func name(n int) string { return fmt.Sprintf("m-%03d", n) }

// checkReads checks that all functions that read the tables still work.
func (w *world) checkReads() {
	w.Helper()
	letters, err := dead.New(w.db, operate.Config{Schema: w.config})
	kit.OK(w, err)
	for name, f := range map[string]operate.Filter{
		"all": {}, "tenant": {Tenant: "t"}, "aggregate": {AggregateType: "a", AggregateID: "b"}, "event": {EventType: "e"},
	} {
		if _, err := letters.List(w.Context(), f); err != nil {
			w.Errorf("dead letters by %s: %v", name, err)
		}
		if _, err := letters.Count(w.Context(), f); err != nil {
			w.Errorf("dead letters by %s: %v", name, err)
		}
	}
	w.checkLetters(letters)
	entries := w.consumer.Quarantine()
	if _, err := entries.Groups(w.Context(), operate.Filter{}); err != nil {
		w.Errorf("groups: %v", err)
	}
	if _, err := entries.Replays(w.Context(), 0); err != nil {
		w.Errorf("replays: %v", err)
	}
	messages, err := parked.New(w.db, operate.Config{Schema: w.config})
	kit.OK(w, err)
	if _, err := messages.List(w.Context(), operate.Filter{}); err != nil {
		w.Errorf("parked messages: %v", err)
	}
	if _, err := messages.Consumers(w.Context()); err != nil {
		w.Errorf("consumers: %v", err)
	}
}

// checkLetters checks that unusual dead letters can be grouped, exported, and counted by a dry
// run.
func (w *world) checkLetters(letters *dead.Letters) {
	w.Helper()
	page, err := letters.Groups(w.Context(), operate.Filter{Limit: 1000})
	if err != nil {
		w.Errorf("groups of dead letters: %v", err)
	}
	for _, g := range page.Groups {
		if found, err := letters.List(w.Context(), operate.Filter{Fingerprint: g.Fingerprint}); err != nil || len(found.Rows) == 0 {
			w.Errorf("dead letters of the group %q: %d, %v", g.Fingerprint, len(found.Rows), err)
		}
	}
	if _, err := letters.DryRun(w.Context(), operate.Filter{All: true}, operate.Plan{}); err != nil {
		w.Errorf("dry run of dead letters: %v", err)
	}
	if _, err := letters.Export(w.Context(), operate.Filter{}, io.Discard); err != nil {
		w.Errorf("export of dead letters: %v", err)
	}
}

type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }
