package parked

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// Claimed is a claim with its message. Err says why no handler is to see that:
// the envelope cannot be read, and Message is nil, or the transport could not
// decode what it was made of.
type Claimed struct {
	*Claim

	Message *message.Message
	Err     error
}

// Select says which rows to claim.
type Select struct {
	Consumer string
	Topic    string
	Owner    string // who claims, for people who look at the table
	Limit    int
	Bytes    int // of all envelopes together, if there are several; 0 is any number
	Lease    time.Duration
	Order    KeyOrder
	Keep     bool // the rows, when their messages were handled

	// Turns is the subscription's; nil begins anew. Due is what a look of just
	// now has found; nil looks again.
	Turns *Turns
	Due   *Due

	// Crashed claims rows under which a process has ended before; otherwise
	// only rows are claimed under which none has.
	Crashed bool
}

// LargeError says that rows are too large for so many to be claimed within
// Select.Bytes. None is claimed, and nobody has lost a turn. Of the one that it
// tells, Bytes/Size fit.
type LargeError struct{ Size int }

func (e *LargeError) Error() string {
	return fmt.Sprintf("a message of %d bytes is too large for its share", e.Size)
}

// most is how large each row may be.
func (sel Select) most() int {
	if sel.Bytes == 0 || sel.Limit <= 1 {
		return math.MaxInt
	}
	return sel.Bytes / sel.Limit
}

// Due looks for rows of the selection, without claiming any.
func (s *Store) Due(ctx context.Context, sel Select) (*Due, error) {
	var due *Due
	err := s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		due = &Due{}
		var has [len(classes)]bool
		if err := tx.QueryRowContext(ctx, s.sql.due, sel.Consumer, sel.Topic).Scan(&has[0], &has[1], &has[2], &due.Suspect); err != nil {
			return err
		}
		for class := range classes {
			if !has[class] {
				continue
			}
			if err := s.walk(ctx, tx, sel, class, due); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for parked messages: %w", err)
	}
	return due, nil
}

// walk looks who has rows in a class. Where few are due, as of retries, it comes
// to many who have none: those whose are due the longest are asked for besides.
func (s *Store) walk(ctx context.Context, tx *sql.Tx, sel Select, class int, due *Due) error {
	after := ""
	if sel.Turns != nil {
		after = sel.Turns.after[class]
	}
	n := 0
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			tenant string
			has    bool
		)
		err := scan(&tenant, &has)
		n++
		due.walk(class, n, tenant, has)
		return err
	}, s.sql.walk, sel.Consumer, sel.Topic, classes[class].name, after)
	if err != nil || class != retryClass {
		return err
	}
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var tenant string
		err := scan(&tenant)
		due.also(class, tenant)
		return err
	}, s.sql.longest, sel.Consumer, sel.Topic)
}

// Claim takes rows that are due: of each tenant in turn, and of a tenant those
// that are due the longest. It counts a crash against each: it is taken back
// when the row is settled, so what remains counted are the claims whose process
// ended. It returns a [LargeError] if they are too large for that.
//
// With [dialect.ErrCommitUnknown] it returns what may be claimed: that is to be
// handed back, or it counts as a crash when the lease ends.
func (s *Store) Claim(ctx context.Context, sel Select) (claimed []Claimed, err error) {
	if sel.Turns == nil {
		sel.Turns = &Turns{}
	}
	due := sel.Due
	if due == nil && !sel.Crashed {
		if due, err = s.Due(ctx, sel); err != nil || !due.Fresh() {
			return nil, err
		}
	}
	token, asked, turns := uuid.NewString(), time.Now(), *sel.Turns
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		take := func(query string, args ...any) ([]Claimed, error) { return s.take(ctx, tx, sel, token, query, args) }
		if sel.Crashed {
			claimed, err = take(s.sql.claimCrashed, sel.Limit)
			return err
		}
		// What some have not is for the others.
		for len(claimed) < sel.Limit && due.Fresh() {
			shares := sel.Turns.shares(due, sel.Limit-len(claimed))
			var some []Claimed
			for args := range s.shareArgs(shares) {
				more, err := take(s.sql.claim, args...)
				if err != nil {
					return err
				}
				some = append(some, more...)
			}
			due.without(shares, some)
			claimed = append(claimed, some...)
		}
		failpoint.Hit("parked/claim")
		return nil
	})
	failpoint.Hit("parked/claimed")
	if err != nil {
		*sel.Turns = turns
		if !errors.Is(err, dialect.ErrCommitUnknown) {
			claimed = nil
		}
		return claimed, fmt.Errorf("claim parked messages: %w", err)
	}
	for _, c := range claimed {
		c.hold(asked, sel.Lease)
	}
	slices.SortFunc(claimed, func(a, b Claimed) int { return cmp.Compare(a.ID, b.ID) })
	return claimed, nil
}

