package forwarder

import (
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// countedConn counts writes. Both drivers write once for each round trip.
type countedConn struct {
	net.Conn

	writes *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

type counting struct {
	net.Dialer

	writes atomic.Int64
}

func (c *counting) Dial(network, address string) (net.Conn, error) {
	return c.DialContext(context.Background(), network, address)
}

func (c *counting) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return c.Dial(network, address)
}

func (c *counting) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.Dialer.DialContext(ctx, network, address)
	return countedConn{conn, &c.writes}, err
}

// A read is one round trip, so a message can be published one round trip after the hint.
func TestReadIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	for driver, open := range map[string]func(t *testing.T, dsn string, c *counting) *sql.DB{
		"pq": func(t *testing.T, dsn string, c *counting) *sql.DB {
			connector, err := pq.NewConnector(dsn)
			require.NoError(t, err)
			connector.Dialer(c)
			return sql.OpenDB(connector)
		},
		"pgx": func(t *testing.T, dsn string, c *counting) *sql.DB {
			config, err := pgx.ParseConfig(dsn)
			require.NoError(t, err)
			config.DialFunc = c.DialContext
			return stdlib.OpenDB(*config)
		},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := testkit.Postgres(t)
			require.NoError(t, schema.Up(t.Context(), server.DB, schema.Config{}))
			d, err := dialect.New(schema.Config{})
			require.NoError(t, err)
			trips := &counting{}
			db := open(t, server.DSN, trips)
			defer func() { require.NoError(t, db.Close()) }()
			s := newStore(db, d)
			sweep := func() found {
				t.Helper()
				got, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{0}, Limit: 10, Bytes: 1 << 20})
				require.NoError(t, err)
				return got
			}
			exec := func(query string) {
				t.Helper()
				_, err := server.ExecContext(t.Context(), query)
				require.NoError(t, err)
			}
			exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('m1', 'topic', 0, '\x00ff', '{}')`)
			sweep() // connects, and pgx prepares the query
			before := trips.writes.Load()
			for range 10 {
				got := sweep()
				require.Len(t, got.rows, 1)
				require.Equal(t, "m1", got.rows[0].ID)
				require.Equal(t, []byte{0, 255}, got.rows[0].Payload)
				require.True(t, got.unowned)
				require.Positive(t, got.reach.Horizon)
				require.GreaterOrEqual(t, got.reach.Ceiling, got.reach.Horizon)
			}
			const pings = 3 // on a busy machine, pgx pings a connection that was idle for a second
			require.InDelta(t, 10, trips.writes.Load()-before, pings)

			// While a key is blocked, the horizon comes from a query before the read.
			exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 7, 7, 'refused')`)
			require.Zero(t, sweep().reach.Horizon)
			require.True(t, s.inTx)
			require.Positive(t, sweep().reach.Horizon)
			exec(`DELETE FROM once_blocked_keys`)
			sweep()
			require.False(t, s.inTx)
		})
	}
}

// A query outside of a transaction would be SERIALIZABLE, and producers could fail
// because of it.
func TestReadIsNeverSerializable(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	require.NoError(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	d, err := dialect.New(schema.Config{})
	require.NoError(t, err)
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), `SET default_transaction_isolation = 'serializable'`)
	require.NoError(t, err)
	s := newStore(db.DB, d)
	for range 3 {
		_, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{0}, Limit: 10, Bytes: 1 << 20})
		require.NoError(t, err)
	}
	require.True(t, s.inTx)
	require.False(t, s.alone)
	_, err = db.ExecContext(t.Context(), `RESET default_transaction_isolation`)
	require.NoError(t, err)
}
