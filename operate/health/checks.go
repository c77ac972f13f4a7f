package health

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// Names of checks.
const (
	checkDatabase  = "database"
	checkTables    = "tables"
	checkLag       = "lag"
	checkSlots     = "slots"
	checkRetention = "retention"
	checkPaused    = "paused"
	checkService   = "service"
)

// slack is how much older than the retention an id in the inbox may be: the inbox by day keeps it
// for up to a day longer, and another day is a margin.
const slack = 48 * time.Hour

type queries struct{ lag, free, slots, oldest, paused string }

// Each query uses an index, so it is fast even if the tables are large.
func newQueries(d dialect.Dialect) queries {
	return queries{
		lag: d.SQL(`SELECT ` + outboxrow.WaitingSince + `, {clock}`),
		free: d.SQL(`SELECT
			(SELECT {millis MIN(f.created_at)} FROM (SELECT created_at, due_at, ordering_key FROM {outbox} ORDER BY position LIMIT 10000) AS f
			 WHERE f.due_at IS NULL AND ` + outboxrow.NotBehindDead + `),
			(SELECT {millis MIN(f.due_at)} FROM (SELECT due_at, ordering_key FROM {outbox} WHERE due_at <= {now} ORDER BY due_at LIMIT 10000) AS f
			 WHERE ` + outboxrow.NotBehindDead + `),
			(SELECT {millis failing_since} FROM {outbox} WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 1), {clock}`),
		slots: d.SQL(`
			SELECT COUNT(*), EXISTS (SELECT 1 FROM {outbox})
			FROM {slots} WHERE owner IS NOT NULL AND lease_until >= {now}`),
		oldest: d.SQL(`
			SELECT {clock} - (SELECT {millis processed_at} FROM {inbox} ORDER BY processed_at LIMIT 1)`),
		paused: d.SQL(`
			SELECT consumer, topic, actor, why, {clock} - {millis paused_at} FROM {consumer_pauses}
			ORDER BY paused_at, consumer, topic LIMIT 10`),
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

func (h *Health) checkDatabase(ctx context.Context, add func(name string, needed bool, err error)) {
	err := h.db.PingContext(ctx)
	if err != nil {
		err = fmt.Errorf("it cannot be reached; check its address, its login and the size of the pool: %w", usercode.HideDSN(err))
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
		{checkPaused, false, h.config.Retention > 0, h.paused},
	} {
		switch {
		case !c.enabled:
		case unknown:
			add(c.name, c.needed, errDatabase)
		default:
			err := c.check(ctx)
			add(c.name, c.needed, usercode.HideDSN(err))
			unknown = c.name == checkTables && err != nil
		}
	}
}

func (h *Health) read(ctx context.Context, query string, dest ...any) error {
	return h.dialect.Read(ctx, h.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, query).Scan(dest...)
	})
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
	free, blocked, err := h.blocked(ctx)
	switch {
	case err != nil:
		return err
	case blocked != "" && free <= h.config.MaxLag: // forwarders send the other messages
		return fmt.Errorf("a message has waited in the outbox for %v, longer than %v, behind a dead letter: %s",
			lag.Round(time.Second), h.config.MaxLag, blocked)
	case blocked != "":
		blocked = "; also, " + blocked
	}
	return fmt.Errorf("a message has waited in the outbox for %v, longer than %v; "+
		"the log of the forwarder and once doctor say why%s", lag.Round(time.Second), h.config.MaxLag, blocked)
}

// blocked returns the lag of the messages that do not wait for a dead letter, and a text about the
// keys that dead letters block. It examines the first 10,000 messages of the outbox.
func (h *Health) blocked(ctx context.Context) (free time.Duration, text string, err error) {
	var keys []outboxrow.DeadKey
	err = h.dialect.Read(ctx, h.db, func(tx *sql.Tx) (err error) {
		var (
			first, due, failing sql.NullInt64
			now                 int64
		)
		if err := tx.QueryRowContext(ctx, h.sql.free).Scan(&first, &due, &failing, &now); err != nil {
			return err
		}
		for _, since := range []sql.NullInt64{first, due, failing} {
			if since.Valid {
				free = max(free, time.Duration(now-since.Int64)*time.Millisecond)
			}
		}
		keys, err = outboxrow.DeadKeys(ctx, tx, h.dialect)
		return err
	})
	if err != nil || len(keys) == 0 {
		return free, "", err
	}
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = k.String()
	}
	text = strings.Join(texts, ", ")
	if len(keys) == outboxrow.ShownDeadKeys {
		text += " (once outbox blocked lists all)"
	}
	return free, text + "; " + keys[0].Remedy(), nil
}

func (h *Health) slots(ctx context.Context) error {
	var (
		owned int
		waits bool
	)
	if err := h.read(ctx, h.sql.slots, &owned, &waits); err != nil {
		return err
	}
	if owned >= outboxrow.Slots || !waits {
		return nil
	}
	return fmt.Errorf("%d of %d slots have no forwarder, and messages wait in the outbox; "+
		"start a forwarder, or wait until another one takes over", outboxrow.Slots-owned, outboxrow.Slots)
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

// A paused consumer says nothing about this process, which stays ready.
func (h *Health) paused(ctx context.Context) error {
	var errs []error
	err := h.dialect.Read(ctx, h.db, func(tx *sql.Tx) error {
		errs = nil
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				consumer, topic, actor, why string
				millis                      int64
			)
			err := scan(&consumer, &topic, &actor, &why, &millis)
			errs = append(errs, fmt.Errorf("consumer %q of topic %q has been paused for %v, by %s: %s; to end this: once consumers resume %s",
				consumer, topic, (time.Duration(millis)*time.Millisecond).Round(time.Second), actor, why, consumer))
			return err
		}, h.sql.paused)
	})
	if err == nil {
		err = errors.Join(errs...)
	}
	return err
}