// Duration converts milliseconds that a row yields. A time in the row that was
// edited by hand may be too far from now for a Duration: then it returns the
// longest one.
func Duration(millis int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-most, min(millis, most))) * time.Millisecond
}

// shareArgs are the arguments of the claim: once, or with SQLite for each share.
func (s *Store) shareArgs(shares []share) iter.Seq[[]any] {
	return func(yield func([]any) bool) {
		names, tenants, counts := make([]string, len(shares)), make([]string, len(shares)), make([]int64, len(shares))
		for i, share := range shares {
			names[i], tenants[i], counts[i] = classes[share.class].name, share.tenant, int64(share.rows)
			if s.dialect.SQLite() && !yield([]any{names[i], tenants[i], counts[i]}) {
				return
			}
		}
		if !s.dialect.SQLite() {
			yield([]any{s.dialect.Strings(names), s.dialect.Strings(tenants), s.dialect.List(counts)})
		}
	}
}

// take runs a statement that claims rows.
func (s *Store) take(ctx context.Context, tx *sql.Tx, sel Select, token, query string, args []any) ([]Claimed, error) {
	var claimed []Claimed
	most, largest := sel.most(), 0
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		c, err := scanClaim(scan, sel, token)
		claimed = append(claimed, c)
		largest = max(largest, c.Size)
		return err
	}, query, append([]any{sel.Consumer, sel.Topic, sel.Owner, token, sel.Lease.Milliseconds(), most}, args...)...)
	if err == nil && largest > most {
		err = &LargeError{Size: largest}
	}
	return claimed, err
}

func scanClaim(scan func(dest ...any) error, sel Select, token string) (Claimed, error) {
	c := Claimed{Claim: &Claim{Token: token, Order: sel.Order, Keep: sel.Keep, claimed: time.Now()}}
	var (
		age, waited int64
		envelope    []byte
		key         string
		raw         bool
		known       knownError
	)
	err := scan(&c.ID, &c.Attempts, &c.Rounds, &c.Crashes, &c.Replays, &c.Turn.Class, &c.Turn.Tenant, &age, &key, &waited,
		&c.Size, &envelope, &raw, &known.text, &known.typ)
	if err != nil {
		return Claimed{}, err
	}
	c.Attempts, c.Rounds = min(c.Attempts, MaxCount), min(c.Rounds, MaxCount)
	c.age, c.Waited = Duration(age), Duration(waited)
	if key != "" {
		c.Key = Key{sel.Consumer, sel.Topic, key}
	}
	c.Message, c.Err = Decode(envelope)
	if c.Err == nil && raw {
		c.Err = known
	}
	return c, nil
}

// Applied says whether the inbox has the message of a claim: the process that
// handled it ended between the commit and the end of its row. It also waits for
// a commit that the process has left behind, and fails if that takes long.
func (s *Store) Applied(ctx context.Context, c Claimed) (applied bool, err error) {
	digest := sha256.Sum256(c.Message.Payload)
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		if s.sql.briefly != "" {
			if _, err := tx.ExecContext(ctx, s.sql.briefly); err != nil {
				return err
			}
		}
		result, err := tx.ExecContext(ctx, s.sql.enter, c.ID)
		if err != nil {
			return err
		}
		if fresh, err := result.RowsAffected(); err != nil || fresh > 0 {
			return cmp.Or(err, errOnlyLooked)
		}
		return tx.QueryRowContext(ctx, s.sql.applied, c.ID, digest[:]).Scan(&applied)
	})
	if err != nil && !errors.Is(err, errOnlyLooked) {
		return false, fmt.Errorf("look up parked message %d in the inbox: %w", c.ID, err)
	}
	return applied, nil
}

// errOnlyLooked rolls back what was written to see whether it could be.
var errOnlyLooked = errors.New("only looked")
