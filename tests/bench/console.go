package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/console"
)

// consoles measures how long it takes to load the overview if the tables are large, how
// much processor time an open overview uses, and whether it slows down a forwarder and a
// consumer.
func (b *bench) consoles(ctx context.Context) (_ []row, err error) {
	large, err := b.newInbox(ctx, b.remembered, inOrder)
	if err != nil {
		return nil, err
	}
	defer closing(large, &err)
	if err := large.fillFailures(ctx, b.remembered/10); err != nil {
		return nil, err
	}
	if err := large.prepare(ctx); err != nil {
		return nil, err
	}
	var (
		page = series{
			id: "console-overview", what: fmt.Sprintf("overview of the console, %d ids, a tenth as many failures of each kind", b.remembered),
			unit: milliseconds,
		}
		cpu      = series{id: "console-cpu", what: "an open overview and its PostgreSQL sessions: share of a core", unit: percent}
		drained  = newWatched("console-drain", fmt.Sprintf("forwarder with rabbit.Publisher, %s, with the tables of the overview", b.kinds[0]))
		consumed = newWatched("console-consume", "once.Consumer as it comes, with the tables of the overview")
	)
	timed := runtime.GOOS == "linux"
	if !timed {
		fmt.Fprintln(b.progress, "processor times are read from /proc, which only Linux has: row console-cpu is left out")
	}
	err = b.turns(
		ctx,
		single(&page, large.firstOverview),
		single(&cpu, func(ctx context.Context) (float64, error) { return b.overviewTime(ctx, large) }),
		drained.measurement(func(ctx context.Context) (windows, error) { return b.drainWatched(ctx, large) }),
		consumed.measurement(func(ctx context.Context) (windows, error) { return b.consumeWatched(ctx, large) }),
	)
	if err != nil {
		return nil, err
	}
	rows := []row{page.atMost(100)}
	if timed {
		rows = append(rows, cpu.atMost(float64(2*runtime.NumCPU())))
	}
	return append(append(rows, drained.rows(0.98, 1.02)...), consumed.rows(0.98, 1.02)...), nil
}

func (i *filledInbox) fillFailures(ctx context.Context, n int) error {
	for _, query := range []string{
		`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, reason, error, fingerprint,
			                      first_failed_at, last_failed_at)
			SELECT 'failing', 'orders', 'q' || n, '', sha256(n::text::bytea), 'quarantined', now(), 'exhausted', 'down', 'f' || n % 30,
			       now() - n * interval '1 second', now() - n * interval '1 second' FROM generate_series(1, $1::bigint) AS n`,
		`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
			SELECT n, 'd' || n, 'orders', sha256(n::text::bytea), '{}', now(), 20, 'no queue ' || n % 30, 'exhausted', false
			FROM generate_series(1, $1::bigint) AS n`,
		`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
			SELECT n, 's' || n, 'orders', sha256(n::text::bytea), '{}', now() FROM generate_series(1, $1::bigint) AS n`,
	} {
		if _, err := i.db.ExecContext(ctx, query, n); err != nil {
			return err
		}
	}
	return i.exec(ctx, `VACUUM ANALYZE`, `CHECKPOINT`)
}

func newConsole(db *sql.DB) (*console.Console, error) {
	return console.Handler(db, console.Config{Authorize: console.ReadOnly, Logger: watermill.NopLogger{}})
}

func loadPage(ctx context.Context, c *console.Console, page string) (string, error) {
	answer := httptest.NewRecorder()
	c.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/"+page, nil))
	if answer.Code != http.StatusOK {
		return "", fmt.Errorf("the page %q of the console: status %d", page, answer.Code)
	}
	return answer.Body.String(), nil
}

// firstOverview returns how many milliseconds the first load of the overview takes. Nothing is sent
// before the page is complete, so this is also the time to the first byte.
func (s *scene) firstOverview(ctx context.Context) (_ float64, err error) {
	c, err := newConsole(s.db.DB)
	if err != nil {
		return 0, err
	}
	defer closing(c, &err)
	start := time.Now()
	_, err = loadPage(ctx, c, "")
	return float64(time.Since(start).Microseconds()) / 1000, err
}

