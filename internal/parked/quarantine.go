package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// Aside is what else is to happen in the transaction that quarantines an
// entry; it may be nil.
type Aside func(ctx context.Context, tx *sql.Tx, e Entry) error

// Quarantine stores a message as hopeless: it ends the claim of d, or takes
// over a message that came from the transport. If the same message waits for
// another attempt, that row is taken out of the way. It returns the entry, with
// the ID 0 if the message has been resolved or discarded already, or somebody is
// at its row, who will say what becomes of it.
func (s *Store) Quarantine(ctx context.Context, d *Delivery, msg *message.Message, f Failure, aside Aside) (Entry, error) {
	if d.Claim != nil {
		return s.quarantineClaim(ctx, d.Consumer, d.Claim, f, aside)
	}
	text, errType, group := f.columns(d.Consumer)
	entry, err := s.quarantine(ctx, nil, aside, s.sql.insertQuarantined,
		Clean(d.Consumer, maxName), Clean(d.Topic, maxName), Clean(msg.UUID, maxName), tenant(msg),
		Digest(msg), Encode(msg), min(f.Attempts, maxCount), f.Reason, text, errType, group)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Entry{}, nil
	case err != nil:
		return Entry{}, fmt.Errorf("quarantine message: %w", err)
	}
	return entry, nil
}

// QuarantineClaim ends a claim whose message was never given to the chain, and
// tells whoever listens for the consumer.
func (s *Store) QuarantineClaim(ctx context.Context, consumer string, c *Claim, f Failure) error {
	l := s.arrivals.listener(consumer)
	var aside Aside
	if l != nil {
		aside = l.Aside
	}
	entry, err := s.quarantineClaim(ctx, consumer, c, f, aside)
	if err == nil && l != nil {
		l.Arrived(entry)
	}
	return err
}

func (s *Store) quarantineClaim(ctx context.Context, consumer string, c *Claim, f Failure, aside Aside) (Entry, error) {
	text, errType, group := f.columns(consumer)
	stays := c.Order == BlockWhileQuarantined
	var keys []Key
	if !stays {
		keys = c.keys()
	}
	entry, err := s.quarantine(ctx, keys, aside, s.sql.quarantineClaim,
		c.ID, c.Token, min(f.Attempts, maxCount), f.Reason, text, errType, group, stays)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		c.settled.Store(true)
		return Entry{}, fmt.Errorf("%w: row %d", ErrClaimLost, c.ID)
	case err != nil:
		return Entry{}, fmt.Errorf("settle parked message %d: %w", c.ID, err)
	}
	c.settled.Store(true)
	return entry, nil
}

// quarantine runs a statement that returns the entry, and by which the keys go
// on.
func (s *Store) quarantine(ctx context.Context, keys []Key, aside Aside, query string, args ...any) (entry Entry, err error) {
	err = fitting(func(fit fitter) error {
		return s.changeKeys(ctx, keys, func(tx *sql.Tx) error {
			entry, err = scanEntry(tx.QueryRowContext(ctx, query, fit(args...)...))
			if err != nil {
				return err
			}
			failpoint.Hit("parked/quarantined")
			if aside == nil {
				return nil
			}
			return aside(ctx, tx, entry)
		})
	})
	return entry, err
}
