package forwarder

import (
	"bytes"
	"database/sql"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// eachCounted runs a test with each driver. The argument trips counts the round trips
// of the store.
func eachCounted(t *testing.T, test func(t *testing.T, server kit.Database, s *store, trips *kit.RoundTrips)) {
	t.Helper()
	for driver, open := range map[string]func(t *testing.T, dsn string, c *kit.RoundTrips) *sql.DB{
		"pq": func(t *testing.T, dsn string, c *kit.RoundTrips) *sql.DB {
			connector, err := pq.NewConnector(dsn)
			kit.OK(t, err)
			connector.Dialer(kit.Dialer(c.Dial))
			return sql.OpenDB(connector)
		},
		"pgx": func(t *testing.T, dsn string, c *kit.RoundTrips) *sql.DB {
			config, err := pgx.ParseConfig(dsn)
			kit.OK(t, err)
			config.DialFunc = kit.Dialer(c.Dial).DialContext
			return stdlib.OpenDB(*config)
		},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := kit.Postgres(t)
			kit.OK(t, schema.Up(t.Context(), server.DB, schema.Config{}))
			d := kit.Dialect(t, schema.Config{})
			trips := &kit.RoundTrips{}
			db := open(t, server.DSN, trips)
			defer func() {
				kit.OK(t, db.Close())
			}()
			test(t, server, newStore(db, d), trips)
		})
	}
}

// A read takes one round trip, so a message can be published one round trip after the
// hint.
func TestReadIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	eachCounted(t, func(t *testing.T, server kit.Database, s *store, trips *kit.RoundTrips) {
		sweep := func() found {
			t.Helper()
			got, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{0}, Limit: 10, Bytes: 1 << 20})
			kit.OK(t, err)
			return got
		}
		exec := func(query string) {
			t.Helper()
			kit.Exec(t, server, query)
		}
		exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('m1', 'topic', 0, '\x00ff', '{}')`)
		sweep() // connects, and pgx prepares the query
		before := trips.Load()
		for range 10 {
			got := sweep()
			if len(got.rows) != 1 {
				t.Fatalf("%d rows, want 1: %+v", len(got.rows), got.rows)
			}
			if got.rows[0].ID != "m1" {
				t.Fatalf(`got.rows[0].ID is %q, want "m1"`, got.rows[0].ID)
			}
			if want := []byte{0, 255}; !bytes.Equal(got.rows[0].Payload, want) {
				t.Fatalf("got.rows[0].Payload is %q, want %q", got.rows[0].Payload, want)
			}
			if !got.unowned {
				t.Fatal("got.unowned is false")
			}
			if got.reach.Horizon <= 0 {
				t.Fatalf("got.reach.Horizon is %d, want more than 0", got.reach.Horizon)
			}
			if got.reach.Ceiling < got.reach.Horizon {
				t.Fatalf("got.reach.Ceiling is %d, want at least %d", got.reach.Ceiling, got.reach.Horizon)
			}
		}
		const busy = 5 // on a busy machine, pgx pings a connection that was idle for a second, and plans are discarded
		if got := trips.Load() - before; math.Abs(float64(got)-10) > busy {
			t.Fatalf("trips.Load()-before is %v, want 10, give or take %v", got, busy)
		}

		// A lookahead that finds no row is a single round trip, too.
		look := func(above int64) found {
			t.Helper()
			got, err := s.rows(t.Context(), &dispatch.Read{
				Lookahead: true, From: above, Late: above, Passed: above, Slots: []int64{0}, Limit: 10, Bytes: 1 << 20, Examine: 10, PerGroup: 10,
			})
			kit.OK(t, err)
			return got
		}
		position := look(0).rows[0].Position
		look(position)
		before = trips.Load()
		for range 10 {
			at := look(position).reach
			if at.Covered != dispatch.Everything || at.Horizon <= 0 || at.Ceiling < at.Horizon {
				t.Fatalf("a lookahead behind the last row covers %+v", at)
			}
		}
		if got := trips.Load() - before; math.Abs(float64(got)-10) > busy {
			t.Fatalf("10 lookaheads take %d round trips, want 10, give or take %v", got, busy)
		}

		// While a key is blocked, the horizon comes from a query before the read.
		exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 7, 7, 'refused')`)
		if got := sweep().reach.Horizon; got != 0 {
			t.Fatalf("sweep().reach.Horizon is %d, want 0", got)
		}
		if !s.inTx {
			t.Fatal("s.inTx is false")
		}
		if got := sweep().reach.Horizon; got <= 0 {
			t.Fatalf("sweep().reach.Horizon is %d, want more than 0", got)
		}
		exec(`DELETE FROM once_blocked_keys`)
		sweep()
		if s.inTx {
			t.Fatal("s.inTx is true")
		}
	})
}

// If the default isolation level is SERIALIZABLE, a read outside of a transaction would
// be SERIALIZABLE, too, and could make the transactions of producers fail. The forwarder
// must notice this, and read in a transaction with another level.
func TestReadIsNeverSerializable(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	d := kit.Dialect(t, schema.Config{})
	db.SetMaxOpenConns(1)
	kit.Exec(t, db, `SET default_transaction_isolation = 'serializable'`)
	s := newStore(db.DB, d)
	for range 3 {
		kit.OK(t, kit.Err(s.rows(t.Context(), &dispatch.Read{Slots: []int64{0}, Limit: 10, Bytes: 1 << 20})))
	}
	if !s.inTx {
		t.Fatal("s.inTx is false")
	}
	if s.alone {
		t.Fatal("s.alone is true")
	}
	kit.Exec(t, db, `RESET default_transaction_isolation`)
}