// overviewTime returns the processor time that an open overview uses, as a percentage of
// the time of one processor core. It first fills the outbox. During the measurement
// nothing else uses the database.
func (b *bench) overviewTime(ctx context.Context, large *filledInbox) (_ float64, err error) {
	if err := large.refill(ctx, b.watched); err != nil {
		return 0, err
	}
	o, err := large.openOverview(ctx)
	if err != nil {
		return 0, err
	}
	defer closing(o, &err)
	// Wait first, because soon after a read the console shows the same numbers without
	// another query.
	if err := wait(ctx, time.Now().Add(b.window)); err != nil {
		return 0, err
	}
	before, timed, err := large.db.processor(ctx)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := o.look(ctx, b.resting); err != nil {
		return 0, err
	}
	if err := wait(ctx, start.Add(b.resting)); err != nil {
		return 0, err
	}
	after, _, err := large.db.processor(ctx)
	if err == nil && !timed && runtime.GOOS == "linux" {
		err = errors.New("PostgreSQL must run on this machine")
	}
	used := after.minus(before)
	return 100 * (used.own + used.postgres).Seconds() / time.Since(start).Seconds(), err
}

// overview simulates a browser that opens and closes the overview page of a console. The
// console has a pool of its own with one connection.
type overview struct {
	console *console.Console
	pool    *sql.DB
	every   time.Duration // the time between two requests of an open page
	held    *sql.Conn     // the connection, while the page is closed
}

// openOverview opens the page. It returns when the console has counted the messages of
// the last 30 days, because this work is done only once and must not be measured.
func (s *scene) openOverview(ctx context.Context) (_ *overview, err error) {
	o := &overview{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if o.pool, err = open(s.db.dsn); err != nil {
		return nil, err
	}
	o.pool.SetMaxOpenConns(1)
	if o.console, err = newConsole(o.pool); err != nil {
		return nil, err
	}
	text, err := loadPage(ctx, o.console, "")
	if err != nil {
		return nil, err
	}
	if o.every, err = requestsEvery(text); err != nil {
		return nil, err
	}
	return o, o.countDays(ctx)
}

// live matches the attribute that tells htmx how often to load the page again.
var live = regexp.MustCompile(`hx-trigger="every ([0-9]+s)"`)

func requestsEvery(page string) (time.Duration, error) {
	found := live.FindStringSubmatch(page)
	if found == nil {
		return 0, fmt.Errorf("the overview does not say how often it is loaded again: %s", page)
	}
	return time.ParseDuration(found[1])
}

func (o *overview) countDays(ctx context.Context) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		text, err := loadPage(ctx, o.console, "days")
		if err != nil || strings.Contains(text, "<td") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}

// hide closes the page. The console would continue to read the tables for an hour after
// the last request. To prevent this, hide takes away the console's only connection.
func (o *overview) hide(ctx context.Context) (err error) {
	if o.held == nil {
		o.held, err = o.pool.Conn(ctx)
	}
	return err
}

func (o *overview) show() error {
	if o.held == nil {
		return nil
	}
	held := o.held
	o.held = nil
	return held.Close()
}

// look makes the requests that an open page makes during a period. It makes the first
// request immediately.
func (o *overview) look(ctx context.Context, period time.Duration) error {
	for start, at := time.Now(), time.Duration(0); at < period; at += o.every {
		if err := wait(ctx, start.Add(at)); err != nil {
			return err
		}
		if _, err := loadPage(ctx, o.console, ""); err != nil {
			return err
		}
	}
	return nil
}

func (o *overview) Close() (err error) {
	if o.pool == nil {
		return nil
	}
	err = o.show()
	if o.console != nil {
		err = errors.Join(err, o.console.Close())
	}
	return errors.Join(err, o.pool.Close())
}
