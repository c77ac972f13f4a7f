package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
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
		closed := kit.Go(f.Close)
		eventually(t, "Close waits", func() bool { return kit.Goroutines("(*Forwarder).Close(", "[chan receive") == 1 })
		eventually(t, "the loop has stopped reading", func() bool {
			return kit.Goroutines("(*Forwarder).Run.func") == 0 && kit.Goroutines("(*loop).background") == 0 &&
				kit.Goroutines("(*loop).run(", "[select") == 1
		})
		put(t, db, config, "t", msg("late", ""))
		select {
		case err := <-closed:
			t.Fatalf("Close does not wait: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		kit.OK(t, <-closed)
		if got := pending(t, db); got != 3 {
			t.Fatalf("pending is %d, want 3: 2, late and refused", got)
		}
		if got := attempts(t, db, "refused"); got != 1 {
			t.Fatalf(`attempts("refused") is %d, want 1`, got)
		}
		b.triedTimes(t, "2", 0)
		b.triedTimes(t, "late", 0)
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
		log := &kit.Logs{}
		cfg := quick(config)
		cfg.CloseTimeout = time.Second
		cfg.Logger = log
		p := &pipelined{broker: b}
		f, err := forwarder.New(db, p, cfg)
		kit.OK(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := kit.Go(func() error { return f.Run(ctx) })
		put(t, db, config, "t", msg("silent", ""), msg("unsure", "key"), msg("fine", ""))
		eventually(t, "they are in flight", func() bool { return b.tries("silent") == 1 && b.tries("unsure") == 1 && pending(t, db) == 2 })
		cancel()
		kit.OK(t, <-ended)
		kit.OK(t, f.Close())
		if got := pending(t, db); got != 2 {
			t.Fatalf("pending is %d, want 2", got)
		}
		kit.WantNumber(t, db, 2, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0`)
		if !log.Has("Forwarder closed", "confirmed=1", "handed_back=2") {
			t.Fatalf(`log.Has("Forwarder closed", "confirmed=1", "handed_back=2") returned false: %v`, log.Lines())
		}
		close(release)
		p.answering.Wait() // confirms that come after Close must do no harm

		b.answering(nil)
		start(t, db, p, quick(config))
		drained(t, db)
		b.triedTimes(t, "silent", 2)
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
			kit.OK(t, f.Close())
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
		kit.OK(t, f.Close())
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
		log := &kit.Logs{}
		cfg := quick(config)
		cfg.Logger = log
		f := start(t, db, newBroker(), cfg)
		_, err := db.Exec(`ALTER TABLE once_slots RENAME TO once_slots_gone`)
		kit.OK(t, errors.Join(err, f.Close()))
		if log.Count("ERROR The lease could not be given back, it will run out", "once_slots") != 1 {
			t.Error(log.Lines())
		}
	})
}

func TestOnlyTheFirstAnswerCounts(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := twice{newBroker().answering(func(d delivery) error {
			if d.attempt == 1 {
				return refusal{errors.New("no")}
			}
			return nil
		})}
		start(t, db, b, quick(config))
		for i := range 20 {
			put(t, db, config, "t", msg(fmt.Sprint(i), "key"))
		}
		drained(t, db)
		if got := b.ids(nil); len(got) != 20 {
			t.Fatalf("len(b.ids(nil)) is %d, want 20: %q", len(got), got)
		}
		if got := countDead(t, db); got != 0 {
			t.Fatalf("dead is %d, want 0", got)
		}
	})
}

// twice is a publisher that reports three results for each message.
type twice struct{ *broker }

func (b twice) PublishAsync(topic string, m *message.Message, done func(error)) {
	done(b.Publish(topic, m))
	done(nil)
	done(hopeless{errors.New("no")})
}

// A second result for the first attempt must not be taken for the result of the second
// attempt. Here the publisher confirms the first attempt late, while the second attempt
// is in flight, and then refuses the second attempt.
func TestALateAnswerIsNotThatOfTheNextAttempt(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := &late{broker: newBroker()}
		start(t, db, b, quick(config))
		put(t, db, config, "t", msg("1", ""))
		drained(t, db)
		if got := b.tries("1"); got != 3 {
			t.Fatalf(`b.tries("1") is %d, want 3: it was tried again after the refusal`, got)
		}
	})
}

// late is the publisher that TestALateAnswerIsNotThatOfTheNextAttempt describes.
type late struct {
	*broker

	first func(error)
}

func (b *late) PublishAsync(topic string, m *message.Message, done func(error)) {
	err := b.Publish(topic, m)
	switch b.tries(m.UUID) {
	case 1:
		b.first, err = done, outage{errors.New("no connection")}
	case 2:
		b.first(nil)
		err = refusal{errors.New("no")}
	}
	done(err)
}

// A forwarder that cannot reach the database when it starts logs this once. It begins
// when the database can be reached.
func TestUnreachableDatabaseAtTheStartIsLogged(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	pool, failed := kit.FailingStep(db, 1)
	defer pool.Close()
	var logs kit.Logs
	f, err := forwarder.New(pool, newBroker(), forwarder.Config{Schema: config, Logger: &logs})
	kit.OK(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := kit.Go(func() error { return f.Run(ctx) })
	<-f.Running()
	stop()
	kit.OK(t, <-ended)
	if got := failed(); got == "" {
		t.Fatal("no step failed")
	}
	if got := logs.Count("ERROR The outbox's tables cannot be read, trying again", kit.ErrInjected.Error()); got != 1 {
		t.Fatalf("logs.Count is %d, want 1: %q", got, logs.Lines())
	}
}

// A forwarder whose tables cannot be used ends with an error, because waiting does not
// help.
func TestForwarderWithUnusableTablesEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string // a statement that changes the tables
		want   error
	}{
		"older tables": {`DELETE FROM once_migrations`, schema.ErrOutdated},
		"newer tables": {`INSERT INTO once_migrations (version, compatible_from) VALUES (9999, 9999)`, schema.ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				exec(t, db, c.change)
				endsWith(t, db, config, c.want)
			})
		})
	}
	t.Run("another encoding", func(t *testing.T) {
		endsWith(t, kit.PostgresIn(t, "LATIN1").DB, schema.Config{}, schema.ErrEncoding)
	})
}

// endsWith checks that Run returns an error that wraps want.
func endsWith(t *testing.T, db *sql.DB, config schema.Config, want error) {
	t.Helper()
	if err := ends(t, background(t, db, newBroker(), forwarder.Config{Schema: config, Logger: &kit.Logs{}})); !errors.Is(err, want) {
		t.Errorf("Run: got %v, want %v", err, want)
	}
}

// pinged is a publisher whose Ping returns the given error.
type pinged struct {
	*pipelined

	says error
}

func (p pinged) Ping(context.Context) error { return p.says }

// away is the error of a broker that temporarily accepts no connections.
type away struct{ error }

func (away) Unavailable() bool { return true }

func TestABrokerThatRefusesIsAnErrorOfRun(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		refused := errors.New(`rabbit: 403 (ACCESS_REFUSED) "username or password not allowed"`)
		f, err := forwarder.New(db, pinged{&pipelined{broker: newBroker()}, refused}, quick(config))
		kit.OK(t, err)
		err = f.Run(t.Context())
		if !errors.Is(err, refused) {
			t.Fatalf("got %v, want %v", err, refused)
		}
		if want := `forwarder: the broker refuses the publisher: ` + refused.Error(); err == nil || err.Error() != want {
			t.Fatalf("got %v, want %q", err, want)
		}
		select {
		case <-f.Running():
			t.Fatal("it says that it runs")
		default:
		}

		for _, passing := range []error{
			nil, context.DeadlineExceeded, away{errors.New("blocked")}, &net.OpError{Op: "dial", Err: errors.New("connection refused")},
		} {
			b := newBroker()
			start(t, db, pinged{&pipelined{broker: b}, passing}, quick(config))
			put(t, db, config, "t", msg("1", ""))
			eventually(t, "it is sent", func() bool { return pending(t, db) == 0 })
		}
	})
}
