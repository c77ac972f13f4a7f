package mover_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/mover"
	"github.com/watermill-once/once/schema"
)

func TestMessagesAreMovedUnchanged(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	nasty := message.NewMessage("id with / and ü", []byte("\x00\xff not JSON"))
	nasty.Metadata = message.Metadata{"name": "välue \"quoted\"", "once_ordering_key": "k"}
	s.put(t, "orders/placed", nasty, message.NewMessage("second", nil))
	s.put(t, "other topic", message.NewMessage("third", []byte(`{"n": 1.0}`)))
	s.put(t, "orders/placed", message.NewMessage("fourth", nil))

	m := newMover(t, db, mover.Config{})
	moves(t, m, 4)
	require.Equal(t, []string{"id with / and ü", "second", "third", "fourth"}, outboxIDs(t, db))
	require.Equal(t, []string{"orders/placed", "orders/placed", "other topic", "orders/placed"},
		ids(t, db, `SELECT topic FROM once_outbox ORDER BY position`))
	var (
		payload       []byte
		metadata, key string
	)
	require.NoError(t, db.QueryRow(`SELECT payload, metadata, ordering_key FROM once_outbox ORDER BY position LIMIT 1`).
		Scan(&payload, &metadata, &key))
	require.Equal(t, "\x00\xff not JSON", string(payload))
	require.JSONEq(t, `{"name": "välue \"quoted\"", "once_ordering_key": "k"}`, metadata)
	require.Equal(t, "k", key)
	require.Equal(t, []string{`{"n": 1.0}`}, ids(t, db, `SELECT convert_from(payload, 'UTF8') FROM once_outbox WHERE message_id = 'third'`))
	require.Zero(t, count(t, db, `SELECT COUNT(*) FROM once_outbox_dead`))

	moved, err := m.Move(t.Context())
	require.NoError(t, err)
	require.Zero(t, moved)
	messages, writers, err := m.Left(t.Context())
	require.NoError(t, err)
	require.Zero(t, messages)
	require.Zero(t, writers)
}

// Trap 77. Messages that the stock forwarder has sent are not moved, although the stock
// table keeps every message.
func TestTrap77_MessagesSentByStockForwarderAreNotMoved(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	sent := &inbox{}
	stop := s.forward(t, sent)
	for i := range 10 {
		s.put(t, "t", message.NewMessage(fmt.Sprint("stock", i), nil))
	}
	m := newMover(t, db, mover.Config{})
	eventually(t, "the stock forwarder has sent and acked them", func() bool {
		messages, _, err := m.Left(t.Context())
		require.NoError(t, err)
		return messages == 0
	})
	stop()
	require.Len(t, sent.ids(), 10)

	s.put(t, "t", message.NewMessage("ours1", nil), message.NewMessage("ours2", nil))
	messages, _, err := m.Left(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, messages)
	moves(t, m, 2)
	require.Equal(t, []string{"ours1", "ours2"}, outboxIDs(t, db))

	// In the other direction: the stock forwarder continues where the mover has
	// stopped.
	s.forward(t, sent)
	s.put(t, "t", message.NewMessage("stock again", nil))
	eventually(t, "the stock forwarder sends the last message", func() bool { return slices.Contains(sent.ids(), "stock again") })
	require.Len(t, sent.ids(), 11)
}

// Trap 01. A row is not skipped if its transaction began first and commits last.
func TestTrap01_LateCommitIsNotSkipped(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	m := newMover(t, db, mover.Config{})
	s.put(t, "t", message.NewMessage("first", nil))
	late := s.open(t, "t", message.NewMessage("late", nil))
	s.put(t, "t", message.NewMessage("early", nil))

	moves(t, m, 1)
	require.Equal(t, []string{"first"}, outboxIDs(t, db), "the offset would pass the late one")
	moved, err := m.Move(t.Context())
	require.NoError(t, err)
	require.Zero(t, moved)
	messages, writers, err := m.Left(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{messages, writers})

	require.NoError(t, late.Commit())
	moves(t, m, 2)
	require.Equal(t, []string{"first", "late", "early"}, outboxIDs(t, db))
	messages, writers, err = m.Left(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{0, 0}, []int{messages, writers})
}

// A mover that has waited for the lock continues at the new offset.
func TestOffsetIsReadAfterTheLock(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	m := newMover(t, db, mover.Config{})
	s.put(t, "t", message.NewMessage("0", nil))
	moves(t, m, 1)
	s.put(t, "t", message.NewMessage("1", nil))
	s.put(t, "t", message.NewMessage("2", nil))

	other, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = other.Rollback() }()
	_, err = other.Exec(`SELECT FROM watermill_offsets_forwarder_topic FOR UPDATE`)
	require.NoError(t, err)
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
	require.Equal(t, []string{"0"}, outboxIDs(t, db))
	_, err = other.Exec(`UPDATE watermill_offsets_forwarder_topic SET (offset_acked, last_processed_transaction_id) =
		(SELECT "offset", transaction_id FROM watermill_forwarder_topic ORDER BY "offset" OFFSET 1 LIMIT 1)`)
	require.NoError(t, err)
	require.NoError(t, other.Commit())
	require.NoError(t, <-moved)
	require.Equal(t, []string{"0", "2"}, outboxIDs(t, db))
}

