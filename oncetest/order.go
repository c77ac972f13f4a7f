package oncetest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/schema"
)

// OrderConfig configures [RunOrder]. DB, First, Second and Reset are required.
type OrderConfig struct {
	// DB is a test database with the tables of the service and of this library (schema.Up), and at
	// least three connections. No other process may use it, in particular no forwarder. RunOrder
	// deletes all rows of the outbox.
	DB *sql.DB

	// First and Second are calls of the service, perhaps the same, that publish with the same
	// ordering key, and run at the same time. Each must use its argument db, because only its
	// connections can pause the call.
	First, Second func(ctx context.Context, db *sql.DB) error

	// Reset puts the tables into the state before the calls. It is called before every case.
	Reset func(ctx context.Context, db *sql.DB) error

	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Timeout is the maximum time for one case. Defaults to 30 seconds.
	Timeout time.Duration
}

func (c OrderConfig) validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{{"DB", c.DB == nil}, {"First", c.First == nil}, {"Second", c.Second == nil}, {"Reset", c.Reset == nil}} {
		if field.missing {
			errs = append(errs, fmt.Errorf("%s is nil", field.name))
		}
	}
	if c.DB != nil {
		if most := c.DB.Stats().MaxOpenConnections; most == 1 || most == 2 {
			errs = append(errs, fmt.Errorf("DB allows at most %d open connections: "+
				"RunOrder needs 3, two for the calls and one to observe them", most))
		}
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("Timeout is %v: negative", c.Timeout))
	}
	return errors.Join(errs...)
}

// RunOrder tests whether the events of an ordering key are sent in the order in which their
// transactions commit. It notes the SQL statements with which First and Second publish events. For
// each of them, a subtest pauses the call after the statement, and runs the other one. It fails if
// this one commits an event of the same key during the pause, which is sent after the event of the
// paused call, although it was committed first.
//
// RunOrder finds a service that publishes before it locks the rows that it changes, and calls that
// do not lock a common row. Publish last, or call [outbox.LockKey] first.
//
// With SQLite, which has one writer at a time, the subtests are skipped.
func RunOrder[T TB[T]](t T, config OrderConfig) {
	t.Helper()
	o, err := newOrderTest(t.Context(), config)
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
	for _, c := range o.cases {
		t.Run(c.name, func(t T) {
			t.Helper()
			if o.dialect.SQLite() {
				t.Skip("SQLite has one writer at a time: calls cannot overtake each other")
			}
			err := c.run(t.Context())
			switch {
			case errors.Is(err, errNotInjected):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
		})
	}
}

type orderTest struct {
	config  OrderConfig
	dialect dialect.Dialect
	cases   []testCase
}

type caller struct {
	name string
	do   func(ctx context.Context, db *sql.DB) error
}

type event struct {
	position int64
	id, key  string
}

// newOrderTest runs each call alone, counts its publishing statements, and finds the ordering keys.
func newOrderTest(ctx context.Context, config OrderConfig) (*orderTest, error) {
	config.Timeout = cmp.Or(config.Timeout, 30*time.Second)
	config.Schema = config.Schema.WithDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, err
	}
	if err := schema.Check(ctx, config.DB, config.Schema); err != nil {
		return nil, err
	}
	o := &orderTest{config: config, dialect: d}
	pair := [2]caller{{"First", config.First}, {"Second", config.Second}}
	var keys [2]map[string]bool
	for i, mine := range pair {
		published, events, err := o.runAlone(ctx, mine)
		if err != nil {
			return nil, fmt.Errorf("%s, called alone: %w", mine.name, err)
		}
		keys[i] = map[string]bool{}
		for _, e := range events {
			keys[i][e.key] = true
		}
		for n := 1; n <= published; n++ {
			o.cases = append(o.cases, testCase{
				fmt.Sprintf("%s pauses after publish %d", mine.name, n),
				func(ctx context.Context) error { return o.checkOvertaking(ctx, mine, pair[1-i], n) },
			})
		}
	}
	for key := range keys[0] {
		if keys[1][key] {
			return o, nil
		}
	}
	return nil, fmt.Errorf("First and Second publish under no common ordering key, so their order does not matter: %q and %q",
		slices.Sorted(maps.Keys(keys[0])), slices.Sorted(maps.Keys(keys[1])))
}

func (o *orderTest) runAlone(ctx context.Context, who caller) (int, []event, error) {
	ctx, cancel := context.WithTimeout(ctx, o.config.Timeout)
	defer cancel()
	if err := o.reset(ctx); err != nil {
		return 0, nil, err
	}
	c := o.newCall(0)
	if err := o.run(ctx, who, c); err != nil {
		return 0, nil, err
	}
	events, err := o.events(ctx)
	if err == nil && len(events) == 0 {
		err = fmt.Errorf("it published nothing with an ordering key, or not through its parameter db: see outbox.SetOrderingKey")
	}
	return c.published, events, err
}

