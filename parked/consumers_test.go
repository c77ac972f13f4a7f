package parked_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	store "github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/parked"
)

// register registers an instance of a consumer.
func (b *bench) register(c store.Consumer) {
	b.Helper()
	_, err := b.store.Register(b.Context(), c)
	require.NoError(b, err)
}

func (b *bench) consumers() []parked.Consumer {
	b.Helper()
	all, err := b.messages.Consumers(b.Context())
	require.NoError(b, err)
	return all
}

func TestConsumersShowInstancesAndBacklog(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		require.Empty(b, b.consumers())
		b.seed()
		b.register(store.Consumer{Consumer: consumer, Topic: topic, KeyOrder: true, Handler: "charge", Owner: "host/1/a"})
		b.register(store.Consumer{Consumer: consumer, Topic: topic, KeyOrder: true, Handler: "charge", Owner: "host/2/b"})
		b.register(store.Consumer{Consumer: "idle", Topic: topic, Embedded: true, Owner: "host/1/c"})
		b.exec(`UPDATE once_consumer_instances SET seen_at = ` + b.in(-10*time.Minute) + `, started_at = ` + b.in(-time.Hour) +
			` WHERE owner = 'host/2/b'`)
		b.exec(`UPDATE once_consumer_instances SET seen_at = ` + b.in(-10*time.Minute) + ` WHERE owner = 'host/1/c'`)
		b.exec(`UPDATE once_parked SET due_at = ` + b.in(-time.Hour) + ` WHERE message_id = 'head'`)
		b.exec(`UPDATE once_parked SET due_at = ` + b.in(-time.Minute) + ` WHERE message_id = 'due'`)
		require.NoError(b, b.store.Deliver(b.Context(), "stock", []string{"forgotten"}, msg("x", "")))

		all := b.consumers()
		require.Len(b, all, 3)
		forgotten, idle, busy := all[0], all[1], all[2]
		require.Equal(b, "forgotten", forgotten.Name)
		require.Equal(b, "stock", forgotten.Topic)
		require.False(b, forgotten.Registered)
		require.Equal(b, 1, forgotten.Waiting)

		require.Equal(b, "idle", idle.Name)
		require.True(b, idle.Embedded)
		require.False(b, idle.Running)
		require.Len(b, idle.Instances, 1)
		require.Zero(b, idle.Waiting+idle.Held+idle.Quarantined)
		require.Zero(b, idle.Lag)

		require.Equal(b, consumer, busy.Name)
		require.True(b, busy.Registered && busy.KeyOrder && busy.Running && !busy.Embedded)
		require.Equal(b, "charge", busy.Handler)
		require.NotEmpty(b, busy.Program)
		require.InDelta(b, 0, time.Since(busy.SeenAt).Seconds(), 60)
		require.Len(b, busy.Instances, 2)
		require.Equal(b, "host/2/b", busy.Instances[0].Owner)
		require.False(b, busy.Instances[0].Running)
		require.True(b, busy.Instances[1].Running)
		require.Equal(b, []int{3, 0, 2, 1, 1}, []int{busy.Waiting, busy.Claimed, busy.Held, busy.Failing, busy.Quarantined})
		require.InDelta(b, 3600, busy.Lag.Seconds(), 60)

		require.Len(b, b.claim(time.Hour), 2)
		busy = b.consumers()[2]
		require.Equal(b, []int{3, 2, 2, 1, 1}, []int{busy.Waiting, busy.Claimed, busy.Held, busy.Failing, busy.Quarantined})
		require.Zero(b, busy.Lag)
		b.exec(`UPDATE once_parked SET due_at = ` + b.in(-time.Minute) + ` WHERE message_id = 'failed'`)
		require.InDelta(b, 60, b.consumers()[2].Lag.Seconds(), 30)
	})
}

// Names are found in the messages of each state, and the lag in each tenant.
func TestConsumersAreFoundByTheirMessages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for i, state := range []string{"waiting", "held", "quarantined", "resolved"} {
			for _, topic := range []string{"a", "b"} {
				b.exec(`INSERT INTO once_parked (consumer, topic, message_id, ordering_key, tenant, digest, envelope, state, crashes, due_at)
					VALUES ($1, $2, $3, $3, $3, $4, $4, $1, 0, `+b.in(-time.Duration(i+1)*time.Minute)+`)`, state, topic, state+topic, []byte{})
			}
		}
		b.exec(`INSERT INTO once_parked (consumer, topic, message_id, tenant, digest, envelope, state, crashes, due_at)
			VALUES ('crashed', 'a', 'c', '', $1, $1, 'waiting', 1, `+b.in(-time.Hour)+`), ('waiting', 'a', 'w', 'zz', $1, $1, 'waiting', 0, `+
			b.in(-2*time.Hour)+`)`, []byte{})
		var found []string
		for _, c := range b.consumers() {
			found = append(found, fmt.Sprintf("%s/%s %d %d %d %v", c.Name, c.Topic, c.Waiting, c.Held, c.Quarantined, c.Lag.Round(time.Minute)))
		}
		require.Equal(b, []string{
			"crashed/a 1 0 0 1h0m0s", "held/a 0 1 0 0s", "held/b 0 1 0 0s", "quarantined/a 0 0 1 0s",
			"waiting/a 2 0 0 2h0m0s", "waiting/b 1 0 0 1m0s",
		}, found)
	})
}