// Each message is either sent by a stock forwarder or moved, and never both.
func TestStockForwardersAndMoversShareTheTable(t *testing.T) {
	const messages, movers = 600, 3
	db := testkit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	sent := &inbox{}
	s.forward(t, sent)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range movers {
		m := newMover(t, db, mover.Config{BatchSize: 7, PollInterval: time.Millisecond})
		running.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
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
	require.Equal(t, want, got)
	require.True(t, slices.IsSorted(outboxIDs(t, db)))
}

func TestCustomTableNames(t *testing.T) {
	for _, kind := range []string{"JSONB", "BYTEA"} {
		t.Run(kind, func(t *testing.T) {
			db := testkit.PostgresAlone(t).DB
			exec(t, db, `CREATE SCHEMA shop`)
			s := stock{
				db: db, topic: "out-box.1", group: "group",
				tables: wsql.DefaultPostgreSQLSchema{
					GenerateMessagesTableName: func(topic string) string { return `shop."events of ` + topic + `"` },
					GeneratePayloadType:       func(string) string { return kind },
				},
				offsets: wsql.DefaultPostgreSQLOffsetsAdapter{
					GenerateMessagesOffsetsTableName: func(string) string { return `shop.Offsets` },
				},
			}
			s.create(t)
			tables := schema.Config{Schema: "ours", Prefix: "x_"}
			require.NoError(t, schema.Up(t.Context(), db, tables))
			exec(t, db, `INSERT INTO shop.offsets VALUES ('group', 0, '0')`)
			s.put(t, "t", message.NewMessage("id", []byte("\x00body")))
			m := newMover(t, db, mover.Config{
				Schema: tables, ConsumerGroup: s.group, ForwarderTopic: s.topic,
				MessagesTable: s.tables.MessagesTable(s.topic), OffsetsTable: s.offsets.MessagesOffsetsTable(s.topic),
			})
			moves(t, m, 1)
			require.Equal(t, 1, count(t, db, `SELECT COUNT(*) FROM ours.x_outbox WHERE message_id = 'id' AND payload = '\x00626f6479'`))
			messages, _, err := m.Left(t.Context())
			require.NoError(t, err)
			require.Zero(t, messages)
		})
	}
}

// The default table names are those of the stock forwarder for any topic. With a wrong
// name, messages would be sent again.
func TestDefaultTableNamesFollowTopic(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	s := stock{db: db, topic: "Out-Box.1:$x"}
	s.create(t)
	s.put(t, "t", message.NewMessage("id", nil))
	moves(t, newMover(t, db, mover.Config{ForwarderTopic: s.topic}), 1)
	require.Equal(t, []string{"id"}, outboxIDs(t, db))
}

func TestNewConsumerGroupStartsAtTheBeginning(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	s.put(t, "t", message.NewMessage("first", nil))
	messages, _, err := newMover(t, db, mover.Config{}).Left(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, messages)
	moves(t, newMover(t, db, mover.Config{}), 1)

	t.Run("unknown group beside another", func(t *testing.T) {
		mistaken := newMover(t, db, mover.Config{ConsumerGroup: "typo"})
		_, err := mistaken.Move(t.Context())
		require.ErrorIs(t, err, mover.ErrUnknownGroup)
		require.ErrorContains(t, err, `"typo", the table has [""]`)
		require.ErrorIs(t, mistaken.Run(t.Context()), mover.ErrUnknownGroup)
		_, _, err = mistaken.Left(t.Context())
		require.ErrorIs(t, err, mover.ErrUnknownGroup)
		require.Equal(t, []string{"first"}, outboxIDs(t, db))
	})
}

func TestMissingTablesAreReported(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
	m := newMover(t, db, mover.Config{})
	require.ErrorIs(t, m.Run(t.Context()), schema.ErrMissing)
	require.NoError(t, schema.Up(t.Context(), db, schema.Config{}))
	err := m.Run(t.Context())
	require.ErrorIs(t, err, mover.ErrNoTable)
	require.ErrorContains(t, err, `"watermill_forwarder_topic"`)
	_, err = m.Move(t.Context())
	require.ErrorIs(t, err, mover.ErrNoTable)
	_, _, err = m.Left(t.Context())
	require.ErrorIs(t, err, mover.ErrNoTable)
}

// The mover compares transaction ids as numbers, not as texts.
func TestOrderAcrossTransactions(t *testing.T) {
	db := testkit.PostgresAlone(t).DB
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
	require.Equal(t, want, outboxIDs(t, db))
}

func TestConfigErrorNamesEveryInvalidField(t *testing.T) {
	_, err := mover.New(nil, mover.Config{
		Schema: schema.Config{Dialect: schema.SQLite}, ForwarderTopic: "a b", MessagesTable: "x; DROP TABLE y", OffsetsTable: `"`,
		BatchSize: -1, PollInterval: time.Microsecond, MaxPayload: -1,
	})
	for _, field := range []string{
		"Dialect", "ForwarderTopic", "MessagesTable", "OffsetsTable", "BatchSize", "PollInterval", "MaxPayload", "db is nil",
	} {
		require.ErrorContains(t, err, field)
	}
	_, err = mover.New(&sql.DB{}, mover.Config{Schema: schema.Config{Prefix: "bad-"}})
	require.ErrorContains(t, err, "Prefix")
}
