package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

func TestCloseFinishesWhatIsInFlight(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		release := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			<-release
			if d.id == "refused" {
				return refusal{errors.New("no")}
			}
			return nil
		})
		f := start(t, db, &pipelined{broker: b}, quick(config))
		put(t, db, config, "t", msg("1", "key"), msg("2", "key"), msg("3", ""), msg("refused", ""))
		eventually(t, "they are in flight", func() bool {
			return b.tries("1") == 1 && b.tries("3") == 1 && b.tries("refused") == 1
		})
		closed := make(chan error)
		go func() { closed <- f.Close() }()
		eventually(t, "Close waits", func() bool { return testkit.Goroutines("(*Forwarder).Close(", "[chan receive") == 1 })
		put(t, db, config, "t", msg("late", ""))
		select {
		case err := <-closed:
			t.Fatalf("Close does not wait: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		if got := pending(t, db); got != 3 {
			t.Fatalf("pending is %d, want 3: 2, late and refused", got)
		}
		if got := attempts(t, db, "refused"); got != 1 {
			t.Fatalf(`attempts("refused") is %d, want 1`, got)
		}
		if got := b.tries("2") + b.tries("late"); got != 0 {
			t.Fatalf(`b.tries("2")+b.tries("late") is %d, want 0`, got)
		}
	})
}

func TestCloseHandsBackWhatIsNotAnswered(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		release := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			if d.id == "silent" {
				<-release
			}
			if d.id == "unsure" {
				<-release
				return unsure{errors.New("who knows")}
			}
			return nil
		})
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.CloseTimeout = time.Second
		cfg.Logger = log
		p := &pipelined{broker: b}
		f, err := forwarder.New(db, p, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx) }()
		put(t, db, config, "t", msg("silent", ""), msg("unsure", "key"), msg("fine", ""))
		eventually(t, "they are in flight", func() bool { return b.tries("silent") == 1 && b.tries("unsure") == 1 && pending(t, db) == 2 })
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if got := pending(t, db); got != 2 {
			t.Fatalf("pending is %d, want 2", got)
		}
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0`); got != 2 {
			t.Fatalf("count is %d, want 2", got)
		}
		if !log.Has("Forwarder closed", "confirmed=1", "handed_back=2") {
			t.Fatalf(`log.Has("Forwarder closed", "confirmed=1", "handed_back=2") returned false: %v`, log.Lines())
		}
		close(release)
		p.answering.Wait() // confirms that come after Close must do no harm

		b.answering(nil)
		start(t, db, p, quick(config))
		drained(t, db)
		if got := b.tries("silent"); got != 2 {
			t.Fatalf(`b.tries("silent") is %d, want 2`, got)
		}
	})
}

func TestCloseInTheMiddleOfEverything(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(delivery) error { takeTime(time.Millisecond); return nil })
		for i := range 5 {
			for j := range 20 {
				put(t, db, config, "t", msg(fmt.Sprint(i, "-", j), fmt.Sprint("key", j%7)))
			}
			f := start(t, db, &pipelined{broker: b}, quick(config))
			eventually(t, "it has begun", func() bool { return b.tries(fmt.Sprint(i, "-0")) > 0 })
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		start(t, db, &pipelined{broker: b}, quick(config))
		drained(t, db)
		if len(b.stored) != 100 {
			t.Fatalf("len(b.stored) is %d, want 100: each once: nothing was unknown: %+v", len(b.stored), b.stored)
		}
	})
}

func TestTrap75_CloseDoesNotWaitForAPublishThatHangs(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		release := make(chan struct{})
		returned := make(chan struct{})
		b := newBroker().answering(func(d delivery) error {
			if d.id == "hangs" {
				defer close(returned)
				<-release
			}
			return nil
		})
		cfg := quick(config)
		cfg.CloseTimeout = time.Second
		f := start(t, db, b, cfg)
		put(t, db, config, "t", msg("hangs", ""), msg("fine", ""))
		eventually(t, "the others go on", func() bool { return b.tries("hangs") == 1 && b.has("fine") && pending(t, db) == 1 })
		began := time.Now()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(began); got >= cfg.CloseTimeout+slack {
			t.Fatalf("time.Since(began) is %v, want less than %v", got, cfg.CloseTimeout+slack)
		}
		if got := pending(t, db); got != 1 {
			t.Fatalf("pending is %d, want 1: it is not known whether it was stored", got)
		}
		close(release)
		<-returned
	})
}

// If the lease cannot be given back, Close does not fail, because the lease ends by
// itself soon.
func TestLeaseThatCannotBeGivenBackIsLogged(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		log := &testkit.Logs{}
		cfg := quick(config)
		cfg.Logger = log
		f := start(t, db, newBroker(), cfg)
		_, err := db.Exec(`ALTER TABLE once_slots RENAME TO once_slots_gone`)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		if log.Count("ERROR The lease could not be given back, it will run out", "once_slots") != 1 {
			t.Error(log.Lines())
		}
	})
}
