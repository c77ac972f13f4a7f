package outbox_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// stored contains the columns of a row in the outbox.
type stored struct {
	position  int64
	id, topic string
	key       sql.NullString
	slot      int
	payload   []byte
	metadata  map[string]string
	delayed   bool
	waits     time.Duration
}

func rows(t *testing.T, db *sql.DB, config schema.Config) []stored {
	t.Helper()
	waits := `CAST(extract(epoch FROM COALESCE(due_at, now()) - now()) * 1000 AS bigint)`
	if config.Dialect == schema.SQLite {
		waits = `COALESCE(due_at, 0) - CAST(unixepoch('subsec') * 1000 AS INTEGER)`
	}
	result, err := db.QueryContext(t.Context(), `SELECT position, message_id, topic, ordering_key, slot, payload,
		CAST(metadata AS text), due_at IS NOT NULL, `+waits+` FROM once_outbox ORDER BY position`)
	kit.OK(t, err)
	defer result.Close()
	var all []stored
	for result.Next() {
		var (
			r        stored
			metadata string
			millis   int64
		)
		kit.OK(t, result.Scan(&r.position, &r.id, &r.topic, &r.key, &r.slot, &r.payload, &metadata, &r.delayed, &millis))
		kit.OK(t, json.Unmarshal([]byte(metadata), &r.metadata))
		r.waits = time.Duration(millis) * time.Millisecond
		all = append(all, r)
	}
	kit.OK(t, result.Err())
	return all
}

func newOutbox(t *testing.T, config schema.Config) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(outbox.Config{Schema: config})
	kit.OK(t, err)
	return o
}

// publish stores messages in a separate transaction.
func publish(t *testing.T, db *sql.DB, o *outbox.Outbox, topic string, msgs ...*message.Message) error {
	t.Helper()
	return o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, msgs...)
	})
}

func TestStoresMessagesInOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var msgs []*message.Message
		for i := range 10 {
			msgs = append(msgs, message.NewMessage(fmt.Sprintf("id-%d", i), []byte{byte(i)}))
		}
		kit.OK(t, publish(t, db, newOutbox(t, config), "orders/placed", msgs...))

		all := rows(t, db, config)
		if len(all) != 10 {
			t.Fatalf("len(all) is %d, want 10: %+v", len(all), all)
		}
		for i, r := range all {
			if want := fmt.Sprintf("id-%d", i); r.id != want {
				t.Fatalf("r.id is %q, want %q", r.id, want)
			}
			if r.topic != "orders/placed" {
				t.Fatalf(`r.topic is %q, want "orders/placed": a topic that watermill-sql itself refuses`, r.topic)
			}
			if want := []byte{byte(i)}; !bytes.Equal(r.payload, want) {
				t.Fatalf("r.payload is %q, want %q", r.payload, want)
			}
			if r.key.Valid {
				t.Fatal("r.key.Valid is true")
			}
			if r.delayed {
				t.Fatal("r.delayed is true")
			}
			if len(r.metadata) != 0 {
				t.Fatalf("r.metadata is %v, want none", r.metadata)
			}
		}
	})
}

