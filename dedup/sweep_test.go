package dedup_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

// age makes all rows of the inbox, and all finished parked messages, older.
func (b *bench) age(by time.Duration) {
	b.Helper()
	d := b.store().Dialect()
	for _, query := range []string{
		`UPDATE {inbox} SET processed_at = {after $1}`,
		`UPDATE {parked} SET finished_at = {after $1} WHERE finished_at IS NOT NULL`,
	} {
		b.Exec(d.SQL(query), -by.Milliseconds())
	}
}

func (b *bench) store() *parkedrows.Store {
	b.Helper()
	store, err := parkedrows.NewStore(b.DB, b.Config)
	kit.OK(b, err)
	return store
}

func (b *bench) sweep() int64 {
	b.Helper()
	n, err := b.inbox.Sweep(b.Context())
	kit.OK(b, err)
	return n
}

func (b *bench) handle(h message.HandlerFunc, ids ...string) {
	b.Helper()
	for _, id := range ids {
		kit.OK(b, kit.Err(b.inbox.Middleware(h)(message.NewMessage(id, nil))))
	}
}

// Rows younger than Retention must remain, and older rows must be removed in batches.
func TestSweepRemovesOnlyExpiredRows(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *dedup.Config) { c.Retention = 8 * 24 * time.Hour })
		const old = 4500 // so many rows need more than two batches
		values := make([]string, old)
		for n := range values {
			values[n] = fmt.Sprintf(`('old-%d', 'payments', '')`, n)
		}
		b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ` + strings.Join(values, ","))
		b.age(9 * 24 * time.Hour)
		b.handle(apply, "young")
		if n := b.sweep(); n != old {
			t.Errorf("%d rows were removed, want %d", n, old)
		}
		b.expect(1, 1, 0)
		b.handle(apply, "young")
		b.expect(1, 1, 0)
		b.age(7 * 24 * time.Hour)
		if n := b.sweep(); n != 0 {
			t.Errorf("%d rows were removed before their time", n)
		}
	})
}

// Trap 36. A parked or quarantined message may run again much later, so the inbox must
// remember it until then. The sweep must distinguish two consumers of the same message.
func TestMessageThatMayRunAgainIsRemembered(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		ctx, store := t.Context(), b.store()
		b.handle(apply, "waiting", "quarantined", "others", "resolved", "discarded", "gone")
		park := func(who, id string) {
			d := &parkedrows.Delivery{Consumer: who, Topic: "t"}
			kit.OK(t, kit.Err(store.Quarantine(ctx, d, message.NewMessage(id, nil), parkedrows.Failure{Err: errHandler}, nil)))
		}
		for _, id := range []string{"waiting", "quarantined", "resolved", "discarded"} {
			park(consumer, id)
		}
		park("inventory", "others")
		for _, id := range []string{"waiting", "resolved", "discarded"} {
			b.Exec(`UPDATE once_parked SET state = '` + id + `' WHERE message_id = '` + id + `'`)
		}
		b.Exec(store.Dialect().SQL(`UPDATE {parked} SET finished_at = {now} WHERE state IN ('resolved', 'discarded')`))
		b.age(365 * 24 * time.Hour)
		b.sweep()
		left := b.Count(`once_inbox WHERE message_id IN ('waiting', 'quarantined')`)
		if left != 2 || b.Count(`once_inbox`) != 2 {
			t.Errorf("%d of 2 that may come back are remembered, and %d in all", left, b.Count(`once_inbox`))
		}
		if n := b.Count(`once_parked WHERE state IN ('waiting', 'quarantined')`); n != 3 || b.Count(`once_parked`) != 3 {
			t.Errorf("of the parked %d are left, and %d in all", n, b.Count(`once_parked`))
		}
		b.handle(apply, "waiting", "quarantined")
		b.expect(6, 2, 0) // six effects: nothing was applied again since the beginning of the test
		if n := b.sweep(); n != 0 {
			t.Errorf("%d more were removed", n)
		}
	})
}

// The entries of a replay are kept until the replay has finished.
func TestEntriesOfAFinishedReplayAreRemoved(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		d := &parkedrows.Delivery{Consumer: consumer, Topic: "t"}
		for _, state := range []string{"paused", "stopped", "finished"} {
			kit.OK(t, kit.Err(b.store().Quarantine(t.Context(), d, message.NewMessage(state, nil), parkedrows.Failure{Err: errHandler}, nil)))
			b.Exec(`INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id)
				VALUES ('payments', '{}', '{}', 'test', '', $1, 1, 1)`, state)
			b.Exec(b.store().Dialect().SQL(`UPDATE {parked} SET state = 'resolved', finished_at = {now},
				replay_id = (SELECT MAX(id) FROM once_replays) WHERE message_id = $1`), state)
		}
		b.age(aYear)
		if n := b.sweep(); n != 1 || b.Count(`once_parked WHERE message_id = 'finished'`) != 0 {
			t.Errorf("%d entries are removed, want the one of the finished replay", n)
		}
	})
}

// Trap 72. A late duplicate of a discarded message must not be handled.
func TestDiscardedMessageIsRememberedForTheRetention(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		store := b.store()
		msg := message.NewMessage("m1", []byte("body"))
		d := &parkedrows.Delivery{Consumer: consumer, Topic: "t"}
		id, err := store.Quarantine(t.Context(), d, msg, parkedrows.Failure{Err: errHandler}, nil)
		kit.OK(t, err)
		entries, err := quarantine.New(db.DB, operate.Config{Schema: store.Dialect().Config()})
		kit.OK(t, err)
		kit.OK(t, entries.Discard(t.Context(), operate.Act{Actor: "test", Why: "test"}, id))
		b.age(29 * 24 * time.Hour)
		b.sweep()
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(msg.Copy())))
		b.expect(0, 1, 0)
	})
}

func TestRunSweepsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *dedup.Config) { c.SweepInterval = 10 * time.Millisecond })
		ctx, cancel := context.WithCancel(t.Context())
		ended := kit.Go(func() error { return b.inbox.Run(ctx) })
		for range 2 { // Run must sweep again and again
			b.handle(apply, "m1")
			b.age(31 * 24 * time.Hour)
			kit.Eventually(t, 20*time.Second, "it is forgotten", func() bool { return b.Count("once_inbox") == 0 })
		}
		cancel()
		kit.OK(t, <-ended)
	})
}

// Trap 36. If an id is removed too early, the handler is called for a late duplicate.
// So this configuration must be refused, with an error that contains both field names.
func TestRetentionShorterThanMaxDuplicateAgeIsRefused(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	for _, config := range []dedup.Config{
		{Retention: 6 * 24 * time.Hour},
		{Retention: time.Hour, MaxDuplicateAge: 2 * time.Hour},
		{MaxDuplicateAge: 31 * 24 * time.Hour},
	} {
		_, err := dedup.New(db.DB, config)
		if err == nil || !strings.Contains(err.Error(), "Retention") || !strings.Contains(err.Error(), "MaxDuplicateAge") {
			t.Errorf("%+v: %v", config, err)
		}
	}
	kit.Check(t, kit.Err(dedup.New(db.DB, dedup.Config{Retention: time.Hour, MaxDuplicateAge: time.Hour})))
}

func TestInboxThatIsNeverSweptIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		elsewhere bool
		swept     bool
		said      int
	}{
		{"never", false, false, 1},
		{"by another process", true, false, 0},
		{"by this one", false, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			logs := &kit.Logs{}
			b := newBench(t, kit.SQLite(t), func(config *dedup.Config) {
				config.Logger, config.SweptElsewhere = logs, c.elsewhere
			})
			if c.swept {
				b.sweep()
			}
			for n := range 1000 { // the last message causes the warning
				b.handle(apply, fmt.Sprint("m", n))
			}
			const text = `ERROR The inbox grows: this process does not remove expired rows`
			n := logs.CountLine(text + ` retention=720h0m0s table="once_inbox" err=Inbox.Run was not called: add once.Plugin to the router ` +
				"or call Run, or set Config.SweptElsewhere if another process does")
			if n != c.said || logs.Count(text) != c.said {
				t.Errorf("logged %d times: %q", n, logs.Lines())
			}
		})
	}
}

// The cost of a batch must depend on the number of removed rows, not on the size of the
// inbox. This must be true even if the table reuses space and its rows are therefore
// not in the order of time.
func TestSweepDoesNotReadTheWholeInbox(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	fill := func(rows int, days string) {
		b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
			SELECT gen_random_uuid(), 'payments', sha256('body'), now() - `+days+` * random() * interval '1 day'
			FROM generate_series(1, $1)`, rows)
	}
	fill(40_000, `60`)
	b.Exec(`DELETE FROM once_inbox WHERE processed_at < now() - interval '29 days'`)
	b.Exec(`VACUUM once_inbox`)
	fill(20_000, `29`)
	b.Exec(`VACUUM ANALYZE once_inbox`)
	pages := b.Count(`generate_series(1, pg_relation_size('once_inbox') / 8192)`)

	if read, rows := b.cost(31 * 24 * time.Hour); rows != 0 || read > 20 {
		t.Errorf("nothing is too old, and %d of %d pages were read for %d rows", read, pages, rows)
	}
	b.Exec(`UPDATE once_inbox SET processed_at = now() - interval '40 days'
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
		-retention.Milliseconds(), 2000, time.Now().Add(-retention).UnixMilli(), 0)
}

func (b *bench) explained(query string, args ...any) (pages, rows int) {
	b.Helper()
	tx := kit.Begin(b, b)
	defer func() { _ = tx.Rollback() }()
	var explained []byte
	query = `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ` + query
	kit.OK(b, tx.QueryRowContext(b.Context(), query, args...).Scan(&explained))
	type node struct {
		Hit  int     `json:"Shared Hit Blocks"`
		Read int     `json:"Shared Read Blocks"`
		Rows float64 `json:"Actual Rows"`

		Plans []node `json:"Plans"`
	}
	var plans []struct {
		Plan node `json:"Plan"`
	}
	kit.OK(b, json.Unmarshal(explained, &plans))
	top := plans[0].Plan
	b.Logf("%d pages for %s", top.Hit+top.Read, explained)
	return top.Hit + top.Read, int(top.Plans[0].Rows)
}

// The messages of an unfinished replay must be read once in a sweep, not once for every
// batch.
func TestSweepReadsEntriesOfARunningReplayOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	const kept, old = 20_000, 7000 // so many rows need four batches
	b.Exec(`INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id)
		VALUES ('payments', '{}', '{}', 'test', '', 'stopped', 0, 0)`)
	for replay, rows := range map[string]int{`(SELECT id FROM once_replays)`: kept, `NULL`: old} {
		b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, replay_id, finished_at)
			SELECT 'payments', 't', gen_random_uuid(), '', '', 'resolved', now(), `+replay+`,
			       now() - interval '40 days' - i * CASE WHEN `+replay+` IS NULL THEN 0.001 ELSE 10 END * interval '1 second'
			FROM generate_series(1, $1) AS i`, rows)
	}
	b.Exec(`VACUUM ANALYZE once_parked`)
	b.SetMaxIdleConns(0) // because a connection reports its statistics only when it ends
	const statistics = `(SELECT seq_tup_read + idx_tup_fetch AS read, n_tup_del AS deleted
		FROM pg_stat_user_tables WHERE relname = 'once_parked') AS s`
	read := func() (rows int) {
		t.Helper()
		kit.OK(t, b.QueryRowContext(t.Context(), `SELECT read FROM `+statistics).Scan(&rows))
		return rows
	}
	before := read()
	if n := b.sweep(); n != old {
		t.Fatalf("%d rows were removed, want %d", n, old)
	}
	kit.Eventually(t, 20*time.Second, "all is told", func() bool { return b.Count(statistics+` WHERE deleted = 7000`) == 1 })
	// A removed row is read twice: when it is found and when it is deleted.
	if rows := read() - before; rows > kept+4*old {
		t.Errorf("%d rows were read, of %d that stay and %d that go", rows, kept, old)
	}
	if n := b.sweep() + int64(b.Count(`once_parked`)); n != kept {
		t.Errorf("%d rows are left, want %d", n, kept)
	}
}

