package status

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate/internal/rows"
	"github.com/watermill-once/once/schema"
)

// Reader reads the state of the tables.
type Reader struct {
	db rows.DB
}

// New returns a Reader of the tables in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config schema.Config) (*Reader, error) {
	d, err := rows.Open("status", db, config)
	if err != nil {
		return nil, err
	}
	return &Reader{d}, nil
}

const bound = 10_000

// Count is the number of rows that match a condition.
type Count struct {
	// N is the number, or 10,000 if More is set.
	N int

	More bool

	// About is an estimate of all rows, or 0 if More is false, or with SQLite.
	About int64
}

// Status is the state of the tables.
type Status struct {
	// At is the time at which the state was read, by the database's clock.
	At time.Time

	Outbox Outbox

	// Forwarders contains the running forwarders, sorted by owner.
	Forwarders []Forwarder

	// FreeSlots is the number of slots without a forwarder, whose messages are not sent.
	FreeSlots int

	Dead Count

	// Waiting counts the parked messages that are handled at their due time, and Held those that
	// wait for another one of their ordering key.
	Waiting, Held Count

	// PausedConsumers contains the paused consumers, the oldest pause first, at most 100. The
	// counts include their messages.
	PausedConsumers []PausedConsumer

	Quarantine Count

	// Failures are the most frequent causes of the latest 1,000 entries, at most five.
	Failures []Failure

	// Replays is the number of running replays of many entries.
	Replays int
}

// Outbox is the state of the outbox.
type Outbox struct {
	// Pending counts all messages, Deferred those that are due later, because of a delay or after a
	// failure, and Failing those that were refused, or whose topic gets no confirms.
	Pending, Deferred, Failing Count

	// Oldest is the time since the oldest due message became due, among the first 10,000, or 0.
	Oldest time.Duration

	// OldestFree is Oldest without messages that wait for a dead letter of their ordering key. If
	// Oldest is much longer, the forwarders work, and a person must decide about DeadKeys.
	OldestFree time.Duration

	// FailingFor is the time since the oldest failure of a message that still fails, or 0.
	FailingFor time.Duration

	// BlockedKeys counts the ordering keys whose head was not accepted, and BlockedByDead those of
	// them with a dead letter as head, the first three of which are in DeadKeys.
	BlockedKeys, BlockedByDead Count
	DeadKeys                   []DeadKey

	// Pauses contains the paused topics and tenants, the oldest pause first, at most 100. The
	// counts and Oldest include their messages.
	Pauses []Pause
}

// DeadKey is an ordering key whose messages wait for a dead letter.
type DeadKey struct {
	OrderingKey string
	Letter      int64 // ID of the dead letter
}

// String returns a sentence that names the key and the dead letter.
func (k DeadKey) String() string { return outboxrow.DeadKey(k).String() }

// Remedy returns the commands that unblock the key.
func (k DeadKey) Remedy() string { return outboxrow.DeadKey(k).Remedy() }

// Failure describes entries in quarantine that have the same cause.
type Failure struct {
	// Fingerprint selects the entries, see operate.Filter.
	Fingerprint string

	// Consumer is the first in alphabetical order. Reason and ErrorType are those of all.
	Consumer, Reason, ErrorType string

	// Count is their number among the latest 1,000, and LastFailedAt the time of the last failure.
	Count        int
	LastFailedAt time.Time
}

// Read returns the state of the tables, in one transaction but not in one snapshot: a message that
// moves may be counted twice, or not at all. It reads at most about 10,000 rows of each table.
func (r *Reader) Read(ctx context.Context) (Status, error) {
	var s Status
	err := r.db.Look(ctx, func(tx *sql.Tx) (err error) {
		s = Status{}
		if err := r.counts(ctx, tx, &s); err != nil {
			return err
		}
		if s.Forwarders, err = r.forwarders(ctx, tx); err != nil {
			return err
		}
		if s.Outbox.Pauses, err = r.pauses(ctx, tx); err != nil {
			return err
		}
		if s.PausedConsumers, err = r.pausedConsumers(ctx, tx); err != nil {
			return err
		}
		if s.Outbox.BlockedByDead.N > 0 {
			keys, err := outboxrow.DeadKeys(ctx, tx, r.db.Dialect)
			if err != nil {
				return err
			}
			for _, k := range keys {
				s.Outbox.DeadKeys = append(s.Outbox.DeadKeys, DeadKey(k))
			}
		}
		if s.Failures, err = r.failures(ctx, tx); err != nil {
			return err
		}
		return r.estimate(ctx, tx, &s)
	})
	if err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	return s, nil
}

func (r *Reader) counts(ctx context.Context, tx *sql.Tx, s *Status) error {
	var (
		now                                     int64
		first, firstFree, due, dueFree, failing sql.NullInt64
	)
	counts := s.counts()
	dest := []any{&now, &first, &firstFree, &due, &dueFree, &failing, &s.FreeSlots, &s.Replays}
	for _, c := range counts {
		dest = append(dest, &c.to.N)
	}
	if err := tx.QueryRowContext(ctx, r.db.SQL(countsQuery(r.db.SQLite())), bound+1).Scan(dest...); err != nil {
		return err
	}
	for _, c := range counts {
		if c.to.N > bound {
			c.to.N, c.to.More = bound, true
		}
	}
	since := func(millis int64) time.Duration { return time.Duration(max(0, now-millis)) * time.Millisecond }
	s.At = time.UnixMilli(now).UTC()
	for _, oldest := range []struct {
		to *time.Duration
		at sql.NullInt64
	}{{&s.Outbox.Oldest, first}, {&s.Outbox.Oldest, due}, {&s.Outbox.OldestFree, firstFree}, {&s.Outbox.OldestFree, dueFree}} {
		if oldest.at.Valid {
			*oldest.to = max(*oldest.to, since(oldest.at.Int64))
		}
	}
	if failing.Valid {
		s.Outbox.FailingFor = since(failing.Int64)
	}
	return nil
}