func (o *orderTest) newCall(pauseAfter int) *call {
	return newCall(o.config.Schema.Table("outbox"), pauseAfter)
}

// The connections of this call report to c, which can pause it.
func (o *orderTest) run(ctx context.Context, who caller, c *call) error {
	db := wrapFor(o.config.DB, c)
	defer db.Close()
	return who.do(ctx, db)
}

// checkOvertaking pauses the call overtaken after a statement that publishes, and runs overtaker.
// An event of the same key that is committed during the pause is an error, because that of the
// paused call would be sent first.
func (o *orderTest) checkOvertaking(ctx context.Context, overtaken, overtaker caller, pauseAfter int) error {
	ctx, cancel := context.WithTimeout(ctx, o.config.Timeout)
	defer cancel()
	if err := o.reset(ctx); err != nil {
		return err
	}
	paused := o.newCall(pauseAfter)
	overtakenResult, overtakerResult := make(chan error, 1), make(chan error, 1)
	go func() { overtakenResult <- o.run(ctx, overtaken, paused) }()
	select {
	case <-paused.paused:
	case err := <-overtakenResult:
		if err != nil {
			return fmt.Errorf("oncetest: %s: %w", overtaken.name, err)
		}
		return errNotInjected
	}
	go func() { overtakerResult <- o.run(ctx, overtaker, o.newCall(0)) }()
	overtakerErr, ended, observeErr := o.waitUntilBlocked(ctx, overtakerResult)
	var inPause []event
	if observeErr == nil {
		inPause, observeErr = o.events(ctx)
	}
	close(paused.resume)
	overtakenErr := <-overtakenResult
	if !ended {
		overtakerErr = <-overtakerResult
	}
	switch {
	case observeErr != nil:
		return fmt.Errorf("oncetest: while %s was paused: %w", overtaken.name, observeErr)
	case overtakenErr != nil && overtakerErr != nil, dialect.State(overtakenErr) == "40P01", dialect.State(overtakerErr) == "40P01":
		return fmt.Errorf("oncetest: %s and %s at the same time: %w; take the locks in the same order in both",
			overtaken.name, overtaker.name, errors.Join(overtakenErr, overtakerErr))
	}
	all, err := o.events(ctx)
	if err != nil {
		return err
	}
	return checkPositions(overtaken, overtaker, inPause, all, paused)
}

func (o *orderTest) waitUntilBlocked(ctx context.Context, result <-chan error) (callErr error, ended bool, err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case callErr = <-result:
			return callErr, true, nil
		case <-ctx.Done():
			return nil, false, errors.New("the other call neither ended nor waited for a lock of the database: " +
				"a lock in this process does not stop another process")
		case <-tick.C:
		}
		var waiting bool
		err := o.config.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock')`).Scan(&waiting)
		if waiting || err != nil && ctx.Err() == nil {
			return nil, false, err
		}
	}
}

// checkPositions returns an error if the outbox has an event of the paused call before one of the
// same key from inPause, committed during the pause. all are the events after both calls.
func checkPositions(overtaken, overtaker caller, inPause, all []event, paused *call) error {
	for _, later := range all {
		if slices.Contains(inPause, later) {
			continue // an event of the other call
		}
		for _, earlier := range inPause {
			if earlier.key == later.key && later.position < earlier.position {
				return fmt.Errorf("oncetest: %s published message %q under the ordering key %q; before it committed, %s published and committed "+
					"message %q under that key: the message that was committed first is behind the other in the outbox%s; lock the rows "+
					"that the calls change before they publish, so publish last, or call outbox.LockKey first in each transaction",
					overtaken.name, later.id, later.key, overtaker.name, earlier.id, describeStatements(overtaken, paused.statementsAfterPause()))
			}
		}
	}
	return nil
}

func describeStatements(who caller, statements []string) string {
	if len(statements) == 0 {
		return ""
	}
	words := make([]string, min(len(statements), 5))
	for i := range words {
		words[i] = brief(statements[i])
	}
	return fmt.Sprintf("; after it had published, %s ran: %s", who.name, strings.Join(words, "; "))
}

func (o *orderTest) reset(ctx context.Context) error {
	if err := o.config.Reset(ctx, o.config.DB); err != nil {
		return fmt.Errorf("Reset: %w", err)
	}
	return o.dialect.Write(ctx, o.config.DB, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, o.dialect.SQL(`DELETE FROM {outbox}`))
		return err
	})
}

func (o *orderTest) events(ctx context.Context) ([]event, error) {
	rows, err := o.config.DB.QueryContext(ctx, o.dialect.SQL(
		`SELECT position, message_id, ordering_key FROM {outbox} WHERE ordering_key IS NOT NULL ORDER BY position`))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []event
	for rows.Next() {
		var e event
		if err := rows.Scan(&e.position, &e.id, &e.key); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
