package mover_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/schema"
)

func TestCustomTableNames(t *testing.T) {
	kit.Long(t)
	for _, kind := range []string{"JSONB", "BYTEA"} {
		t.Run(kind, func(t *testing.T) {
			db := kit.PostgresAlone(t).DB
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
			kit.OK(t, schema.Up(t.Context(), db, tables))
			exec(t, db, `INSERT INTO shop.offsets VALUES ('group', 0, '0')`)
			s.put(t, "t", message.NewMessage("id", []byte("\x00body")))
			m := newMover(t, db, mover.Config{
				Schema: tables, ConsumerGroup: s.group, ForwarderTopic: s.topic,
				MessagesTable: s.tables.MessagesTable(s.topic), OffsetsTable: s.offsets.MessagesOffsetsTable(s.topic),
			})
			moves(t, m, 1)
			kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM ours.x_outbox WHERE message_id = 'id' AND payload = '\x00626f6479'`)
			messages, _, err := m.Left(t.Context())
			kit.OK(t, err)
			if messages != 0 {
				t.Fatalf("messages is %d, want 0", messages)
			}
		})
	}
}

// For every topic, the default table names are the names that Watermill's own forwarder
// uses. With a wrong name, messages would be sent again.
func TestDefaultTableNamesFollowTopic(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := stock{db: db, topic: "Out-Box.1:$x"}
	s.create(t)
	s.put(t, "t", message.NewMessage("id", nil))
	moves(t, newMover(t, db, mover.Config{ForwarderTopic: s.topic}), 1)
	if got, want := outboxIDs(t, db), []string{"id"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
}

func TestNewConsumerGroupStartsAtTheBeginning(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	s.put(t, "t", message.NewMessage("first", nil))
	messages, _, err := newMover(t, db, mover.Config{}).Left(t.Context())
	kit.OK(t, err)
	if messages != 1 {
		t.Fatalf("messages is %d, want 1", messages)
	}
	moves(t, newMover(t, db, mover.Config{}), 1)

	t.Run("unknown group beside another", func(t *testing.T) {
		mistaken := newMover(t, db, mover.Config{ConsumerGroup: "typo"})
		_, err := mistaken.Move(t.Context())
		if !errors.Is(err, mover.ErrUnknownGroup) {
			t.Fatalf("got %v, want ErrUnknownGroup", err)
		}
		if want := `"typo", the table has [""]`; err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want an error with %q", err, want)
		}
		if err := mistaken.Run(t.Context()); !errors.Is(err, mover.ErrUnknownGroup) {
			t.Fatalf("Run: got %v, want ErrUnknownGroup", err)
		}
		if _, _, err := mistaken.Left(t.Context()); !errors.Is(err, mover.ErrUnknownGroup) {
			t.Fatalf("Left: got %v, want ErrUnknownGroup", err)
		}
		if got, want := outboxIDs(t, db), []string{"first"}; !slices.Equal(got, want) {
			t.Fatalf("outboxIDs are %q, want %q", got, want)
		}
	})
}

func TestMissingTablesAreReported(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	m := newMover(t, db, mover.Config{})
	if err := m.Run(t.Context()); !errors.Is(err, schema.ErrMissing) {
		t.Fatalf("Run: got %v, want ErrMissing", err)
	}
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	err := m.Run(t.Context())
	if !errors.Is(err, mover.ErrNoTable) {
		t.Fatalf("got %v, want ErrNoTable", err)
	}
	if want := `"watermill_forwarder_topic"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want an error with %q", err, want)
	}
	if _, err := m.Move(t.Context()); !errors.Is(err, mover.ErrNoTable) {
		t.Fatalf("Move: got %v, want ErrNoTable", err)
	}
	m = newMover(t, db, mover.Config{Schema: schema.Config{Inbox: schema.ByDay}}) // the mover does not use the inbox
	if _, err := m.Move(t.Context()); !errors.Is(err, mover.ErrNoTable) {
		t.Fatalf("Move with another layout of the inbox: got %v, want ErrNoTable", err)
	}
	if _, _, err := m.Left(t.Context()); !errors.Is(err, mover.ErrNoTable) {
		t.Fatalf("Left: got %v, want ErrNoTable", err)
	}
}

func TestConfigErrorNamesEveryInvalidField(t *testing.T) {
	_, err := mover.New(nil, mover.Config{
		Schema: schema.Config{Dialect: schema.SQLite}, ForwarderTopic: "a b", MessagesTable: "x; DROP TABLE y", OffsetsTable: `"`,
		BatchSize: -1, PollInterval: time.Microsecond, MaxPayload: -1,
	})
	for _, field := range []string{
		"Dialect", "ForwarderTopic", "MessagesTable", "OffsetsTable", "BatchSize", "PollInterval", "MaxPayload", "db is nil",
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Fatalf("got %v, want an error with %q", err, field)
		}
	}
	_, err = mover.New(&sql.DB{}, mover.Config{Schema: schema.Config{Prefix: "bad-"}})
	if err == nil || !strings.Contains(err.Error(), "Prefix") {
		t.Fatalf(`got %v, want an error with "Prefix"`, err)
	}
}
