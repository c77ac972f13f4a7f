package parkedrows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// Limit is how many messages of a consumer may start per second, and how many more at once. The
// zero value is no limit.
type Limit struct {
	PerSecond float64
	Burst     int
}

const (
	minPerSecond = 0.001
	maxPerSecond = 100_000
	maxBurst     = 1_000_000
)

// WithDefaults returns l with a Burst.
func (l Limit) WithDefaults() Limit {
	if l.PerSecond > 0 && l.Burst == 0 {
		l.Burst = int(math.Ceil(min(l.PerSecond, maxPerSecond)))
	}
	return l
}

// Validate returns an error that names the invalid fields, with prefix before their names.
func (l Limit) Validate(prefix string) error {
	var errs []error
	if l.PerSecond >= minPerSecond && l.PerSecond <= maxPerSecond {
		if least := int(math.Ceil(l.PerSecond / 20)); l.Burst >= 0 && l.Burst < least {
			errs = append(errs, fmt.Errorf("%sBurst is %d, too few for an even pace of %v per second: use at least %d",
				prefix, l.Burst, l.PerSecond, least))
		}
	} else {
		errs = append(errs, fmt.Errorf("%sPerSecond is %v, not in %v..%d", prefix, l.PerSecond, minPerSecond, maxPerSecond))
	}
	if l.Burst < 0 || l.Burst > maxBurst {
		errs = append(errs, fmt.Errorf("%sBurst is %d, not in 1..%d", prefix, l.Burst, maxBurst))
	}
	return errors.Join(errs...)
}

// Period is the time from one start to the next.
func (l Limit) Period() time.Duration { return time.Duration(float64(time.Second) / l.PerSecond) }

// late is how much later than planned a message may start. All starts that are late then are fewer
// than Burst.
func (l Limit) late() time.Duration {
	return time.Duration(max(float64(l.Burst-1), 0.5) * float64(l.Period()))
}

// answerTime is how long an answer of the database may take without costing starts.
const answerTime = 20 * time.Millisecond

// saved is the age of the oldest start that nobody has taken and that can be taken now. It is less
// than late, because a start must not be too late when the answer arrives.
func (l Limit) saved() time.Duration {
	return max(0, time.Duration(l.Burst-1)*l.Period()-min(l.Period()/2, answerTime))
}

// maxGivenAhead is how far ahead starts are given to instances. If an instance dies, those that it
// was given are lost, and the others go on after this time.
const maxGivenAhead = 200 * time.Millisecond

// Starts are times at which an instance may start messages. No other instance has them.
type Starts struct {
	Next   time.Time // by the clock of this process, rather too late than too early
	Period time.Duration
	N      int
	Late   time.Duration // how much later than its time a start may be used
}

// MaxStarts is how many starts an instance may take at once.
func (l Limit) MaxStarts() int {
	return int(math.Max(1, l.PerSecond*maxGivenAhead.Seconds()))
}

// StartsReader takes starts for one subscription. It is not safe for concurrent use.
type StartsReader struct {
	store  *Store
	reader *dialect.Reader
}

// Starts returns a StartsReader.
func (s *Store) Starts() *StartsReader {
	return &StartsReader{store: s, reader: s.dialect.Reader(s.db)}
}

// Take takes n starts of the limit l. set is the limit that an operator has set, as far as this
// instance knows. It returns false if other instances have taken all of the near future, or if set
// has changed.
//
// It is one statement without a transaction: an instance that loses its connection in a transaction
// would keep the row locked, and stop all others.
func (r *StartsReader) Take(ctx context.Context, i Instance, l, set Limit, n int) (taken Starts, ok bool, err error) {
	asked := time.Now()
	cost := time.Duration(math.Ceil(float64(n)*float64(time.Second/time.Millisecond)/l.PerSecond)) * time.Millisecond
	args := i.name()
	for _, d := range []time.Duration{cost, -l.saved(), maxGivenAhead, cost - l.saved()} {
		args = append(args, d.Milliseconds())
	}
	args = append(args, int64(n), strconv.FormatFloat(set.PerSecond, 'g', -1, 64), int64(set.Burst))
	var until int64
	collect := func(rows *sql.Rows) error {
		for rows.Next() {
			ok = true
			if err := rows.Scan(&until); err != nil {
				return err
			}
		}
		return nil
	}
	err = r.read(ctx, args, collect)
	failpoint.Hit("parked/starts-taken")
	if err != nil {
		return Starts{}, false, fmt.Errorf("take starts from the limit of consumer %q and topic %q: %w", i.Consumer, i.Topic, err)
	}
	answered, late := time.Now(), l.late()
	slow := max(0, answered.Sub(asked)-answerTime)
	return Starts{
		Next: answered.Add(Duration(until) - cost), Period: cost / time.Duration(n), N: n,
		Late: max(late-slow, late/2),
	}, ok, nil
}

func (r *StartsReader) read(ctx context.Context, args []any, collect func(rows *sql.Rows) error) error {
	if r.reader.Usable() {
		return r.reader.Read(ctx, r.store.sql.takeStarts, args, collect)
	}
	return r.store.dialect.Write(ctx, r.store.db, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, r.store.sql.takeStarts.Query(), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if err := collect(rows); err != nil {
			return err
		}
		return rows.Err()
	})
}

// newTakeStarts returns the statement of Take. Its parameters are the topic, the consumer, the time
// that the starts take, the negative age of the oldest one, how far ahead they are given, the sum of
// the first two times, the number of starts, and the limit that an operator has set.
func newTakeStarts(d dialect.Dialect) dialect.Statement {
	cost := `$3::bigint * interval '1 millisecond'`
	if d.SQLite() {
		cost = `$3`
	}
	return d.Statement("", `
		INSERT INTO {consumer_limits} AS l (topic, consumer, given_until, given) VALUES ($1, $2, {after $6}, $7)
		ON CONFLICT (topic, consumer) DO UPDATE
		SET given_until = CASE WHEN l.given_until > {after $4} THEN l.given_until ELSE {after $4} END + `+cost+`,
		    given = $7 + CASE WHEN l.given_since >= {after -10000} THEN l.given WHEN l.given_since >= {after -20000} THEN l.given / 2 ELSE 0 END,
		    given_since = CASE WHEN l.given_since >= {after -10000} THEN l.given_since ELSE {after -5000} END
		WHERE l.given_until <= {after $5}
		  AND COALESCE(l.per_second, 0) = CAST($8 AS double precision) AND COALESCE(l.burst, 0) = CAST($9 AS integer)
		RETURNING {millis given_until} - {clock}`)
}
