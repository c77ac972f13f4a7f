package sequence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// Resequencer compares the versions of messages with what was applied.
type Resequencer struct {
	config      Config
	sql         queries
	instruments *instruments
	told        sync.Map // consumers of which tell has spoken
}

// New returns a Resequencer, which works in the transactions that Config.Tx
// returns. The tables must be there, see schema.Up.
func New(config Config) (*Resequencer, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fields.Refused("sequence", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("sequence: %w", err)
	}
	return &Resequencer{config: config, sql: newQueries(d), instruments: newInstruments(config)}, nil
}

// Middleware calls h with messages whose turn it is. For one that is stale it
// returns nil without calling h, so that it is acked; one that is early is
// parked; one that is late ends in quarantine. It belongs inside of dedup.
func (r *Resequencer) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		outcome := failed // also when h panics
		defer func() { r.instruments.handled.Add(1, outcome) }()

		a, ok, err := r.config.aggregateOf(msg)
		switch {
		case err != nil:
			outcome = invalid
			return nil, disposition.Forever(disposition.ReasonPermanent, err)
		case !ok:
			produced, err = h(msg)
			if err == nil {
				outcome = unversioned
			}
			return produced, err
		}
		outcome, err = r.decide(msg, a)
		if err != nil || outcome == ignored {
			return nil, err
		}
		decided := outcome
		outcome = failed
		produced, err = h(msg)
		if err == nil {
			outcome = decided
		}
		return produced, err
	}
}

// turn is a message that is being decided on.
type turn struct {
	aggregate

	consumer string
	delivery *parked.Delivery
	tx       *sql.Tx
}

// replayed reports whether the message was in quarantine, and was replayed.
func (t turn) replayed() bool {
	claim := t.delivery.Claim
	return claim != nil && claim.Replays > 0
}

// decide says what becomes of a message; without an error that is to apply it,
// or that it is ignored.
func (r *Resequencer) decide(msg *message.Message, a aggregate) (outcome int, err error) {
	ctx := msg.Context()
	t := turn{aggregate: a, delivery: parked.DeliveryOf(ctx)}
	t.consumer = t.delivery.Consumer
	var ok bool
	if t.tx, ok = r.config.Tx(ctx); !ok {
		return undecided, disposition.NotCalled(fmt.Errorf("sequence: %w", ErrNoTx))
	}
	if t.consumer == "" {
		return undecided, disposition.NotCalled(fmt.Errorf("sequence: %w", ErrNoConsumer))
	}
	for {
		last, err := r.last(ctx, t)
		if err != nil {
			return undecided, disposition.NotCalled(fmt.Errorf("sequence: read the last version: %w", err))
		}
		filled := false
		outcome = applied
		switch r.config.place(last, a.version) {
		case stale:
			r.config.Logger.Debug("Message is older than what was applied, ignored",
				watermill.LogFields{"message_uuid": msg.UUID, "consumer": t.consumer})
			return ignored, nil
		case early:
			if outcome, filled, err = r.early(ctx, t, last); err != nil {
				return outcome, err
			}
		case late:
			if outcome, err = r.late(t, last); err != nil {
				return outcome, err
			}
		}
		failpoint.Hit("sequence/decided")
		written, err := r.write(ctx, t, last, filled)
		if err != nil {
			return undecided, disposition.NotCalled(fmt.Errorf("sequence: write the version: %w", err))
		}
		if written {
			return outcome, nil
		}
		// Another one was the first, and has been decided by now.
	}
}

func (r *Resequencer) last(ctx context.Context, t turn) (l last, err error) {
	err = r.sql.last.GetAll(ctx, t.tx, []any{&l.version, &l.completeFrom}, t.consumer, t.kind, t.id)
	if errors.Is(err, sql.ErrNoRows) {
		return last{}, nil
	}
	l.known = err == nil
	return l, err
}

// write makes the version the last, and has the next one looked at if it is
// held. Both take effect with what the handler does.
func (r *Resequencer) write(ctx context.Context, t turn, l last, filled bool) (bool, error) {
	after := r.config.with(l, t.version, filled)
	if l.known && after.version == l.version {
		return true, r.extend(ctx, t, l, after)
	}
	query := r.sql.begin
	if l.known {
		query = r.sql.next
	}
	result, err := query.Exec(ctx, t.tx, t.consumer, t.kind, t.id, t.version, after.completeFrom)
	if err != nil {
		return false, err
	}
	written, err := result.RowsAffected()
	if err != nil || written == 0 || r.config.Policy != HoldForGap {
		return written == 1, err
	}
	failpoint.Hit("sequence/written")
	if result, err = r.sql.wake.Exec(ctx, t.tx, t.consumer, t.sequence(), t.version+1); err != nil {
		return false, err
	}
	woken, err := result.RowsAffected()
	if woken > 0 {
		t.delivery.MakesDue()
	}
	failpoint.Hit("sequence/woken")
	return true, err
}

// extend writes that a late version has been applied, if it stands next to those
// that have.
func (r *Resequencer) extend(ctx context.Context, t turn, l, after last) error {
	if after == l {
		return nil
	}
	_, err := r.sql.extend.Exec(ctx, t.tx, t.consumer, t.kind, t.id, after.completeFrom)
	return err
}
