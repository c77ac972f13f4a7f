package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
)

// dying is SQL that creates two trigger functions, which end the database session. A
// test creates a trigger that calls one of them at one step of the work on a day.
const dying = `
	CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
	CREATE FUNCTION die_too() RETURNS event_trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); END $$;`

// At whatever step the process dies, no id that must remain may be lost, every row must
// be in a partition where a duplicate finds it, and the next sweep must complete the
// work.
func TestSweepOfDaysSurvivesAKillAtEachStep(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for step, c := range map[string]struct{ arm, disarm string }{
		"a day was made": {
			`CREATE EVENT TRIGGER die ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION die_too()`, `DROP EVENT TRIGGER die`,
		},
		"its rows were moved": {
			`CREATE EVENT TRIGGER die ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION die_too()`, `DROP EVENT TRIGGER die`,
		},
		"a day was attached": {
			`CREATE EVENT TRIGGER die ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION die_too()`, `DROP EVENT TRIGGER die`,
		},
		"what stays was read": {
			`CREATE TRIGGER die BEFORE TRUNCATE ON %s EXECUTE FUNCTION die()`, `DROP TRIGGER die ON %s`,
		},
		"a day was emptied": {
			`CREATE TRIGGER die AFTER TRUNCATE ON %s EXECUTE FUNCTION die()`, `DROP TRIGGER die ON %s`,
		},
		"what stays was put back": {
			`CREATE TRIGGER die AFTER INSERT ON %s EXECUTE FUNCTION die()`, `DROP TRIGGER die ON %s`,
		},
		"a day was dropped": {
			`CREATE EVENT TRIGGER die ON sql_drop WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION die_too()`, `DROP EVENT TRIGGER die`,
		},
	} {
		t.Run(step, func(t *testing.T) {
			b := newDays(t)
			old, gone := b.past(40, 3000), b.past(41, 3000)
			late, early, parked := idAt(40*oneDay), idAt(-oneDay), idAt(40*oneDay)
			b.handle(apply, late, early, parked)
			b.Exec(`UPDATE once_inbox SET processed_at = now() - interval '40 days' WHERE message_id = $1`, parked)
			b.park(parked, "quarantined")
			b.Exec(dying)
			on := func(statement string) string {
				if slices.Contains([]string{"a day was emptied", "what stays was read", "what stays was put back"}, step) {
					return fmt.Sprintf(statement, old)
				}
				return statement
			}
			b.Exec(on(c.arm))
			if _, err := b.inbox.Sweep(t.Context()); err == nil {
				t.Fatal("the sweep did not die")
			}
			b.handle(apply, late, early, parked)
			if n := b.Count(`effects`); n != 3 {
				t.Fatalf("%d effects of 3 messages after the kill", n)
			}
			b.Exec(on(c.disarm))
			b.sweep()
			b.handle(apply, late, early, parked)
			b.expect(3, 3, 0)
			if b.has(gone) || b.Count(old) != 2 || b.home(early) != nameOf(time.Now().UTC().AddDate(0, 0, 1)) || len(b.tables()) != 9 {
				t.Errorf("there are %v, and %d rows in %s", b.tables(), b.Count(old), old)
			}
		})
	}
}

// Trap 78. If a process is suspended while it holds the lock on a day or on the whole
// inbox, PostgreSQL must end its session.
func TestFrozenSweepOfDaysLosesItsLocks(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	old := b.past(40, 3000)
	b.Exec(`CREATE TABLE limits (value text);
		CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO limits VALUES (current_setting('idle_in_transaction_session_timeout')); RETURN NULL; END $$;
		CREATE FUNCTION look_too() RETURNS event_trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO limits VALUES (current_setting('idle_in_transaction_session_timeout')); END $$;
		CREATE TRIGGER look AFTER TRUNCATE ON ` + old + ` EXECUTE FUNCTION look();
		CREATE EVENT TRIGGER look ON sql_drop WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION look_too()`)
	b.sweep()
	if n := b.Count(`limits WHERE value = '1s'`); n != 2 || b.Count(`limits`) != 2 {
		t.Errorf("%d of %d steps have a limit", n, b.Count(`limits`))
	}
}

// begin inserts a message into the inbox in a transaction that stays open, like the
// transaction of a slow handler. The returned function end commits it.
func (b *bench) begin(id string) (end func()) {
	b.Helper()
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			close(entered)
			<-leave
			return apply(msg)
		})(message.NewMessage(id, nil))
		done <- err
	}()
	<-entered
	return func() {
		b.Helper()
		close(leave)
		kit.OK(b, <-done)
	}
}