// Keys that must remain must not make a batch more expensive than expired ids do. The
// parked messages with these keys must be read once, not by every sweep.
func TestSweepReadsParkedMessagesForTheirKeysOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), byPayload)
	const kept, old = 3000, 7000
	for n := range 3 {
		b.parkAs("quarantined", fmt.Sprintf("B%d", n), fmt.Sprintf("order-%d", n))
	}
	b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, dedup_key)
		SELECT 'payments', 't', 'p' || i, '', '', 'quarantined', now(), 'key:' || i FROM generate_series(1, $1) AS i`, kept)
	b.ageParked()
	b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT 'key:' || i, 'payments', '', now() - interval '40 days' + i * interval '1 second' FROM generate_series(1, $1) AS i`, kept+old)
	b.Exec(`VACUUM ANALYZE once_parked`)
	b.Exec(`VACUUM ANALYZE once_inbox`)

	query, args := dedup.SweepQuery(b.inbox), []any{-31 * 24 * time.Hour.Milliseconds(), 2000, time.Now().UnixMilli(), 0}
	if read, rows := b.explained(query, args...); rows != 2000 || read > 30*(kept+2000) {
		t.Errorf("for %d keys, behind %d that stay, %d pages were read", rows, kept, read)
	}
	if n := b.sweep(); n != old {
		t.Errorf("%d keys were removed, want %d", n, old)
	}
	if n := b.Count(`once_parked WHERE dedup_key IS NULL`); n != 0 {
		t.Errorf("the keys of %d parked messages are not known", n)
	}
}

