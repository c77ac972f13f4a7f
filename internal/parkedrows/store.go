package parkedrows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// ErrClaimLost means that another process has claimed or settled the row after the lease of the
// claim has ended.
var ErrClaimLost = errors.New("parked: the claim was lost")

// Store reads and writes the table once_parked in one database.
type Store struct {
	db      *sql.DB
	dialect dialect.Dialect
	sql     queries

	process *process
}

// NewStore returns an error if db is nil or config is invalid.
func NewStore(db *sql.DB, config schema.Config) (*Store, error) {
	d, err := dialect.New(config)
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, err
	}
	return &Store{db: db, dialect: d, sql: newQueries(d), process: processOf(db, d.Config().Table("parked"))}, nil
}

// DB returns the database of the table.
func (s *Store) DB() *sql.DB { return s.db }

// Dialect returns the dialect of the database.
func (s *Store) Dialect() dialect.Dialect { return s.dialect }

// Failure describes the latest failed attempt of a message.
type Failure struct {
	MessageID string
	Err       error
	Reason    string
	Attempts  int // total number of calls of the handler
	Rounds    int // total number of rounds of the retry policy
}

func (f Failure) columns(consumer string) (text, errType, group string) {
	if f.Err == nil {
		return "", "", ""
	}
	text = Clean(f.Err.Error(), MaxError)
	errType = Clean(errorType(f.Err), MaxName)
	return text, errType, Fingerprint(Cause{Consumer: consumer, Reason: f.Reason, ErrorType: errType, Text: text, MessageID: f.MessageID})
}

// stack shows the arguments of functions as numbers, so it contains no part of the message.
func (f Failure) stack() string { return Clean(usercode.Stack(f.Err), MaxStack) }

// Park stores a message that came from the transport. The message is due after the
// given delay. If the message already has a row, Park changes nothing.
func (s *Store) Park(ctx context.Context, d *Delivery, msg *message.Message, f Failure, delay time.Duration) error {
	text, errType, group := f.columns(d.Consumer)
	return withASCIIFallback(func(encode encoder) error {
		return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			err := s.insertOne(ctx, tx, s.sql.insertWaiting, encode(append([]any{
				Clean(d.Consumer, MaxName), Clean(d.Topic, MaxName), Clean(msg.UUID, MaxName), TenantOf(msg), Digest(msg), Encode(msg),
				delay.Milliseconds(), min(f.Attempts, MaxCount), min(f.Rounds, MaxCount), text, errType, group, f.Err != nil,
			}, LabelsOf(msg)...)...)...)
			if err != nil {
				return fmt.Errorf("park message: %w", err)
			}
			failpoint.Hit("parked/park")
			return nil
		})
	})
}

// insertOne fails if the message has no row afterwards: the database has ignored the statement, and
// the message must not be acked. The first arguments are those of receive.
func (s *Store) insertOne(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	n, err := dialect.Affected(tx.ExecContext(ctx, query, args...))
	if err != nil || n > 0 {
		return err
	}
	return s.checkStored(ctx, tx, args)
}

func (s *Store) checkStored(ctx context.Context, tx *sql.Tx, values []any) error {
	var stored bool
	if err := tx.QueryRowContext(ctx, s.sql.stored, values[0], values[2], values[4]).Scan(&stored); err != nil || stored {
		return err
	}
	return s.dialect.Unchanged("parked", "the row of a message was not inserted")
}

const (
	Waiting     = "waiting"
	Held        = "held" // waits behind the head of its ordering key
	Quarantined = "quarantined"
	Resolved    = "resolved"
	Discarded   = "discarded"
)

// Final is an SQL list of the final states. A row never leaves a final state.
const Final = `('resolved', 'discarded')`

// AtRest is the condition of the indexes parked_aggregate and parked_causation: rows that do not
// wait for a call of their handler.
const AtRest = `state IN ('quarantined', 'resolved', 'discarded')`

// Backlog counts the waiting and held rows, and the blocked ordering keys, of all consumers
// together. No count goes above 100,000.
type Backlog struct {
	Waiting int64         // waiting rows, including claimed rows
	Lag     time.Duration // time since the earliest due time of a waiting row; 0 if no row is due

	WaitingForKey int64 // rows that wait behind the head of their ordering key
	BlockedKeys   int64 // ordering keys whose head is in quarantine

	Paused int64 // consumers that are paused, counted for each topic
}

// Backlog returns these counts.
func (s *Store) Backlog(ctx context.Context) (b Backlog, err error) {
	var lag int64
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.backlog).Scan(&b.Waiting, &lag, &b.WaitingForKey, &b.BlockedKeys, &b.Paused)
	})
	if err != nil {
		return Backlog{}, fmt.Errorf("count parked messages: %w", err)
	}
	b.Lag = time.Duration(lag) * time.Millisecond
	return b, nil
}