// While a handler runs for a long time, days cannot be created or dropped. The sweep
// must stop waiting after a short time, and must not block other messages.
func TestSweepOfDaysGivesWayToHandlers(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		id   string
		done func(b *bench, old, tomorrow string) bool // reports whether the sweep has done the work that is possible while the handler runs
	}{
		"to a handler of a message of today": {
			outbox.NewID(), func(b *bench, old, tomorrow string) bool { return b.has(tomorrow) && b.has(old) && b.Count(old) == 0 },
		},
		"to a handler of an old message": {
			idAt(40 * oneDay), func(b *bench, old, tomorrow string) bool { return b.has(tomorrow) && b.Count(old) == 3000 }, // deleted row by row
		},
		"to a handler of a message of no day": {
			"order-17", func(b *bench, old, tomorrow string) bool { return !b.has(tomorrow) && b.has(old) && b.Count(old) == 0 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newDays(t)
			b.past(0, 0)
			old, tomorrow := b.past(40, 9000), nameOf(time.Now().UTC().AddDate(0, 0, 1))
			end := b.begin(c.id)

			ctx, cancel := context.WithCancel(t.Context())
			var claims atomic.Int64
			var others sync.WaitGroup
			others.Go(func() {
				for ctx.Err() == nil {
					kit.Check(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage(outbox.NewID(), nil))))
					claims.Add(1)
				}
			})
			for range 3 {
				before := claims.Load()
				b.sweep()
				kit.Eventually(t, 20*time.Second, "others go on", func() bool { return claims.Load() > before })
			}
			cancel()
			others.Wait()
			if !c.done(b, old, tomorrow) {
				t.Errorf("meanwhile there are %v, with %d rows in %s", b.tables(), b.Count(old), old)
			}
			end()
			b.sweep()
			if late := b.home(c.id) == old; !b.has(tomorrow) || b.has(old) != late || late && b.Count(old) != 1 {
				t.Errorf("in the end there are %v", b.tables())
			}
			b.handle(apply, c.id)
			b.WantCount(1, `effects WHERE message_id = '`+c.id+`'`)
		})
	}
}

// If an id is inserted while the partition of its day is being created, PostgreSQL may
// refuse the insert. The message must then be tried again, without a counted attempt.
func TestInsertDuringCreationOfItsDayCountsAsNoAttempt(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	id := idAt(-oneDay)
	tx := kit.Begin(t, b)
	defer func() { _ = tx.Rollback() }()
	exec := func(query string) {
		t.Helper()
		kit.Exec(t, tx, query)
	}
	exec(`CREATE TABLE its_day (LIKE once_inbox INCLUDING ALL)`)
	exec(`LOCK TABLE once_inbox_default IN ACCESS EXCLUSIVE MODE`)
	claimed := make(chan error, 1)
	go func() {
		_, err := b.inbox.Middleware(apply)(message.NewMessage(id, nil))
		claimed <- err
	}()
	kit.Eventually(t, 20*time.Second, "the claim waits", func() bool {
		return b.Count(`pg_locks WHERE NOT granted AND relation = 'once_inbox_default'::regclass`) == 1
	})
	exec(fmt.Sprintf(`ALTER TABLE once_inbox ATTACH PARTITION its_day FOR VALUES FROM ('%s') TO ('%s')`, id[:8], idAt(-2 * oneDay)[:8]))
	kit.OK(t, tx.Commit())
	kindOf(t, <-claimed, chain.Undecided)
	b.handle(apply, id, id)
	b.expect(1, 1, 0)
}

// After the sweep has looked at a day, a message of this day may arrive, or another
// process may create or drop the partition of the day. The sweep must notice such a
// change.
func TestSweepNoticesThatADayHasChanged(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	old, begin := b.past(40, 0), time.Now().UTC().Truncate(oneDay).AddDate(0, 0, -40)
	late := idAt(40 * oneDay)
	b.handle(apply, late)
	if err := dedup.DropDay(t.Context(), b.inbox, begin); err != nil || b.home(late) != old {
		t.Errorf("with a message in the day: %v, the tables are %v", err, b.tables())
	}
	if err := dedup.CreateDay(t.Context(), b.inbox, begin); err != nil || b.home(late) != old {
		t.Errorf("made twice: %v", err)
	}
	b.Exec(`DROP TABLE ` + old)
	for what, do := range map[string]func() error{
		"swept":   func() error { return dedup.SweepDay(t.Context(), b.inbox, begin) },
		"dropped": func() error { return dedup.DropDay(t.Context(), b.inbox, begin) },
	} {
		if err := do(); err != nil {
			t.Errorf("%s of a dropped day: %v", what, err)
		}
	}
}

