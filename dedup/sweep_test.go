package dedup_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
)

// age makes all rows of the inbox, and all finished parked messages, older.
func (b *bench) age(by time.Duration) {
	b.Helper()
	d := b.store().Dialect()
	for _, query := range []string{
		`UPDATE {inbox} SET processed_at = {after $1}`,
		`UPDATE {parked} SET finished_at = {after $1} WHERE finished_at IS NOT NULL`,
	} {
		b.exec(d.SQL(query), -by.Milliseconds())
	}
}

func (b *bench) store() *parked.Store {
	b.Helper()
	store, err := parked.NewStore(b.DB, b.config)
	if err != nil {
		b.Fatal(err)
	}
	return store
}

func (b *bench) sweep() int64 {
	b.Helper()
	n, err := b.inbox.Sweep(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func (b *bench) handle(h message.HandlerFunc, ids ...string) {
	b.Helper()
	for _, id := range ids {
		if _, err := b.inbox.Middleware(h)(message.NewMessage(id, nil)); err != nil {
			b.Fatal(err)
		}
	}
}

// Rows younger than Retention must remain, and older rows must be removed in batches.
func TestSweepRemovesOnlyExpiredRows(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *dedup.Config) { c.Retention = 8 * 24 * time.Hour })
		const old = 4500 // so many rows need more than two batches
		values := make([]string, old)
		for n := range values {
			values[n] = fmt.Sprintf(`('old-%d', 'payments', '')`, n)
		}
		b.exec(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ` + strings.Join(values, ","))
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		ctx, store := t.Context(), b.store()
		b.handle(apply, "waiting", "quarantined", "others", "resolved", "discarded", "gone")
		park := func(who, id string) {
			d := &parked.Delivery{Consumer: who, Topic: "t"}
			if _, err := store.Quarantine(ctx, d, message.NewMessage(id, nil), parked.Failure{Err: errHandler}, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []string{"waiting", "quarantined", "resolved", "discarded"} {
			park(consumer, id)
		}
		park("inventory", "others")
		for _, id := range []string{"waiting", "resolved", "discarded"} {
			b.exec(`UPDATE once_parked SET state = '` + id + `' WHERE message_id = '` + id + `'`)
		}
		b.exec(store.Dialect().SQL(`UPDATE {parked} SET finished_at = {now} WHERE state IN ('resolved', 'discarded')`))
		b.age(365 * 24 * time.Hour)
		b.sweep()
		left := b.count(`once_inbox WHERE message_id IN ('waiting', 'quarantined')`)
		if left != 2 || b.count(`once_inbox`) != 2 {
			t.Errorf("%d of 2 that may come back are remembered, and %d in all", left, b.count(`once_inbox`))
		}
		if n := b.count(`once_parked WHERE state IN ('waiting', 'quarantined')`); n != 3 || b.count(`once_parked`) != 3 {
			t.Errorf("of the parked %d are left, and %d in all", n, b.count(`once_parked`))
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		d := &parked.Delivery{Consumer: consumer, Topic: "t"}
		for _, state := range []string{"paused", "stopped", "finished"} {
			if _, err := b.store().Quarantine(t.Context(), d, message.NewMessage(state, nil), parked.Failure{Err: errHandler}, nil); err != nil {
				t.Fatal(err)
			}
			b.exec(`INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id)
				VALUES ('payments', '{}', '{}', 'test', '', $1, 1, 1)`, state)
			b.exec(b.store().Dialect().SQL(`UPDATE {parked} SET state = 'resolved', finished_at = {now},
				replay_id = (SELECT MAX(id) FROM once_replays) WHERE message_id = $1`), state)
		}
		b.age(aYear)
		if n := b.sweep(); n != 1 || b.count(`once_parked WHERE message_id = 'finished'`) != 0 {
			t.Errorf("%d entries are removed, want the one of the finished replay", n)
		}
	})
}

// Trap 72. A late duplicate of a discarded message must not be handled.
func TestDiscardedMessageIsRememberedForTheRetention(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		store := b.store()
		msg := message.NewMessage("m1", []byte("body"))
		d := &parked.Delivery{Consumer: consumer, Topic: "t"}
		id, err := store.Quarantine(t.Context(), d, msg, parked.Failure{Err: errHandler}, nil)
		if err != nil {
			t.Fatal(err)
		}
		quarantine, err := poison.New(db.DB, poison.Config{Schema: store.Dialect().Config()})
		if err != nil {
			t.Fatal(err)
		}
		if err := quarantine.Discard(t.Context(), poison.Act{Actor: "test", Why: "test"}, id); err != nil {
			t.Fatal(err)
		}
		b.age(29 * 24 * time.Hour)
		b.sweep()
		if _, err := b.inbox.Middleware(apply)(msg.Copy()); err != nil {
			t.Fatal(err)
		}
		b.expect(0, 1, 0)
	})
}

func TestRunSweepsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *dedup.Config) { c.SweepInterval = 10 * time.Millisecond })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.inbox.Run(ctx) }()
		for range 2 { // Run must sweep again and again
			b.handle(apply, "m1")
			b.age(31 * 24 * time.Hour)
			testkit.Eventually(t, 20*time.Second, "it is forgotten", func() bool { return b.count("once_inbox") == 0 })
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

// Trap 36. If an id is removed too early, the handler is called for a late duplicate.
// So this configuration must be refused, with an error that contains both field names.
func TestRetentionShorterThanMaxDuplicateAgeIsRefused(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
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
	if _, err := dedup.New(db.DB, dedup.Config{Retention: time.Hour, MaxDuplicateAge: time.Hour}); err != nil {
		t.Error(err)
	}
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
			logs := &testkit.Logs{}
			b := newBench(t, testkit.SQLite(t), func(config *dedup.Config) {
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
