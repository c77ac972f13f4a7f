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

// Claimed is a claim with its message. Err says why no handler may run the
// message: its envelope is damaged, and Message is nil, or its transport could
// not decode it.
type Claimed struct {
	*Claim

	Message *message.Message
	Err     error
}

// Select says which rows to claim.
type Select struct {
	Consumer string
	Topic    string
	Owner    string // the subscription, for people who look at the table
	Limit    int
	Bytes    int // size limit of all envelopes together if Limit is above 1; 0 is no limit
	Lease    time.Duration
	Order    KeyOrder
	Keep     bool // keep rows whose messages were handled

	// Turns is the state of the subscription; nil begins anew. Due is a result of
	// Store.Due from just now; with nil Claim calls it.
	Turns *TenantTurns
	Due   *Due

	// Crashed selects the rows that were claimed by a process that ended. Without
	// it only the other rows are claimed.
	Crashed bool
}

// LargeError says that a row is larger than Select.Bytes divided by Select.Limit.
// No row is claimed, and the turns are unchanged. Claim again with a smaller
// Limit: Bytes/Size rows of this size fit.
type LargeError struct{ Size int }

func (e *LargeError) Error() string {
	return fmt.Sprintf("a message of %d bytes is too large for its share of the batch", e.Size)
}

// maxSize returns the size limit of a single row, in bytes.
func (sel Select) maxSize() int {
	if sel.Bytes == 0 || sel.Limit <= 1 {
		return math.MaxInt
	}
	return sel.Bytes / sel.Limit
}

// Due looks for rows of the selection that are due. It claims none.
func (s *Store) Due(ctx context.Context, sel Select) (*Due, error) {
	var due *Due
	err := s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		due = &Due{}
		var has [len(classes)]bool
		if err := tx.QueryRowContext(ctx, s.sql.due, sel.Consumer, sel.Topic).Scan(&has[0], &has[1], &has[2], &due.Crashed); err != nil {
			return err
		}
		for class := range classes {
			if !has[class] {
				continue
			}
			if err := s.findTenants(ctx, tx, sel, class, due); err != nil {
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

// findTenants walks from tenant to tenant of a class and adds those with due
// rows. Few of the retries may be due, and then most tenants of the walk have no
// due row. So for retries it also adds the tenants of the longest overdue rows.
func (s *Store) findTenants(ctx context.Context, tx *sql.Tx, sel Select, class int, due *Due) error {
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
		due.addWalked(class, n, tenant, has)
		return err
	}, s.sql.nextTenants, sel.Consumer, sel.Topic, classes[class].name, after)
	if err != nil || class != retryClass {
		return err
	}
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var tenant string
		err := scan(&tenant)
		due.addOverdue(class, tenant)
		return err
	}, s.sql.overdueTenants, sel.Consumer, sel.Topic)
}

// Claim claims rows that are due: the tenants take turns, and of each tenant the
// rows that have been due longest come first. Claim counts a crash for each row in
// advance, and settling the row reduces the count again. So the remaining count is
// the number of processes that ended while they had claimed the row. Claim returns
// a [LargeError] if a row is too large.
//
// With [dialect.ErrCommitUnknown] Claim returns the rows that may be claimed.
// Hand them back, or they count as crashed when the lease ends.
func (s *Store) Claim(ctx context.Context, sel Select) (claimed []Claimed, err error) {
	if sel.Turns == nil {
		sel.Turns = &TenantTurns{}
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
		// Shares that a tenant cannot use go to the other tenants.
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
			due.removeExhausted(shares, some)
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
		c.setLease(asked, sel.Lease)
	}
	slices.SortFunc(claimed, func(a, b Claimed) int { return cmp.Compare(a.ID, b.ID) })
	return claimed, nil
}

// Duration converts milliseconds that a row yields. A time in the row that was
// edited by hand may be too far from now for a Duration: then it returns the
// longest one.
func Duration(millis int64) time.Duration {
	const longest = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-longest, min(millis, longest))) * time.Millisecond
}

// shareArgs yields the arguments of the claim statement: once, or with SQLite for
// each share.
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
	maxSize, largest := sel.maxSize(), 0
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		c, err := scanClaim(scan, sel, token)
		if err != nil {
			return err
		}
		claimed = append(claimed, c)
		largest = max(largest, c.Size)
		return nil
	}, query, append([]any{sel.Consumer, sel.Topic, sel.Owner, token, sel.Lease.Milliseconds(), maxSize}, args...)...)
	if err == nil && largest > maxSize {
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
	err := scan(&c.ID, &c.Attempts, &c.Rounds, &c.Crashes, &c.Replays, &c.Turn.PriorityClass, &c.Turn.Tenant, &age, &key, &waited,
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

// Applied reports whether the inbox has the message of a claim: then the process
// that handled it ended after the commit and before it settled the row. Applied
// waits for a transaction of that process that has not ended yet. With PostgreSQL
// it fails if that takes longer than a second.
func (s *Store) Applied(ctx context.Context, c Claimed) (applied bool, err error) {
	digest := sha256.Sum256(c.Message.Payload)
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		if s.sql.lockTimeout != "" {
			if _, err := tx.ExecContext(ctx, s.sql.lockTimeout); err != nil {
				return err
			}
		}
		result, err := tx.ExecContext(ctx, s.sql.enter, c.ID)
		if err != nil {
			return err
		}
		if fresh, err := result.RowsAffected(); err != nil || fresh > 0 {
			return cmp.Or(err, errRollback)
		}
		return tx.QueryRowContext(ctx, s.sql.applied, c.ID, digest[:]).Scan(&applied)
	})
	if err != nil && !errors.Is(err, errRollback) {
		return false, fmt.Errorf("look up parked message %d in the inbox: %w", c.ID, err)
	}
	return applied, nil
}

// errRollback rolls back the insert by which Applied waits for other transactions.
var errRollback = errors.New("only looked")
