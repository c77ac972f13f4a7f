package parkedrows

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

var errAway = errors.New("the database is away")

// The pauses between the tries grow, so that an outage costs little, but its end is
// noticed within seconds. The outage is logged once, and the message is handed back when
// UnackedWait is over.
func TestPersistTriesAgainUntilUnackedWaitIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs kit.Logs
		began := time.Now()
		var tries []int64
		d, p := &Delivery{Consumer: "c", Topic: "t"}, Patience{UnackedWait: 20 * time.Second, Logger: &logs}
		err := p.Persist(t.Context(), d, "park the message", func(context.Context) error {
			tries = append(tries, time.Since(began).Milliseconds())
			return errAway
		})
		if v := chain.Of(err); v.Kind != chain.Undecided || !v.NotCalled || !errors.Is(err, errAway) ||
			!strings.HasPrefix(err.Error(), "park the message: ") {
			t.Errorf("the error is %v with disposition %+v", err, *v)
		}
		if want := []int64{0, 50, 150, 350, 750, 1550, 3150, 6350, 11350, 16350, 21350}; !slices.Equal(tries, want) {
			t.Errorf("the tries are after %v ms, want %v", tries, want)
		}
		const line = "ERROR Message stays unacked while a step is tried again"
		if !logs.Has(line, "consumer=c", "topic=t", "step=park the message", errAway.Error()) || len(logs.Lines()) != 1 {
			t.Errorf("logged %q", logs.Lines())
		}
	})
}

func TestPersistEndsWithSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := Patience{UnackedWait: time.Hour, Logger: &kit.Logs{}}.Persist(t.Context(), &Delivery{}, "", func(context.Context) error {
			if tries++; tries < 3 {
				return errAway
			}
			return nil
		})
		if err != nil || tries != 3 {
			t.Errorf("%d tries, %v", tries, err)
		}
	})
}

// If the claim is lost, another process has the row, and Persist has nothing more to
// do.
func TestPersistEndsIfTheClaimIsLost(t *testing.T) {
	t.Parallel()
	var logs kit.Logs
	tries := 0
	d, p := &Delivery{Consumer: "c", Topic: "t"}, Patience{UnackedWait: time.Hour, Logger: &logs}
	err := p.Persist(t.Context(), d, "resolve", func(context.Context) error {
		tries++
		return ErrClaimLost
	})
	if err != nil || tries != 1 {
		t.Errorf("%d tries, %v", tries, err)
	}
	if len(logs.Lines()) != 1 || !logs.Has("INFO Lease ended before the message was settled", "consumer=c", "topic=t", "step=resolve") {
		t.Errorf("logged %q", logs.Lines())
	}
}

// A shutdown must not wait for the pause to end.
func TestPersistHandsBackDuringAShutdown(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	close(closing)
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx context.Context
		d   *Delivery
	}{
		"of the consumer":            {t.Context(), &Delivery{Closing: closing}},
		"that ends the subscription": {ended, &Delivery{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, tries := time.Now(), 0
			err := Patience{UnackedWait: time.Hour, Logger: &kit.Logs{}}.Persist(c.ctx, c.d, "", func(ctx context.Context) error {
				tries++
				return errors.Join(errAway, ctx.Err())
			})
			if !errors.Is(err, errAway) || errors.Is(err, context.Canceled) || tries != 1 || time.Since(began) != 0 {
				t.Errorf("%s: %v after %d tries and %v", name, err, tries, time.Since(began))
			}
		})
	}
}

// A try that hangs must end, so that the next one can succeed over another connection.
func TestPersistBoundsEachTry(t *testing.T) {
	t.Parallel()
	for want, p := range map[time.Duration]Patience{30 * time.Second: {}, time.Second: {OneTry: time.Second}} {
		p.Logger = &kit.Logs{}
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_ = p.Persist(t.Context(), &Delivery{}, "", func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			// With UnackedWait 0 there is only one try.
			if took := time.Since(began); took != want {
				t.Errorf("the try took %v, want %v", took, want)
			}
		})
	}
}

// The state of a table is kept while a Store uses it, and then removed.
func TestStateOfAnUnusedTableIsRemoved(t *testing.T) {
	t.Parallel()
	table := tableOf{weak.Make(kit.SQLite(t).DB), "a table"}
	known := func() bool {
		shared.Lock()
		defer shared.Unlock()
		_, ok := shared.tables[table]
		return ok
	}
	use := func(p weak.Pointer[process]) {
		shared.Lock()
		defer shared.Unlock()
		shared.tables[table] = p
	}
	p := &process{}
	use(weak.Make(p))
	if forget(table); !known() {
		t.Error("the state is removed while it is used")
	}
	runtime.KeepAlive(p)
	use(weak.Pointer[process]{})
	if forget(table); known() {
		t.Error("the state is not removed")
	}
}

// For a message without an ordering key, no statement about the order of keys is sent.
func TestNoKeysNeedNoStatement(t *testing.T) {
	t.Parallel()
	var s Store
	if err := s.promote(t.Context(), nil, nil); err != nil { // a statement would panic, because there is no transaction
		t.Error(err)
	}
	s.sql.order.lock = "SELECT 1"
	kit.Check(t, s.lockKeys(t.Context(), nil, nil))
}

// Keys that differ in the table, the consumer, the topic or the key do not wait for each
// other.
func TestEachKeyHasItsOwnLock(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	seen := map[int64]bool{}
	keys := []Key{{"c", "t", "k"}, {"d", "t", "k"}, {"c", "u", "k"}, {"c", "t", "l"}, {"ct", "", "k"}}
	for _, prefix := range []string{"once_", "other_"} {
		s, err := NewStore(db.DB, schema.Config{Dialect: schema.SQLite, Prefix: prefix})
		kit.OK(t, err)
		for _, k := range keys {
			seen[s.lockOf(k)] = true
		}
	}
	if len(seen) != 2*len(keys) {
		t.Errorf("%d locks for %d keys", len(seen), 2*len(keys))
	}
}

// A transaction that waits for the lock of one key has only lower locks, so that two
// transactions with the same keys cannot deadlock.
func TestKeysAreLockedInAscendingOrder(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	s, err := NewStore(db.DB, schema.Config{})
	kit.OK(t, err)
	names := []string{"a", "b"}
	lock := func(name string) int64 { return s.lockOf(Key{"c", "t", name}) }
	if lock("a") < lock("b") {
		slices.Reverse(names) // the higher lock first
	}
	tx, err := db.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `SELECT pg_advisory_xact_lock($1)`, lock(names[1]))
	delivered := make(chan error, 1)
	go func() {
		var msgs []*message.Message
		for _, name := range names {
			msg := message.NewMessage(name, nil)
			msg.Metadata[meta.OrderingKey] = name
			msgs = append(msgs, msg)
		}
		delivered <- s.DeliverTo(t.Context(), "t", []Subscription{{Consumer: "c", KeyOrder: true}}, msgs...)
	}()
	kit.Eventually(t, 20*time.Second, "the delivery waits", func() bool {
		var n int
		err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		return err == nil && n == 1
	})
	var free bool
	if err := tx.QueryRowContext(t.Context(), `SELECT pg_try_advisory_xact_lock($1)`, lock(names[0])).Scan(&free); err != nil || !free {
		t.Errorf("the higher lock is free: %t, %v", free, err)
	}
	kit.OK(t, tx.Rollback())
	kit.Check(t, <-delivered)
}
