package parkedrows

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

// Claimed is a claim with its message. Err is set if the message must not be passed to
// a handler, because the transport could not decode it, or because its envelope is
// damaged. With a damaged envelope, Message is nil.
type Claimed struct {
	*Claim

	Message *message.Message
	Err     error
}

// Select says which rows to claim.
type Select struct {
	Consumer string
	Topic    string
	Owner    string // name of the subscription; it is only for people who look at the table
	Limit    int
	Bytes    int // maximum size of all envelopes together if Limit is above 1; 0 means no limit
	Lease    time.Duration
	Order    KeyOrder
	Keep     bool // keep the rows of handled messages

	// PerTenant is how many rows of one tenant all processes may have claimed; 0 means no limit.
	PerTenant int

	// Turns contains the tenant turns of the subscription. If Turns is nil, Claim begins
	// with any tenant. Due is a recent result of Store.Due. If Due is nil, Claim calls
	// Store.Due.
	Turns *TenantTurns
	Due   *Due

	// If Crashed is true, Claim takes only rows that were claimed by a process that died.
	// If it is false, Claim takes only the other rows.
	Crashed bool
}

// LargeError means that a row is larger than Select.Bytes divided by Select.Limit. No
// row was claimed, and Select.Turns is unchanged. Claim again with a smaller Limit:
// Bytes/Size rows of this size can be claimed together.
type LargeError struct{ Size int }

func (e *LargeError) Error() string {
	return fmt.Sprintf("a message of %d bytes is too large for its share of the batch", e.Size)
}

func (sel Select) maxSize() int {
	if sel.Bytes == 0 || sel.Limit <= 1 {
		return math.MaxInt
	}
	return sel.Bytes / sel.Limit
}

// Due finds the tenants that have due rows for the consumer and topic of sel. It claims
// no rows.
func (s *Store) Due(ctx context.Context, sel Select) (*Due, error) {
	var due *Due
	err := s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		due = &Due{}
		return dialect.EachRow(ctx, tx, due.scan, s.sql.due.Query(), dueArgs(sel)...)
	})
	if err != nil {
		return nil, fmt.Errorf("look for parked messages: %w", err)
	}
	return due, nil
}

func dueArgs(sel Select) []any {
	args := []any{sel.Consumer, sel.Topic}
	for class := range classes {
		after := ""
		if sel.Turns != nil {
			after = sel.Turns.after[class]
		}
		args = append(args, after)
	}
	return args
}

// Claim claims due rows. The tenants take turns. The rows of one tenant are claimed in
// the order of their due times. Claim returns a [LargeError] if a row is too large.
//
// Claim counts a crash for each claimed row in advance. When the row is settled, this
// count is taken back. The crash count is therefore the number of processes that
// claimed the row and died before they settled it.
//
// If the error is [dialect.ErrCommitUnknown], the returned rows may have been claimed.
// Pass them to HandBack. Otherwise their crash counts stay one too high, although no
// process has died.
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
		free, err := s.freeOf(ctx, tx, sel)
		if err != nil {
			return err
		}
		if sel.Crashed {
			claimed, err = take(s.sql.claimCrashed, sel.Limit, s.dialect.Strings(free.busyTenants()))
			return err
		}
		due.removeFull(free)
		// Shares that a tenant cannot use go to the other tenants.
		for len(claimed) < sel.Limit && due.Fresh() {
			shares := free.limit(sel.Turns.shares(due, sel.Limit-len(claimed)))
			var some []Claimed
			for args := range s.shareArgs(shares) {
				more, err := take(s.sql.claim, args...)
				if err != nil {
					return err
				}
				some = append(some, more...)
			}
			due.removeExhausted(shares, some)
			free.use(some)
			due.removeFull(free)
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

// Duration converts milliseconds from a row. If the value does not fit, because the row was edited
// by hand, it returns the longest possible duration.
func Duration(millis int64) time.Duration {
	const longest = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-longest, min(millis, longest))) * time.Millisecond
}

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

// Applied reports whether the inbox contains the message of a claim. If it does, an
// earlier process handled the message and committed, but died before it settled the
// row. If a transaction is handling the message at this moment, Applied waits for its
// end. With PostgreSQL, Applied fails if this wait takes longer than a second.
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

// errRollback rolls back the insert with which Applied waits for other transactions.
var errRollback = errors.New("only looked")

// Poll calls [Store.Due] for one subscription. once_parked has many indexes, so PostgreSQL takes
// longer to plan the query than to execute it. Therefore Poll prepares it, outside of a transaction
// if possible.
type Poll struct {
	store  *Store
	reader *dialect.Reader // nil before the first use
}

// Poll returns a Poll for the store.
func (s *Store) Poll() *Poll { return &Poll{store: s} }

// Due is like [Store.Due].
func (p *Poll) Due(ctx context.Context, sel Select) (*Due, error) {
	if p.reader == nil {
		p.reader = p.store.dialect.Reader(p.store.db)
	}
	if due, err := p.read(ctx, sel); due != nil && err == nil {
		return due, nil
	}
	// The cause of an error may exist only outside of a transaction. Otherwise Store.Due returns it too.
	return p.store.Due(ctx, sel)
}

// read returns nil if the driver cannot read outside of a transaction.
func (p *Poll) read(ctx context.Context, sel Select) (due *Due, err error) {
	if !p.reader.Usable() {
		return nil, nil //nolint:nilnil // see above
	}
	err = p.reader.Read(ctx, p.store.sql.due, dueArgs(sel), func(rows *sql.Rows) error {
		due = &Due{}
		for rows.Next() {
			if err := due.scan(rows.Scan); err != nil {
				return err
			}
		}
		return nil
	})
	return due, err
}
