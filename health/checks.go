package health

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dsn"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/slot"
	"github.com/watermill-once/once/schema"
)

// Names of checks.
const (
	checkDatabase  = "database"
	checkTables    = "tables"
	checkLag       = "lag"
	checkSlots     = "slots"
	checkRetention = "retention"
	checkService   = "service"
)

// slack is the time by which an id in the inbox may be older than the retention before
// the check of the retention fails. The inbox by day keeps an id for up to a day longer
// than the retention. The second day is a margin.
const slack = 48 * time.Hour

type queries struct{ lag, slots, oldest string }

// newQueries returns the queries of the checks. Each query uses an index, so it is fast
// even if the tables are large.
func newQueries(d dialect.Dialect) queries {
	return queries{
		lag: d.SQL(`SELECT ` + outboxrow.WaitingSince + `, {clock}`),
		slots: d.SQL(`
			SELECT COUNT(*), EXISTS (SELECT 1 FROM {outbox})
			FROM {slots} WHERE owner IS NOT NULL AND lease_until >= {now}`),
		oldest: d.SQL(`
			SELECT {clock} - (SELECT {millis processed_at} FROM {inbox} ORDER BY processed_at LIMIT 1)`),
	}
}

// Health makes all checks and returns their results. It takes at most Config.Timeout.
func (h *Health) Health(ctx context.Context) Report {
	ctx, cancel := context.WithTimeout(ctx, h.config.Timeout)
	defer cancel()
	var (
		mu  sync.Mutex
		all Report
	)
	add := func(name string, needed bool, err error) {
		mu.Lock()
		defer mu.Unlock()
		all.Checks = append(all.Checks, Check{Name: name, Err: err, Needed: needed})
	}
	var brokers sync.WaitGroup // if a broker cannot be reached, its check waits until ctx ends
	for name, broker := range h.config.Brokers {
		brokers.Go(func() { add(name, h.config.NeedsBroker, broker.Ping(ctx)) })
	}
	for name, running := range h.config.Running {
		add(name, true, isClosed(running, errNotRunning))
	}
	if h.config.Stopping != nil {
		add(checkService, true, isOpen(h.config.Stopping))
	}
	h.checkDatabase(ctx, add)
	brokers.Wait()
	return all.sort()
}

var (
	errNotRunning = errors.New("it does not run yet; the log says what it waits for")
	errStopping   = errors.New("the process is stopping")
	errDatabase   = errors.New("not checked, because the database cannot be used")
)

func isClosed(running <-chan struct{}, otherwise error) error {
	select {
	case <-running:
		return nil
	default:
		return otherwise
	}
}

func isOpen(stopping <-chan struct{}) error {
	if isClosed(stopping, errStopping) == nil {
		return errStopping
	}
	return nil
}

// checkDatabase makes the checks of the database, one after another.
func (h *Health) checkDatabase(ctx context.Context, add func(name string, needed bool, err error)) {
	err := h.db.PingContext(ctx)
	if err != nil {
		err = fmt.Errorf("it cannot be reached; check its address, its login and the size of the pool: %w", dsn.Hide(err))
	}
	add(checkDatabase, true, err)
	unknown := err != nil

	for _, c := range []struct {
		name    string
		needed  bool
		enabled bool
		check   func(ctx context.Context) error
	}{
		{checkTables, true, true, func(ctx context.Context) error { return schema.Check(ctx, h.db, h.config.Schema) }},
		{checkLag, false, h.config.MaxLag > 0, h.lag},
		{checkSlots, false, h.config.MaxLag > 0, h.slots},
		{checkRetention, false, h.config.Retention > 0, h.retention},
	} {
		switch {
		case !c.enabled:
		case unknown:
			add(c.name, c.needed, errDatabase)
		default:
			err := c.check(ctx)
			add(c.name, c.needed, dsn.Hide(err))
			unknown = c.name == checkTables && err != nil
		}
	}
}

func (h *Health) read(ctx context.Context, query string, dest ...any) error {
	err := h.dialect.Read(ctx, h.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, query).Scan(dest...)
	})
	return dialect.LeaveReplica(ctx, h.db, err)
}

func (h *Health) lag(ctx context.Context) error {
	var (
		since [3]sql.NullInt64
		now   int64
		lag   time.Duration
	)
	if err := h.read(ctx, h.sql.lag, &since[0], &since[1], &since[2], &now); err != nil {
		return err
	}
	for _, s := range since {
		if s.Valid {
			lag = max(lag, time.Duration(now-s.Int64)*time.Millisecond)
		}
	}
	if lag <= h.config.MaxLag {
		return nil
	}
	return fmt.Errorf("a message has waited in the outbox for %v, longer than %v; "+
		"the log of the forwarder and once doctor say why", lag.Round(time.Second), h.config.MaxLag)
}

func (h *Health) slots(ctx context.Context) error {
	var (
		owned int
		waits bool
	)
	if err := h.read(ctx, h.sql.slots, &owned, &waits); err != nil {
		return err
	}
	if owned >= slot.Count || !waits {
		return nil
	}
	return fmt.Errorf("%d of %d slots have no forwarder, and messages wait in the outbox; "+
		"start a forwarder, or wait until another one takes over", slot.Count-owned, slot.Count)
}

func (h *Health) retention(ctx context.Context) error {
	var age sql.NullInt64
	if err := h.read(ctx, h.sql.oldest, &age); err != nil {
		return err
	}
	oldest := time.Duration(age.Int64) * time.Millisecond
	if !age.Valid || oldest <= h.config.Retention+slack {
		return nil
	}
	return fmt.Errorf("the inbox has ids that are %v old, and the retention is %v; run dedup.Inbox.Run in one process, "+
		"or once sweep. Ids of parked and quarantined messages are kept on purpose", oldest.Round(time.Hour), h.config.Retention)
}
