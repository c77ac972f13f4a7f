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
	// DB is a database for tests, with the service's tables and those of this
	// library (schema.Up), and at least three connections. Nothing else may work
	// in it meanwhile, and no forwarder. The outbox is emptied.
	DB *sql.DB

	// First and Second are two calls of the service that publish with the same
	// ordering key. They are called at the same time, and may be the same
	// function. Each must use the db that it is given, not DB: its connections are
	// DB's, and are stopped on their way.
	First, Second func(ctx context.Context, db *sql.DB) error

	// Reset brings the tables to the state in which the calls find them. It is
	// called before every case.
	Reset func(ctx context.Context, db *sql.DB) error

	// Schema says which tables, in which kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// Timeout is how long a case may take. Defaults to 30 seconds.
	Timeout time.Duration
}

func (c OrderConfig) validate() error {
	var errs []error
	for what, missing := range map[string]bool{
		"DB": c.DB == nil, "First": c.First == nil, "Second": c.Second == nil, "Reset": c.Reset == nil,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("%s is nil", what))
		}
	}
	if c.DB != nil {
		if most := c.DB.Stats().MaxOpenConnections; most == 1 || most == 2 {
			errs = append(errs, fmt.Errorf("DB has at most %d connections open: it needs 3, two for the calls and one to look at them", most))
		}
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("Timeout is %v: negative", c.Timeout))
	}
	return errors.Join(errs...)
}

