package forwarder

import (
	"encoding/json"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// The number of blocks that a read touches must not grow with the backlog, with and
// without statistics about the table.
func TestTrap03_AReadCostsTheSameWithAnyBacklog(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyPostgres(t)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	d, err := dialect.New(schema.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(db.DB, d)
	exec := func(query string, args ...any) {
		if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
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
		for _, query := range []dialect.Statement{s.sql.read, s.sql.readWithState} {
			var text []byte
			err := db.QueryRowContext(t.Context(),
				`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query.Query(), args...).Scan(&text)
			if err != nil {
				t.Fatal(err)
			}
			var explained []struct {
				Plan struct {
					Hit  int `json:"Shared Hit Blocks"`
					Read int `json:"Shared Read Blocks"`
				} `json:"Plan"`
			}
			if err := json.Unmarshal(text, &explained); err != nil {
				t.Fatal(err)
			}
			blocks = max(blocks, explained[0].Plan.Hit+explained[0].Plan.Read)
		}
		return blocks
	}

	fill(1000)
	exec(`ANALYZE once_outbox`)
	few := cost(0)
	if few <= 0 {
		t.Fatalf("few is %d, want more than 0", few)
	}
	const more = 20 // because the indexes are deeper
	fill(100_000)
	if got := cost(0); got > few+more {
		t.Fatalf("cost(0) is %d, want at most %d: from the start", got, few+more)
	}
	if got := cost(50_000); got > few+more {
		t.Fatalf("cost(50_000) is %d, want at most %d: in the middle", got, few+more)
	}
	exec(`ANALYZE once_outbox`)
	if got := cost(0); got > few+more {
		t.Fatalf("cost(0) is %d, want at most %d: from the start, analyzed", got, few+more)
	}
	if got := cost(50_000); got > few+more {
		t.Fatalf("cost(50_000) is %d, want at most %d: in the middle, analyzed", got, few+more)
	}
}
