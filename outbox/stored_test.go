package outbox_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

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
	require.NoError(t, err)
	defer result.Close()
	var all []stored
	for result.Next() {
		var (
			r        stored
			metadata string
			millis   int64
		)
		require.NoError(t, result.Scan(&r.position, &r.id, &r.topic, &r.key, &r.slot, &r.payload, &metadata, &r.delayed, &millis))
		require.NoError(t, json.Unmarshal([]byte(metadata), &r.metadata))
		r.waits = time.Duration(millis) * time.Millisecond
		all = append(all, r)
	}
	require.NoError(t, result.Err())
	return all
}

func newOutbox(t *testing.T, config schema.Config) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(outbox.Config{Schema: config})
	require.NoError(t, err)
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
		require.NoError(t, publish(t, db, newOutbox(t, config), "orders/placed", msgs...))

		all := rows(t, db, config)
		require.Len(t, all, 10)
		for i, r := range all {
			require.Equal(t, fmt.Sprintf("id-%d", i), r.id)
			require.Equal(t, "orders/placed", r.topic, "a topic that watermill-sql itself refuses")
			require.Equal(t, []byte{byte(i)}, r.payload)
			require.False(t, r.key.Valid)
			require.False(t, r.delayed)
			require.Empty(t, r.metadata)
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
			require.NoError(t, publish(t, db, o, "topic '\"\\日 $1", msg))
		}
		all := rows(t, db, config)
		require.Len(t, all, len(payloads))
		for i, r := range all {
			require.Equal(t, fmt.Sprintf("id '\"\\%d 日", i), r.id)
			require.Equal(t, "topic '\"\\日 $1", r.topic)
			require.Equal(t, values, r.metadata)
			require.Equal(t, string(payloads[i]), string(r.payload))
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

		require.NoError(t, publish(t, db, newOutbox(t, config), "here", keyed, later, past, bare))
		all := rows(t, db, config)
		require.Len(t, all, 4)

		require.Equal(t, "customer-7", all[0].key.String)
		require.Equal(t, "here", all[0].topic)
		require.Equal(t, map[string]string{
			"once_ordering_key": "customer-7", "once_tenant_id": "acme", "once_aggregate_type": "order",
			"once_aggregate_id": "42", "once_aggregate_version": "3", "once_event_type": "OrderPlaced",
			"once_causation_id": "cause",
		}, all[0].metadata)

		require.True(t, all[1].delayed)
		require.InDelta(t, time.Hour, all[1].waits, float64(time.Minute))
		require.Empty(t, all[1].metadata, "the due time is not sent")
		require.NotEmpty(t, later.Metadata, "the caller's message is left alone")

		require.False(t, all[2].delayed, "the past is now")
		require.Empty(t, all[3].metadata)
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
		require.NoError(t, publish(t, db, o, "t", msgs...))

		unkeyed, keys := map[int]int{}, map[string]int{}
		for _, r := range rows(t, db, config) {
			require.GreaterOrEqual(t, r.slot, 0)
			require.Less(t, r.slot, 64)
			if !r.key.Valid {
				unkeyed[r.slot]++
				continue
			}
			if slot, seen := keys[r.key.String]; seen {
				require.Equal(t, slot, r.slot, "one key, one slot")
			}
			keys[r.key.String] = r.slot
		}
		require.Len(t, unkeyed, 64, "ids are spread over all slots")

		var owners int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM once_slots").Scan(&owners))
		require.Equal(t, 64, owners, "as many as the migration makes")
	})
}

func TestSlotOfAKeyNeverChanges(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		require.NoError(t, publish(t, db, newOutbox(t, config), "t",
			message.NewMessage("a", nil), message.NewMessage("order-42", nil), message.NewMessage("日本", nil)))
		var slots []int
		for _, r := range rows(t, db, config) {
			slots = append(slots, r.slot)
		}
		require.Equal(t, []int{44, 52, 17}, slots, "FNV-1a modulo 64: rows of older versions are in these slots")
	})
}
