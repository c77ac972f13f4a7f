package forwarder

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// The number of blocks that a read touches must not grow with the backlog, with and
// without statistics about the table.
func TestTrap03_AReadCostsTheSameWithAnyBacklog(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	require.NoError(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	d, err := dialect.New(schema.Config{})
	require.NoError(t, err)
	s := newStore(db.DB, d)
	exec := func(query string, args ...any) {
		_, err := db.ExecContext(t.Context(), query, args...)
		require.NoError(t, err)
	}
	fill := func(n int) {
		exec(`INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata, due_at)
			SELECT i, 'topic', CASE WHEN i % 2 = 0 THEN i % 1000 END, i % 64, 'payload', '{}',
			       CASE WHEN i % 10 = 0 THEN now() + interval '1 hour' END
			FROM generate_series(1, $1::int) AS i`, n)
	}
	slots := make([]int64, 64)
	for i := range slots {
		slots[i] = int64(i)
	}
	cost := func(from int64) (blocks int) {
		args := s.arguments(&dispatch.Read{
			From: from, Known: []int64{from + 1, from + 2}, Slots: slots, Keys: []string{"1", "2"}, Limit: 100,
		})
		for _, query := range []dialect.Statement{s.sql.read, s.sql.readWithHead} {
			var text []byte
			require.NoError(t, db.QueryRowContext(t.Context(),
				`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query.Query(), args...).Scan(&text))
			var explained []struct {
				Plan struct {
					Hit  int `json:"Shared Hit Blocks"`
					Read int `json:"Shared Read Blocks"`
				} `json:"Plan"`
			}
			require.NoError(t, json.Unmarshal(text, &explained))
			blocks = max(blocks, explained[0].Plan.Hit+explained[0].Plan.Read)
		}
		return blocks
	}

	fill(1000)
	exec(`ANALYZE once_outbox`)
	few := cost(0)
	require.Positive(t, few)
	const more = 20 // because the indexes are deeper
	fill(100_000)
	require.LessOrEqual(t, cost(0), few+more, "from the start")
	require.LessOrEqual(t, cost(50_000), few+more, "in the middle")
	exec(`ANALYZE once_outbox`)
	require.LessOrEqual(t, cost(0), few+more, "from the start, analyzed")
	require.LessOrEqual(t, cost(50_000), few+more, "in the middle, analyzed")
}
