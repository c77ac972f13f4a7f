package mover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
)

func TestMessagesAreMovedUnchanged(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	nasty := message.NewMessage("id with / and ü", []byte("\x00\xff not JSON"))
	nasty.Metadata = message.Metadata{"name": "välue \"quoted\"", "once_ordering_key": "k"}
	s.put(t, "orders/placed", nasty, message.NewMessage("second", nil))
	s.put(t, "other topic", message.NewMessage("third", []byte(`{"n": 1.0}`)))
	s.put(t, "orders/placed", message.NewMessage("fourth", nil))

	m := newMover(t, db, mover.Config{})
	moves(t, m, 4)
	if got, want := outboxIDs(t, db), []string{"id with / and ü", "second", "third", "fourth"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
	want := []string{"orders/placed", "orders/placed", "other topic", "orders/placed"}
	if got := ids(t, db, `SELECT topic FROM once_outbox ORDER BY position`); !slices.Equal(got, want) {
		t.Fatalf("ids is %q, want %q", got, want)
	}
	var (
		payload       []byte
		metadata, key string
	)
	kit.OK(t, db.QueryRow(`SELECT payload, metadata, ordering_key FROM once_outbox ORDER BY position LIMIT 1`).
		Scan(&payload, &metadata, &key))
	if want := "\x00\xff not JSON"; string(payload) != want {
		t.Fatalf("payload is %q, want %q", string(payload), want)
	}
	var fields message.Metadata
	kit.OK(t, json.Unmarshal([]byte(metadata), &fields))
	if !maps.Equal(fields, nasty.Metadata) {
		t.Fatalf("metadata is %q, want %q", fields, nasty.Metadata)
	}
	if key != "k" {
		t.Fatalf(`key is %q, want "k"`, key)
	}
	want = []string{`{"n": 1.0}`}
	if got := ids(t, db, `SELECT convert_from(payload, 'UTF8') FROM once_outbox WHERE message_id = 'third'`); !slices.Equal(got, want) {
		t.Fatalf("ids is %q, want %q", got, want)
	}
	kit.WantNumber(t, db, 0, `SELECT COUNT(*) FROM once_outbox_dead`)

	moved, err := m.Move(t.Context())
	kit.OK(t, err)
	if moved != 0 {
		t.Fatalf("moved is %d, want 0", moved)
	}
	messages, writers, err := m.Left(t.Context())
	kit.OK(t, err)
	if messages != 0 {
		t.Fatalf("messages is %d, want 0", messages)
	}
	if writers != 0 {
		t.Fatalf("writers is %d, want 0", writers)
	}
}

// Trap 77. Messages that Watermill's own forwarder has sent are not moved, although its
// table keeps every message.
func TestTrap77_MessagesSentByStockForwarderAreNotMoved(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	sent := &inbox{}
	stop := s.forward(t, sent)
	for i := range 10 {
		s.put(t, "t", message.NewMessage(fmt.Sprint("stock", i), nil))
	}
	m := newMover(t, db, mover.Config{})
	eventually(t, "the stock forwarder has sent and acked them", func() bool {
		messages, _, err := m.Left(t.Context())
		kit.OK(t, err)
		return messages == 0
	})
	stop()
	if got := sent.ids(); len(got) != 10 {
		t.Fatalf("len(sent.ids) is %d, want 10: %q", len(got), got)
	}

	s.put(t, "t", message.NewMessage("ours1", nil), message.NewMessage("ours2", nil))
	messages, _, err := m.Left(t.Context())
	kit.OK(t, err)
	if messages != 2 {
		t.Fatalf("messages is %d, want 2", messages)
	}
	moves(t, m, 2)
	if got, want := outboxIDs(t, db), []string{"ours1", "ours2"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}

	// In the other direction: the stock forwarder continues where the mover has
	// stopped.
	s.forward(t, sent)
	s.put(t, "t", message.NewMessage("stock again", nil))
	eventually(t, "the stock forwarder sends the last message", func() bool { return slices.Contains(sent.ids(), "stock again") })
	if got := sent.ids(); len(got) != 11 {
		t.Fatalf("len(sent.ids) is %d, want 11: %q", len(got), got)
	}
}

// Trap 01. A row is not skipped if its transaction began first and commits last.
func TestTrap01_LateCommitIsNotSkipped(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	m := newMover(t, db, mover.Config{})
	s.put(t, "t", message.NewMessage("first", nil))
	late := s.open(t, "t", message.NewMessage("late", nil))
	s.put(t, "t", message.NewMessage("early", nil))

	moves(t, m, 1)
	if got, want := outboxIDs(t, db), []string{"first"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q: the offset would pass the late one", got, want)
	}
	moved, err := m.Move(t.Context())
	kit.OK(t, err)
	if moved != 0 {
		t.Fatalf("moved is %d, want 0", moved)
	}
	messages, writers, err := m.Left(t.Context())
	kit.OK(t, err)
	if messages != 1 || writers != 1 {
		t.Fatalf("messages and writers are %d and %d, want 1 and 1", messages, writers)
	}

	kit.OK(t, late.Commit())
	moves(t, m, 2)
	if got, want := outboxIDs(t, db), []string{"first", "late", "early"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
	messages, writers, err = m.Left(t.Context())
	kit.OK(t, err)
	if messages != 0 || writers != 0 {
		t.Fatalf("messages and writers are %d and %d, want 0 and 0", messages, writers)
	}
}

// A mover that has waited for the lock continues at the new offset.
func TestOffsetIsReadAfterTheLock(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	m := newMover(t, db, mover.Config{})
	s.put(t, "t", message.NewMessage("0", nil))
	moves(t, m, 1)
	s.put(t, "t", message.NewMessage("1", nil))
	s.put(t, "t", message.NewMessage("2", nil))

	other := kit.Begin(t, db)
	defer func() { _ = other.Rollback() }()
	kit.OK(t, kit.Err(other.Exec(`SELECT FROM watermill_offsets_forwarder_topic FOR UPDATE`)))
	moved := make(chan error, 1)
	go func() {
		for total := 0; total == 0; {
			n, err := m.Move(context.WithoutCancel(t.Context()))
			if err != nil {
				moved <- err
				return
			}
			total += n
		}
		moved <- nil
	}()
	eventually(t, "the mover waits for the lock", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	if got, want := outboxIDs(t, db), []string{"0"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
	kit.Exec(t, other, `UPDATE watermill_offsets_forwarder_topic SET (offset_acked, last_processed_transaction_id) =
		(SELECT "offset", transaction_id FROM watermill_forwarder_topic ORDER BY "offset" OFFSET 1 LIMIT 1)`)
	kit.OK(t, other.Commit())
	kit.OK(t, <-moved)
	if got, want := outboxIDs(t, db), []string{"0", "2"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
}

// Each message is either sent by Watermill's own forwarder or moved, and never both.
func TestStockForwardersAndMoversShareTheTable(t *testing.T) {
	const messages, movers = 600, 3
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	sent := &inbox{}
	s.forward(t, sent)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range movers {
		m := newMover(t, db, mover.Config{BatchSize: 7, PollInterval: time.Millisecond})
		running.Go(func() {
			kit.Check(t, m.Run(ctx))
		})
	}
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	want := make([]string, messages)
	for i := range want {
		want[i] = fmt.Sprintf("%04d", i)
		s.put(t, "t", message.NewMessage(want[i], nil))
	}
	eventually(t, "all messages are sent or moved", func() bool {
		return len(sent.ids())+count(t, db, `SELECT COUNT(*) FROM once_outbox`) >= messages
	})
	got := slices.Concat(sent.ids(), outboxIDs(t, db))
	slices.Sort(got)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	if !slices.IsSorted(outboxIDs(t, db)) {
		t.Fatal("outboxIDs are not sorted")
	}
}

// The mover compares transaction ids as numbers, not as texts.
func TestOrderAcrossTransactions(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	withDefaults(t, db)
	want := []string{}
	for i := range 12 {
		exec(t, db, `INSERT INTO watermill_forwarder_topic (uuid, payload, metadata, transaction_id)
			VALUES ('x', json_build_object('destination_topic', 't', 'uuid', $1::text), '{}', $1::text::xid8)`, fmt.Sprint(i))
		if i > 0 { // a new group starts before transaction 1, as in the stock forwarder
			want = append(want, fmt.Sprint(i))
		}
	}
	exec(t, db, `UPDATE watermill_forwarder_topic SET "offset" = 0 WHERE transaction_id = '0'`)
	moves(t, newMover(t, db, mover.Config{BatchSize: 5}), 11)
	if got := outboxIDs(t, db); !reflect.DeepEqual(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
}

// Trap 117. If the database ignores a change without an error, Move fails. Otherwise the
// same messages would be moved again and again, or would get lost.
func TestTrap117_IgnoredChangeMovesNothing(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	m := newMover(t, db, mover.Config{})
	s.put(t, "t", message.NewMessage("0", nil))
	moves(t, m, 1) // creates the offset
	for _, c := range []struct{ operation, table, id string }{
		{"UPDATE", "watermill_offsets_forwarder_topic", "1"},
		{"INSERT", "once_outbox", "2"},
		{"INSERT", "once_outbox_dead", ""}, // the outbox refuses an empty id
	} {
		before := count(t, db, `SELECT COUNT(*) FROM once_outbox`)
		s.put(t, "t", message.NewMessage(c.id, nil))
		allow := kit.Ignore(t, db, "postgres", c.operation, c.table, "true")
		var err error
		eventually(t, "Move finds the row", func() bool {
			_, err = m.Move(t.Context())
			return err != nil
		})
		if !errors.Is(err, dialect.ErrUnchanged) {
			t.Errorf("%s of %s is ignored: %v, want ErrUnchanged", c.operation, c.table, err)
		}
		if n := count(t, db, `SELECT COUNT(*) FROM once_outbox`); n != before {
			t.Errorf("%s of %s is ignored: the outbox has %d rows, want %d", c.operation, c.table, n, before)
		}
		allow()
		moves(t, m, 1)
	}
}

// meters records the names of the meters that are created.
type meters struct {
	noop.MeterProvider

	made []string
}

func (m *meters) Meter(name string, options ...metric.MeterOption) metric.Meter {
	m.made = append(m.made, name)
	return m.MeterProvider.Meter(name, options...)
}

func TestMovedMessagesAreCountedByConfiguredMeter(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	withDefaults(t, db).put(t, "orders.placed", message.NewMessage("m1", nil))
	own := &meters{}
	moves(t, newMover(t, db, mover.Config{MeterProvider: own}), 1)
	if want := "github.com/watermill-once/once/outbox"; !slices.Contains(own.made, want) {
		t.Fatalf("own.made is %q, without %q", own.made, want)
	}
}