// A sweep that removes keys must not read the quarantine, neither entries whose keys are
// known, nor the entries of consumers without keys.
func TestSweepOfKeysDoesNotReadTheQuarantine(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), byPayload)
	const entries, keys = 20_000, 100
	for consumer, key := range map[string]string{"payments": "'key:' || i", "mails": "NULL"} {
		b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, created_at, dedup_key)
			SELECT '`+consumer+`', 't', 'p' || i, '', repeat('x', 500)::bytea, 'quarantined', now(), now() - interval '1 year', `+key+`
			FROM generate_series(1, $1) AS i`, entries)
	}
	b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT 'key:old' || i, 'payments', '', now() - interval '40 days' FROM generate_series(1, $1) AS i`, keys)
	b.Exec(`VACUUM ANALYZE once_parked`)
	b.Exec(`VACUUM ANALYZE once_inbox`)
	now := time.Now().UnixMilli()
	if read, rows := b.explained(dedup.SweepQuery(b.inbox), -31*24*time.Hour.Milliseconds(), 2000, now, now); rows != keys || read > 30*keys {
		t.Errorf("for %d keys, %d pages were read", rows, read)
	}
	if read, _ := b.explained(dedup.UnknownKeysQuery(b.inbox), now, b.store().Dialect().Strings([]string{"payments"}), 0, 500); read > 50 {
		t.Errorf("to find no message with an unknown key, %d pages were read", read)
	}
	if n := b.sweep(); n != keys {
		t.Errorf("%d keys were removed, want %d", n, keys)
	}
}