func TestCountsOfConsumersStopAtTheLimit(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(parked.CountLimit+500, "busy")
		c := b.consumers()[0]
		require.Equal(b, parked.CountLimit, c.Waiting)
		require.InDelta(b, 60, c.Lag.Seconds(), 50)
	})
}

// Consumers reads few pages, however many messages wait. ONCE_TEST_ROWS is their number.
func TestConsumersReadsFewPages(t *testing.T) {
	rows := 12_000
	if text := os.Getenv("ONCE_TEST_ROWS"); text != "" {
		_, err := fmt.Sscan(text, &rows)
		require.NoError(t, err)
	}
	b := newBench(t, testkit.Postgres(t))
	for i := range 10 {
		b.fill(rows/10, fmt.Sprint("busy", i))
	}
	b.exec(`UPDATE once_parked SET state = 'quarantined' WHERE id % 10 = 1`)
	b.exec(`UPDATE once_parked SET state = 'held', ordering_key = 'k' WHERE id % 10 = 2`)
	b.exec(`UPDATE once_parked SET priority_class = 'retry', attempts = 1 WHERE id % 10 = 3`)
	b.exec(`UPDATE once_parked SET crashes = 1, token = 't' WHERE id % 10 = 4`)
	b.exec(`UPDATE once_parked SET state = 'resolved' WHERE id % 10 = 5`)
	for _, step := range []string{"", "VACUUM ANALYZE once_parked"} {
		if step != "" {
			b.exec(step)
		}
		var all []parked.Consumer
		fastest := time.Hour // the machine may be busy
		for range 5 {
			began := time.Now()
			all = b.consumers()
			fastest = min(fastest, time.Since(began))
		}
		b.Logf("%d rows, %q: %v", rows, step, fastest)
		require.Len(b, all, 10)
		require.Equal(b, []int{min(rows*7/100, parked.CountLimit), min(rows/100, parked.CountLimit)}, []int{all[0].Waiting, all[0].Held})
		for name, query := range parked.ConsumerQueries(b.messages) {
			var plan []byte
			tx, err := b.db.BeginTx(b.Context(), &sql.TxOptions{})
			require.NoError(b, err)
			args := []any{}
			if name != "names" {
				args = append(args, `{busy0,busy1,busy2,busy3,busy4,busy5,busy6,busy7,busy8,busy9}`,
					`{busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic}`)
			}
			require.NoError(b, tx.QueryRowContext(b.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query, args...).Scan(&plan))
			require.NoError(b, tx.Rollback())
			pages := testkit.PagesRead(b, plan)
			b.Logf("%s: %d pages", name, pages)
			require.True(b, json.Valid(plan))
			require.Less(b, pages, 10*8*parked.CountLimit, "%s: %s", name, plan)
		}
	}
}

func TestRemoveConsumer(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
		b.register(store.Consumer{Consumer: consumer, Topic: "else", Owner: "host/1/b"})
		remove := func(opts parked.RemoveOptions) error {
			return b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, opts)
		}
		err := remove(parked.RemoveOptions{})
		require.ErrorIs(b, err, parked.ErrRunning)
		require.ErrorContains(b, err, "host/1/a")
		b.exec(`UPDATE once_consumers SET seen_at = ` + b.in(-3*time.Minute))
		err = remove(parked.RemoveOptions{})
		require.ErrorIs(b, err, parked.ErrNotEmpty)
		require.ErrorContains(b, err, "waiting, held, quarantined; cancel or discard them first")
		require.Equal(b, 2, b.count(`SELECT COUNT(*) FROM once_consumers`))

		require.NoError(b, remove(parked.RemoveOptions{Force: true}))
		require.ErrorIs(b, remove(parked.RemoveOptions{}), parked.ErrConsumerNotFound)
		require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_consumers`))
		require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_consumer_instances`))
		require.Equal(b, []string{"ann | remove | topic:orders.placed | payments |  | order 7 is void"}, b.audits())
		require.NoError(b, b.messages.RemoveConsumer(b.Context(), ann, consumer, "else", parked.RemoveOptions{}))
		require.Len(b, b.consumers(), 1) // it has messages
		err = b.messages.RemoveConsumer(b.Context(), parked.Act{Actor: "ann"}, consumer, topic, parked.RemoveOptions{})
		require.ErrorContains(b, err, "Why is empty")

		b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
		require.NoError(b, remove(parked.RemoveOptions{Force: true}), "it runs")
	})
}

// A consumer that the database does not let go of is not reported as removed.
func TestRemoveConsumerReturnsTheErrorOfTheDatabase(t *testing.T) {
	b := newBench(t, testkit.Postgres(t))
	b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
	b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it stays'; END $$`)
	b.exec(`CREATE TRIGGER refuse BEFORE DELETE ON once_consumers FOR EACH ROW EXECUTE FUNCTION refuse()`)
	err := b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, parked.RemoveOptions{Force: true})
	require.ErrorContains(b, err, "it stays")
	require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_consumers`))
}

// An instance that ends says so, and one that died is forgotten after an hour.
func TestInstancesEnd(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for _, owner := range []string{"a", "b", "c"} {
			b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: owner})
		}
		require.NoError(b, b.store.Leave(b.Context(), consumer, topic, "a"))
		b.exec(`UPDATE once_consumer_instances SET seen_at = ` + b.in(-2*time.Hour) + ` WHERE owner = 'b'`)
		b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "c"})
		c := b.consumers()[0]
		require.Len(b, c.Instances, 1)
		require.Equal(b, "c", c.Instances[0].Owner)
	})
}
