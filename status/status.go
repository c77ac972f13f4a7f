package status

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// bound is the maximum value of Count.N.
const bound = 10_000

// Count is the number of rows that match a condition.
type Count struct {
	// N is the number, or 10,000 if More is set.
	N int

	// More reports whether there are more rows than N.
	More bool

	// About is an estimate of the number of all rows. It is 0 if More is false, or if the
	// database has no estimate. With SQLite it is always 0.
	About int64
}

// Status is the state of the tables.
type Status struct {
	// At is the time at which the state was read, by the database's clock.
	At time.Time

	Outbox Outbox

	// Forwarders contains the running forwarders, sorted by owner.
	Forwarders []Forwarder

	// FreeSlots is the number of slots without a forwarder. The messages in these
	// slots are not sent.
	FreeSlots int

	// Dead counts the dead letters.
	Dead Count

	// Waiting counts the parked messages that are handled at their due time. Held counts
	// the parked messages that wait for another message of their ordering key.
	Waiting, Held Count

	// Quarantine counts the entries in quarantine.
	Quarantine Count

	// Failures contains the causes of the latest 1,000 entries in quarantine: at most five
	// causes, with the most frequent cause first.
	Failures []Failure

	// Replays is the number of running replays of many entries.
	Replays int
}

// Outbox is the state of the outbox.
type Outbox struct {
	// Pending counts all messages. Deferred counts messages that are due later, because
	// they were published with a delay, or wait for the next try after a failure. Failing
	// counts messages that were refused, and messages of topics that get no confirms.
	Pending, Deferred, Failing Count

	// Oldest is the time since the oldest due message became due. Only the first 10,000
	// messages are examined. If none of them is due, Oldest is 0.
	Oldest time.Duration

	// FailingFor is the time since the oldest failure of a message that still fails, or
	// 0.
	FailingFor time.Duration

	// BlockedKeys counts the ordering keys whose head was not accepted.
	BlockedKeys Count

	// Pauses contains the paused topics and tenants, with the oldest pause first, at most
	// 100. The counts and Oldest include the messages of paused topics and tenants.
	Pauses []Pause
}

// Failure describes entries in quarantine that have the same cause.
type Failure struct {
	// Fingerprint selects the entries, see poison.Filter.
	Fingerprint string

	// Consumer is the first consumer of these entries in alphabetical order. Reason and
	// ErrorType are the same for all entries.
	Consumer, Reason, ErrorType string

	// Count is the number of these entries among the latest 1,000 entries. LastFailedAt
	// is the time of the last failure.
	Count        int
	LastFailedAt time.Time
}

// Read returns the state of the tables. It reads at most about 10,000 rows of each table. All parts
// of the state are read in one transaction, but not in one snapshot: a message that moves in the
// meantime may be counted twice, or not counted.
func (r *Reader) Read(ctx context.Context) (Status, error) {
	var s Status
	err := r.read(ctx, func(tx *sql.Tx) (err error) {
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
		now                 int64
		first, due, failing sql.NullInt64
	)
	counts := s.counts()
	dest := []any{&now, &first, &due, &failing, &s.FreeSlots, &s.Replays}
	for _, c := range counts {
		dest = append(dest, &c.to.N)
	}
	if err := tx.QueryRowContext(ctx, r.dialect.SQL(countsQuery(r.dialect.SQLite())), bound+1).Scan(dest...); err != nil {
		return err
	}
	for _, c := range counts {
		if c.to.N > bound {
			c.to.N, c.to.More = bound, true
		}
	}
	since := func(millis int64) time.Duration { return time.Duration(max(0, now-millis)) * time.Millisecond }
	s.At = time.UnixMilli(now).UTC()
	if first.Valid {
		s.Outbox.Oldest = since(first.Int64)
	}
	if due.Valid {
		s.Outbox.Oldest = max(s.Outbox.Oldest, since(due.Int64))
	}
	if failing.Valid {
		s.Outbox.FailingFor = since(failing.Int64)
	}
	return nil
}

// estimate sets the estimates of the planner for the counts that exceed the bound.
func (r *Reader) estimate(ctx context.Context, tx *sql.Tx, s *Status) error {
	if r.dialect.SQLite() {
		return nil
	}
	for _, c := range s.counts() {
		if !c.to.More {
			continue
		}
		var text []byte
		if err := tx.QueryRowContext(ctx, r.dialect.SQL(`EXPLAIN (FORMAT JSON) SELECT 1 FROM `+c.rows)).Scan(&text); err != nil {
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
	}, r.dialect.SQL(failuresQuery))
	return all, err
}
