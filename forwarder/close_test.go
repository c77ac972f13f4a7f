package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
			require.Fail(t, "does not wait", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		require.NoError(t, <-closed)
		require.Equal(t, 3, pending(t, db), "2, late and refused")
		require.Equal(t, 1, attempts(t, db, "refused"))
		require.Zero(t, b.tries("2")+b.tries("late"))
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
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx) }()
		put(t, db, config, "t", msg("silent", ""), msg("unsure", "key"), msg("fine", ""))
		eventually(t, "they are in flight", func() bool { return b.tries("silent") == 1 && b.tries("unsure") == 1 && pending(t, db) == 2 })
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, f.Close())
		require.Equal(t, 2, pending(t, db))
		require.Equal(t, 2, count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0`))
		require.True(t, log.Has("Forwarder closed", "confirmed=1", "handed_back=2"), "%v", log.Lines())
		close(release)
		p.answering.Wait() // confirms that come after Close must do no harm

		b.answering(nil)
		start(t, db, p, quick(config))
		drained(t, db)
		require.Equal(t, 2, b.tries("silent"))
	})
}

func TestCloseInTheMiddleOfEverything(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker().answering(func(delivery) error { takes(time.Millisecond); return nil })
		for i := range 5 {
			for j := range 20 {
				put(t, db, config, "t", msg(fmt.Sprint(i, "-", j), fmt.Sprint("key", j%7)))
			}
			f := start(t, db, &pipelined{broker: b}, quick(config))
			eventually(t, "it has begun", func() bool { return b.tries(fmt.Sprint(i, "-0")) > 0 })
			require.NoError(t, f.Close())
		}
		start(t, db, &pipelined{broker: b}, quick(config))
		drained(t, db)
		require.Len(t, b.stored, 100, "each once: nothing was unknown")
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
		require.NoError(t, f.Close())
		require.Less(t, time.Since(began), cfg.CloseTimeout+slack)
		require.Equal(t, 1, pending(t, db), "it is not known whether it was stored")
		close(release)
		<-returned
	})
}