// RunOrder examines whether the events of an ordering key are sent in the order
// in which their transactions commit, with a subtest for each place at which a
// call publishes. There the call stands still, and the other one runs. If that one
// commits an event of the same key meanwhile, the order is lost: its event is sent
// later, since it was inserted later, and may even be sent earlier.
//
// It finds services that publish before they lock what they change, and those
// that lock nothing in common. Publish last, or begin with [outbox.LockKey].
//
// With SQLite, which has one writer at a time, the subtests are skipped.
func RunOrder[T TB[T]](t T, config OrderConfig) {
	t.Helper()
	o, err := newOrder(t.Context(), config)
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
	for _, c := range o.cases {
		t.Run(c.name, func(t T) {
			t.Helper()
			if o.dialect.SQLite() {
				t.Skip("SQLite has one writer at a time: calls cannot pass each other")
			}
			err := c.run(t.Context())
			switch {
			case errors.Is(err, errDidNotCome):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
		})
	}
}

// order is two calls of a service.
type order struct {
	config  OrderConfig
	dialect dialect.Dialect
	cases   []testCase
}

// caller is one of the two.
type caller struct {
	name string
	do   func(ctx context.Context, db *sql.DB) error
}

// event is a message in the outbox that has an ordering key.
type event struct {
	position int64
	id, key  string
}

// newOrder calls each alone, to see where it publishes and under which keys.
func newOrder(ctx context.Context, config OrderConfig) (*order, error) {
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
	o := &order{config: config, dialect: d}
	pair := [2]caller{{"First", config.First}, {"Second", config.Second}}
	var keys [2]map[string]bool
	for i, mine := range pair {
		published, events, err := o.alone(ctx, mine)
		if err != nil {
			return nil, fmt.Errorf("%s, called alone: %w", mine.name, err)
		}
		keys[i] = map[string]bool{}
		for _, e := range events {
			keys[i][e.key] = true
		}
		for n := 1; n <= published; n++ {
			o.cases = append(o.cases, testCase{
				fmt.Sprintf("%s stands still at publish %d", mine.name, n),
				func(ctx context.Context) error { return o.passed(ctx, mine, pair[1-i], n) },
			})
		}
	}
	for key := range keys[0] {
		if keys[1][key] {
			return o, nil
		}
	}
	return nil, fmt.Errorf("First and Second publish under no common ordering key, so they have no order: %q and %q",
		slices.Sorted(maps.Keys(keys[0])), slices.Sorted(maps.Keys(keys[1])))
}

// alone makes a call, and returns how many statements published, and what.
func (o *order) alone(ctx context.Context, who caller) (int, []event, error) {
	ctx, cancel := context.WithTimeout(ctx, o.config.Timeout)
	defer cancel()
	if err := o.reset(ctx); err != nil {
		return 0, nil, err
	}
	c := o.newCall(0)
	if err := o.make(ctx, who, c); err != nil {
		return 0, nil, err
	}
	events, err := o.events(ctx)
	if err == nil && len(events) == 0 {
		err = fmt.Errorf("it published nothing with an ordering key, or not through its db: see outbox.SetOrderingKey")
	}
	return c.published, events, err
}

func (o *order) newCall(stopAt int) *call {
	return newCall(o.config.Schema.Table("outbox"), stopAt)
}

// make makes a call, with a pool of its own.
func (o *order) make(ctx context.Context, who caller, c *call) error {
	db := wrapFor(o.config.DB, c)
	defer db.Close()
	return who.do(ctx, db)
}

// passed makes a call that stands still where it has published, and another one
// meanwhile. It returns an error if the other one passes it.
func (o *order) passed(ctx context.Context, slow, fast caller, stopAt int) error {
	ctx, cancel := context.WithTimeout(ctx, o.config.Timeout)
	defer cancel()
	if err := o.reset(ctx); err != nil {
		return err
	}
	still := o.newCall(stopAt)
	slowly, quickly := make(chan error, 1), make(chan error, 1)
	go func() { slowly <- o.make(ctx, slow, still) }()
	select {
	case <-still.stopped:
	case err := <-slowly:
		if err != nil {
			return fmt.Errorf("oncetest: %s: %w", slow.name, err)
		}
		return errDidNotCome
	}
	go func() { quickly <- o.make(ctx, fast, o.newCall(0)) }()
	fastErr, ended, look := o.watch(ctx, quickly)
	var before []event
	if look == nil {
		before, look = o.events(ctx)
	}
	close(still.goOn)
	slowErr := <-slowly
	if !ended {
		fastErr = <-quickly
	}
	switch {
	case look != nil:
		return fmt.Errorf("oncetest: while %s stood still: %w", slow.name, look)
	case slowErr != nil && fastErr != nil, dialect.State(slowErr) == "40P01", dialect.State(fastErr) == "40P01":
		return fmt.Errorf("oncetest: %s and %s at once: %w; lock in the same order in both", slow.name, fast.name, errors.Join(slowErr, fastErr))
	}
	all, err := o.events(ctx)
	if err != nil {
		return err
	}
	return o.inverted(slow, fast, before, all, still)
}

// watch waits until a call has ended, or waits for a lock.
func (o *order) watch(ctx context.Context, quickly <-chan error) (fastErr error, ended bool, err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case fastErr = <-quickly:
			return fastErr, true, nil
		case <-ctx.Done():
			return nil, false, errors.New("the other call neither ended nor waited for a lock of the database: " +
				"if it waits for something in this process, another process would not")
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

// inverted compares what was committed while a call stood still with what it had
// published by then.
func (o *order) inverted(slow, fast caller, before, all []event, still *call) error {
	for _, later := range all {
		if slices.Contains(before, later) {
			continue // not of the one that stood still
		}
		for _, earlier := range before {
			if earlier.key == later.key && later.position < earlier.position {
				return fmt.Errorf("oncetest: %s published message %q under the ordering key %q; before it committed, %s published and committed "+
					"message %q under that key: the one that was committed first is behind in the outbox%s; lock what the calls change "+
					"before they publish, so publish last, or call outbox.LockKey first in each transaction",
					slow.name, later.id, later.key, fast.name, earlier.id, did(slow, still.afterwards()))
			}
		}
	}
	return nil
}

// did says what a call did after it had published.
func did(who caller, statements []string) string {
	if len(statements) == 0 {
		return ""
	}
	words := make([]string, min(len(statements), 5))
	for i := range words {
		words[i] = brief(statements[i])
	}
	return fmt.Sprintf("; after it had published, %s did: %s", who.name, strings.Join(words, "; "))
}

// reset brings the database back to where every case begins.
func (o *order) reset(ctx context.Context) error {
	if err := o.config.Reset(ctx, o.config.DB); err != nil {
		return fmt.Errorf("Reset: %w", err)
	}
	return o.dialect.Write(ctx, o.config.DB, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, o.dialect.SQL(`DELETE FROM {outbox}`))
		return err
	})
}

// events returns what is in the outbox, committed and with an ordering key.
func (o *order) events(ctx context.Context) ([]event, error) {
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