// While sweeps fail, Run logs one error. When they work again, it logs this once.
func TestFailingSweepsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		t.Parallel()
		logs := &kit.Logs{}
		b := newBench(t, db, func(c *dedup.Config) { c.SweepInterval, c.Logger = 10*time.Millisecond, logs })
		ctx, stop := context.WithCancel(t.Context())
		ended := kit.Go(func() error { return b.inbox.Run(ctx) })
		const failed, works = "Sweep of the inbox failed", "Sweep of the inbox works again"
		for times := 1; times <= 2; times++ {
			b.Exec(`ALTER TABLE once_inbox RENAME TO away`)
			kit.Eventually(t, time.Minute, "it fails", func() bool { return logs.Count(failed) == times })
			for range 5 { // sweeps fail in the meantime
				if _, err := b.inbox.Sweep(t.Context()); err == nil {
					t.Error("a sweep without its table does not fail")
				}
			}
			b.Exec(`ALTER TABLE away RENAME TO once_inbox`)
			kit.Eventually(t, time.Minute, "it works", func() bool { return logs.Count(works) == times })
		}
		stop()
		kit.Check(t, <-ended)
		if f, w := logs.Count(failed), logs.Count(works); f != 2 || w != 2 {
			t.Errorf("%d failures and %d recoveries are logged: %v", f, w, logs.Lines())
		}
	})
}
