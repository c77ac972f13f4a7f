package dedup_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
)

// The cost of a batch must depend on the number of removed rows, not on the size of the
// inbox. This must be true even if the table reuses space and its rows are therefore
// not in the order of time.
func TestSweepDoesNotReadTheWholeInbox(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), nil)
	fill := func(rows int, days string) {
		b.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
			SELECT gen_random_uuid(), 'payments', sha256('body'), now() - `+days+` * random() * interval '1 day'
			FROM generate_series(1, $1)`, rows)
	}
	fill(40_000, `60`)
	b.exec(`DELETE FROM once_inbox WHERE processed_at < now() - interval '29 days'`)
	b.exec(`VACUUM once_inbox`)
	fill(20_000, `29`)
	b.exec(`VACUUM ANALYZE once_inbox`)
	pages := b.count(`generate_series(1, pg_relation_size('once_inbox') / 8192)`)

	if read, rows := b.cost(31 * 24 * time.Hour); rows != 0 || read > 20 {
		t.Errorf("nothing is too old, and %d of %d pages were read for %d rows", read, pages, rows)
	}
	b.exec(`UPDATE once_inbox SET processed_at = now() - interval '40 days'
		WHERE message_id IN (SELECT message_id FROM once_inbox LIMIT 50)`)
	if read, rows := b.cost(31 * 24 * time.Hour); rows != 50 || read > 50*20 {
		t.Errorf("for %d rows, of which 50 are too old, %d of %d pages were read", rows, read, pages)
	}
}

// cost returns how many pages a batch reads and how many rows it removes. It then rolls
// the batch back.
func (b *bench) cost(retention time.Duration) (pages, rows int) {
	b.Helper()
	return b.explained(dedup.SweepQuery(b.inbox),
		-retention.Milliseconds(), 2000, time.Now().Add(-retention).UnixMilli(), "{}")
}

func (b *bench) explained(query string, args ...any) (pages, rows int) {
	b.Helper()
	tx, err := b.BeginTx(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var explained []byte
	query = `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ` + query
	if err := tx.QueryRowContext(b.Context(), query, args...).Scan(&explained); err != nil {
		b.Fatal(err)
	}
	type node struct {
		Hit  int     `json:"Shared Hit Blocks"`
		Read int     `json:"Shared Read Blocks"`
		Rows float64 `json:"Actual Rows"`

		Plans []node `json:"Plans"`
	}
	var plans []struct {
		Plan node `json:"Plan"`
	}
	if err := json.Unmarshal(explained, &plans); err != nil {
		b.Fatal(err)
	}
	top := plans[0].Plan
	b.Logf("%d pages for %s", top.Hit+top.Read, explained)
	return top.Hit + top.Read, int(top.Plans[0].Rows)
}

// The messages of an unfinished replay must be read once in a sweep, not once for every
// batch.
func TestSweepReadsEntriesOfARunningReplayOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), nil)
	const kept, old = 20_000, 7000 // so many rows need four batches
	b.exec(`INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id)
		VALUES ('payments', '{}', '{}', 'test', '', 'stopped', 0, 0)`)
	for replay, rows := range map[string]int{`(SELECT id FROM once_replays)`: kept, `NULL`: old} {
		b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, replay_id, finished_at)
			SELECT 'payments', 't', gen_random_uuid(), '', '', 'resolved', now(), `+replay+`,
			       now() - interval '40 days' - i * CASE WHEN `+replay+` IS NULL THEN 0.001 ELSE 10 END * interval '1 second'
			FROM generate_series(1, $1) AS i`, rows)
	}
	b.exec(`VACUUM ANALYZE once_parked`)
	b.SetMaxIdleConns(0) // because a connection reports its statistics only when it ends
	const statistics = `(SELECT seq_tup_read + idx_tup_fetch AS read, n_tup_del AS deleted
		FROM pg_stat_user_tables WHERE relname = 'once_parked') AS s`
	read := func() (rows int) {
		t.Helper()
		if err := b.QueryRowContext(t.Context(), `SELECT read FROM `+statistics).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	before := read()
	if n := b.sweep(); n != old {
		t.Fatalf("%d rows were removed, want %d", n, old)
	}
	testkit.Eventually(t, 20*time.Second, "all is told", func() bool { return b.count(statistics+` WHERE deleted = 7000`) == 1 })
	// A removed row is read twice: when it is found and when it is deleted.
	if rows := read() - before; rows > kept+4*old {
		t.Errorf("%d rows were read, of %d that stay and %d that go", rows, kept, old)
	}
	if n := b.sweep() + int64(b.count(`once_parked`)); n != kept {
		t.Errorf("%d rows are left, want %d", n, kept)
	}
}

// Keys that must remain must not make a batch more expensive than expired ids do. The
// parked messages with these keys must be read once, not by every sweep.
func TestSweepReadsParkedMessagesForTheirKeysOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), byPayload)
	const kept, old = 3000, 7000
	for n := range 3 {
		b.parkAs("quarantined", fmt.Sprintf("B%d", n), fmt.Sprintf("order-%d", n))
	}
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, dedup_key)
		SELECT 'payments', 't', 'p' || i, '', '', 'quarantined', now(), 'key:' || i FROM generate_series(1, $1) AS i`, kept)
	b.ageParked()
	b.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT 'key:' || i, 'payments', '', now() - interval '40 days' + i * interval '1 second' FROM generate_series(1, $1) AS i`, kept+old)
	b.exec(`VACUUM ANALYZE once_parked`)
	b.exec(`VACUUM ANALYZE once_inbox`)

	query, args := dedup.SweepQuery(b.inbox), []any{-31 * 24 * time.Hour.Milliseconds(), 2000, time.Now().UnixMilli(), "{}"}
	if read, rows := b.explained(query, args...); rows != 2000 || read > 30*(kept+2000) {
		t.Errorf("for %d keys, behind %d that stay, %d pages were read", rows, kept, read)
	}
	if n := b.sweep(); n != old {
		t.Errorf("%d keys were removed, want %d", n, old)
	}
	if n := b.count(`once_parked WHERE dedup_key IS NULL`); n != 0 {
		t.Errorf("the keys of %d parked messages are not known", n)
	}
}