// Trap 50. Payload, id and metadata are stored byte for byte.
func TestEveryByteIsKept(t *testing.T) {
	t.Parallel()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	payloads := [][]byte{
		every,
		[]byte(`{"nul":"\u0000","number":1.0,"z":1,"a":2}`),
		{0},
		{},
		nil,
		[]byte(strings.Repeat("\xff\x00", 1<<18)),
	}
	values := map[string]string{
		"quotes":   `"\` + "'\t\r\n",
		"html":     "<a href='&amp;'>\u2028\u2029</a>",
		"unicode":  "日本語 🜚 \U0010FFFF \uFFFD",
		"escape":   `\u0000 \x00`,
		"empty":    "",
		"":         "an empty key",
		"own_key?": "{}[]$1?1",
	}
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		for i, payload := range payloads {
			msg := message.NewMessage(fmt.Sprintf("id '\"\\%d 日", i), payload)
			maps.Copy(msg.Metadata, values)
			kit.OK(t, publish(t, db, o, "topic '\"\\日 $1", msg))
		}
		all := rows(t, db, config)
		if len(all) != len(payloads) {
			t.Fatalf("len(all) is %d, want %d: %+v", len(all), len(payloads), all)
		}
		for i, r := range all {
			if want := fmt.Sprintf("id '\"\\%d 日", i); r.id != want {
				t.Fatalf("r.id is %q, want %q", r.id, want)
			}
			if want := "topic '\"\\日 $1"; r.topic != want {
				t.Fatalf("r.topic is %q, want %q", r.topic, want)
			}
			if !reflect.DeepEqual(r.metadata, values) {
				t.Fatalf("r.metadata is %v, want %v", r.metadata, values)
			}
			if string(r.payload) != string(payloads[i]) {
				t.Fatalf("r.payload is %q, want %q", string(r.payload), string(payloads[i]))
			}
		}
	})
}

func TestMetadataBecomesColumns(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		keyed := &message.Message{UUID: "keyed"} // it has no metadata
		outbox.SetOrderingKey(keyed, "customer-7")
		outbox.SetTopic(keyed, "elsewhere")
		outbox.SetTenant(keyed, "acme")
		outbox.SetAggregate(keyed, "order", "42", 3)
		outbox.SetEventType(keyed, "OrderPlaced")
		outbox.SetCausation(keyed, "cause")
		later := message.NewMessage("later", nil)
		outbox.SetDueAt(later, time.Now().Add(time.Hour))
		past := message.NewMessage("past", nil)
		outbox.SetDueAt(past, time.Now().Add(-time.Second))
		bare := &message.Message{UUID: "bare"}

		kit.OK(t, publish(t, db, newOutbox(t, config), "here", keyed, later, past, bare))
		all := rows(t, db, config)
		if len(all) != 4 {
			t.Fatalf("len(all) is %d, want 4: %+v", len(all), all)
		}

		if all[0].key.String != "customer-7" {
			t.Fatalf(`all[0].key.String is %q, want "customer-7"`, all[0].key.String)
		}
		if all[0].topic != "here" {
			t.Fatalf(`all[0].topic is %q, want "here"`, all[0].topic)
		}
		want := map[string]string{
			"once_ordering_key": "customer-7", "once_tenant_id": "acme", "once_aggregate_type": "order",
			"once_aggregate_id": "42", "once_aggregate_version": "3", "once_event_type": "OrderPlaced",
			"once_causation_id": "cause",
		}
		if !maps.Equal(all[0].metadata, want) {
			t.Fatalf("all[0].metadata is %v, want %v", all[0].metadata, want)
		}

		if !all[1].delayed {
			t.Fatal("all[1].delayed is false")
		}
		if (all[1].waits - time.Hour).Abs() > time.Minute {
			t.Fatalf("all[1].waits is %v, want %v, give or take %v", all[1].waits, time.Hour, time.Minute)
		}
		if len(all[1].metadata) != 0 {
			t.Fatalf("all[1].metadata is %v, want none: the due time is not sent", all[1].metadata)
		}
		if len(later.Metadata) == 0 {
			t.Fatal("later.Metadata is empty: the caller's message is left alone")
		}

		if all[2].delayed {
			t.Fatal("all[2].delayed is true: the past is now")
		}
		if len(all[3].metadata) != 0 {
			t.Fatalf("all[3].metadata is %v, want none", all[3].metadata)
		}
	})
}

func TestSlotsAreSpreadByKey(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		var msgs []*message.Message
		for i := range 1000 {
			msg := message.NewMessage(fmt.Sprintf("id-%d", i), nil)
			if i%2 == 0 {
				outbox.SetOrderingKey(msg, fmt.Sprintf("key-%d", i%20))
			}
			msgs = append(msgs, msg)
		}
		kit.OK(t, publish(t, db, o, "t", msgs...))

		unkeyed, keys := map[int]int{}, map[string]int{}
		for _, r := range rows(t, db, config) {
			if r.slot < 0 {
				t.Fatalf("r.slot is %d, want at least 0", r.slot)
			}
			if r.slot >= 64 {
				t.Fatalf("r.slot is %d, want less than 64", r.slot)
			}
			if !r.key.Valid {
				unkeyed[r.slot]++
				continue
			}
			if slot, seen := keys[r.key.String]; seen {
				if r.slot != slot {
					t.Fatalf("r.slot is %d, want %d: one key, one slot", r.slot, slot)
				}
			}
			keys[r.key.String] = r.slot
		}
		if len(unkeyed) != 64 {
			t.Fatalf("len(unkeyed) is %d, want 64: ids are spread over all slots: %v", len(unkeyed), unkeyed)
		}

		var owners int
		kit.OK(t, db.QueryRow("SELECT COUNT(*) FROM once_slots").Scan(&owners))
		if owners != 64 {
			t.Fatalf("owners is %d, want 64: as many as the migration makes", owners)
		}
	})
}

func TestSlotOfAKeyNeverChanges(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		kit.OK(t, publish(t, db, newOutbox(t, config), "t",
			message.NewMessage("a", nil), message.NewMessage("order-42", nil), message.NewMessage("日本", nil)))
		var slots []int
		for _, r := range rows(t, db, config) {
			slots = append(slots, r.slot)
		}
		if want := []int{44, 52, 17}; !slices.Equal(slots, want) {
			t.Fatalf("slots are %v, want %v: FNV-1a modulo 64: rows of older versions are in these slots", slots, want)
		}
	})
}

// New ids ascend with time, so rows in the order of their ids are also in the order of
// their times.
func TestNewIDsAscendWithTime(t *testing.T) {
	before, last := time.Now().Add(-time.Millisecond), ""
	for range 10_000 {
		msg := outbox.NewMessage([]byte("body"))
		id, err := uuid.Parse(msg.UUID)
		if err != nil || id.Version() != 7 || id.String() != msg.UUID {
			t.Fatalf("%q is no UUID of version 7 in lower case: %v", msg.UUID, err)
		}
		if at := time.Unix(id.Time().UnixTime()); at.Before(before) || at.After(time.Now().Add(time.Millisecond)) {
			t.Fatalf("%q is of %v", msg.UUID, at)
		}
		if msg.UUID <= last || string(msg.Payload) != "body" {
			t.Fatalf("%q after %q, with %q", msg.UUID, last, msg.Payload)
		}
		last = msg.UUID
	}
}

// Trap 117. If the database ignores an insert without an error, Publish fails.
func TestTrap117_IgnoredInsertIsAnError(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o, err := outbox.New(outbox.Config{Schema: config})
		kit.OK(t, err)
		allow := kit.Ignore(t, db, string(config.Dialect), "INSERT", "once_outbox", "NEW.message_id = 'ignored'")
		msg := outbox.NewMessage(nil)
		msg.UUID = "ignored"
		if err := publish(t, db, o, "t", outbox.NewMessage(nil), msg); !errors.Is(err, dialect.ErrUnchanged) {
			t.Errorf("got %v, want ErrUnchanged", err)
		}
		allow()
		if err := publish(t, db, o, "t", outbox.NewMessage(nil), msg); err != nil {
			t.Errorf("not ignored: %v", err)
		}
	})
}

// Trap 118. If the sequence of positions is behind the table, the error names the remedy.
func TestTrap118_DuplicatePositionNamesTheRemedy(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t).DB
	o := newOutbox(t, schema.Config{})
	setval := func() {
		t.Helper()
		kit.Exec(t, db, `SELECT setval('once_outbox_position', 7, false)`)
	}
	setval()
	kit.OK(t, publish(t, db, o, "t", outbox.NewMessage(nil)))
	setval()
	err := publish(t, db, o, "t", outbox.NewMessage(nil))
	if !errors.Is(err, schema.ErrSequence) || strings.Count(err.Error(), "run `once doctor` or schema.Check") != 1 {
		t.Errorf("got %v, want ErrSequence with its remedy", err)
	}
}