func (r *Reader) estimate(ctx context.Context, tx *sql.Tx, s *Status) error {
	if r.db.SQLite() {
		return nil
	}
	for _, c := range s.counts() {
		if !c.to.More {
			continue
		}
		var text []byte
		if err := tx.QueryRowContext(ctx, r.db.SQL(`EXPLAIN (FORMAT JSON) SELECT 1 FROM `+c.rows)).Scan(&text); err != nil {
			return err
		}
		var plans []struct {
			Plan struct {
				Rows float64 `json:"Plan Rows"`
			} `json:"Plan"`
		}
		if err := json.Unmarshal(text, &plans); err != nil {
			return fmt.Errorf("the planner's estimate: %w", err)
		}
		if len(plans) == 0 {
			return errors.New("the planner's estimate is empty")
		}
		if about := int64(plans[0].Plan.Rows); about > bound { // a lower estimate means that the statistics are old
			c.to.About = about
		}
	}
	return nil
}

func (r *Reader) failures(ctx context.Context, tx *sql.Tx) (all []Failure, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			f    Failure
			last sql.NullInt64
		)
		err := scan(&f.Fingerprint, &f.Consumer, &f.Reason, &f.ErrorType, &f.Count, &last)
		if last.Valid {
			f.LastFailedAt = time.UnixMilli(last.Int64).UTC()
		}
		all = append(all, f)
		return err
	}, r.db.SQL(failuresQuery))
	return all, err
}

// The count stops at $1 of countsQuery.
type counted struct {
	to *Count

	// rows is a table, with a condition if only some rows are counted. order names the columns of
	// an index with only these: with it, the planner does not read the whole table, even if its
	// statistics are missing or old. It is "" for every row.
	rows, order string
}

func (s *Status) counts() []counted {
	return []counted{
		{&s.Outbox.Pending, `{outbox}`, ``},
		{&s.Outbox.Deferred, `{outbox} WHERE due_at > {now}`, `due_at`},
		{&s.Outbox.Failing, `{outbox} WHERE failing_since IS NOT NULL`, `failing_since`},
		{&s.Outbox.BlockedKeys, `{blocked_keys}`, ``},
		{&s.Outbox.BlockedByDead, `{blocked_keys} WHERE reason = '` + outboxrow.BlockedDead + `'`, ``},
		{&s.Dead, `{outbox_dead}`, ``},
		{&s.Waiting, `{parked} WHERE state = 'waiting' AND crashes = 0`, `consumer, topic, priority_class, tenant, due_at, id`},
		{&s.Held, `{parked} WHERE state = 'held'`, `consumer, topic, ordering_key, id`},
		{&s.Quarantine, `{parked} WHERE state = 'quarantined'`, `id`},
	}
}

// countsQuery reads at most $1 rows for each count, and looks for the oldest due message among the
// first $1 rows of the outbox: otherwise it would read all if all messages are delayed.
func countsQuery(sqlite bool) string {
	clock := `{millis clock_timestamp()}`
	if sqlite {
		clock = `{now}`
	}
	var b strings.Builder
	b.WriteString(`SELECT ` + clock + `,
		(SELECT {millis MIN(f.created_at)} FROM (SELECT created_at, due_at FROM {outbox} ORDER BY position LIMIT $1) AS f
		 WHERE f.due_at IS NULL),
		(SELECT {millis MIN(f.created_at)} FROM (SELECT created_at, due_at, ordering_key FROM {outbox} ORDER BY position LIMIT $1) AS f
		 WHERE f.due_at IS NULL AND ` + outboxrow.NotBehindDead + `),
		(SELECT {millis due_at} FROM {outbox} WHERE due_at <= {now} ORDER BY due_at LIMIT 1),
		(SELECT {millis MIN(f.due_at)} FROM (SELECT due_at, ordering_key FROM {outbox} WHERE due_at <= {now} ORDER BY due_at LIMIT $1) AS f
		 WHERE ` + outboxrow.NotBehindDead + `),
		(SELECT {millis failing_since} FROM {outbox} WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 1),
		(SELECT COUNT(*) FROM {slots} WHERE owner IS NULL OR lease_until IS NULL OR lease_until < {now}),
		(SELECT COUNT(*) FROM {replays} WHERE state = 'running' AND lease_until > {now})`)
	for _, c := range new(Status).counts() {
		b.WriteString(`,
		(SELECT COUNT(*) FROM (SELECT 1 AS one FROM ` + c.rows)
		if c.order != "" {
			b.WriteString(` ORDER BY ` + c.order)
		}
		b.WriteString(` LIMIT $1) AS counted)`)
	}
	return b.String()
}

const failuresQuery = `
	SELECT fingerprint, MIN(consumer), MIN(reason), MIN(error_type), COUNT(*), {millis MAX(last_failed_at)}
	FROM (SELECT fingerprint, consumer, reason, error_type, last_failed_at FROM {parked}
	      WHERE state = 'quarantined' ORDER BY id DESC LIMIT 1000) AS latest
	GROUP BY fingerprint ORDER BY COUNT(*) DESC, fingerprint LIMIT 5`