// If messages of old days arrive, each several times, while several processes create,
// empty and drop their days, each message must be applied once.
func TestDaysAreDroppedWhileTheirMessagesArrive(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newDays(t)
	ctx, cancel := context.WithCancel(t.Context())
	var sweepers, consumers sync.WaitGroup
	for range 2 {
		sweepers.Go(func() {
			for ctx.Err() == nil {
				if _, err := b.inbox.Sweep(ctx); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	const rounds, copies = 8, 3
	for round := range rounds {
		b.past(40+round, 2500)
		var ids []string
		for n := range 20 {
			ids = append(ids, idAt(time.Duration(40+n%(round+1))*oneDay), outbox.NewID())
		}
		for range copies {
			consumers.Go(func() { b.handle(apply, ids...) })
		}
		consumers.Wait()
	}
	kit.Eventually(t, 30*time.Second, "old rows are gone", func() bool {
		return b.Count(`once_inbox WHERE processed_at < now() - interval '30 days'`) == 0
	})
	cancel()
	sweepers.Wait()
	if n, ids := b.Count(`effects`), b.Count(`(SELECT DISTINCT message_id FROM effects) AS d`); n != ids || n != rounds*40 {
		t.Errorf("%d effects of %d messages, want %d of each", n, ids, rounds*40)
	}
	b.expect(rounds*40, rounds*40, 0)
}

// If a message of an old day is handled while the drop of this day waits for its lock,
// the drop must see the new row under every default isolation level. Otherwise a
// duplicate would be handled again.
func TestDropOfADaySeesMessagesThatItWaitedFor(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newDays(t)
	b.Exec(`DO $$BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), 'repeatable read'); END$$`)
	b.SetMaxIdleConns(0) // so that each statement opens a new connection, which uses the new default
	begin := time.Now().UTC().Truncate(oneDay).AddDate(0, 0, -40)
	for name, sweep := range map[string]func() error{
		"swept":   func() error { return dedup.SweepDay(t.Context(), b.inbox, begin) },
		"dropped": func() error { return dedup.DropDay(t.Context(), b.inbox, begin) },
	} {
		for range 10 { // the sweep may stop waiting before the commit
			day := b.past(40, 2500)
			if name == "dropped" {
				b.Exec(`DELETE FROM ` + day)
			}
			id := idAt(40 * oneDay)
			tx, err := b.BeginTx(t.Context(), nil)
			kit.OK(t, err)
			kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ($1, $2, '')`, id, consumer)
			swept := kit.Go(sweep)
			kit.Eventually(t, 20*time.Second, "the sweep waits", func() bool {
				return len(swept) == 1 || b.Count(`pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
			})
			kit.OK(t, errors.Join(tx.Commit(), <-swept))
			if b.Count(`once_inbox WHERE message_id = '`+id+`'`) == 0 {
				t.Fatalf("%s: a message that was handled is not known any more", name)
			}
			b.Exec(`DROP TABLE ` + day)
		}
	}
}

// A sweep must return the errors of all days that cannot be created, emptied or dropped.
func TestSweepReturnsTheErrorOfADay(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	old := b.past(40, 10)
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this day stays, no %', TG_OP; END $$`)
	b.Exec(fmt.Sprintf(`CREATE TRIGGER refuse BEFORE TRUNCATE ON %s EXECUTE FUNCTION refuse()`, old))
	b.Exec(fmt.Sprintf(`CREATE TRIGGER refuse_rows BEFORE DELETE ON %s EXECUTE FUNCTION refuse()`, old))
	b.Exec(`CREATE FUNCTION refuse_all() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no %', TG_TAG; END $$`)
	b.Exec(`CREATE EVENT TRIGGER refuse_all ON ddl_command_start WHEN TAG IN ('CREATE TABLE', 'DROP TABLE') EXECUTE FUNCTION refuse_all()`)
	fails := func(causes ...string) {
		t.Helper()
		_, err := b.inbox.Sweep(t.Context())
		for _, cause := range causes {
			if err == nil || !strings.Contains(err.Error(), cause) {
				t.Errorf("the sweep returns %v, want %q", err, cause)
			}
		}
	}
	fails("no CREATE TABLE", "this day stays, no DELETE")
	b.Exec(`DROP TRIGGER refuse_rows ON ` + old)
	fails("no CREATE TABLE", "this day stays, no TRUNCATE")
	b.Exec(`DROP TRIGGER refuse ON ` + old)
	fails("no CREATE TABLE", "no DROP TABLE")
	b.Exec(`DROP EVENT TRIGGER refuse_all`)
	kit.Check(t, kit.Err(b.inbox.Sweep(t.Context())))
	if b.has(old) {
		t.Error("the day is not removed")
	}
}

// Trap 117. If the database does not insert a row of an expired day again that must stay,
// and reports no error, the day is not emptied.
func TestTrap117_DayIsNotEmptiedIfARowDoesNotComeBack(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	old := b.past(40, 5000)
	id := idAt(40 * oneDay)
	b.handle(apply, id)
	allow := kit.Ignore(t, b.DB, "postgres", "INSERT", old, "NEW.message_id = '"+id+"'")
	if _, err := b.inbox.Sweep(t.Context()); !errors.Is(err, dialect.ErrUnchanged) {
		t.Errorf("the sweep returns %v, want ErrUnchanged", err)
	}
	if n := b.Count(`once_inbox WHERE message_id = '` + id + `'`); n != 1 {
		t.Errorf("the inbox has %d rows of the message that must stay, want 1", n)
	}
	allow()
	b.sweep()
	if n := b.Count(old); n != 1 {
		t.Errorf("%d rows are left of the old day, want 1", n)
	}
}
