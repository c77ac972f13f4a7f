package sequence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// Resequencer compares the version of each message with the versions that were applied.
type Resequencer struct {
	config       Config
	dialect      dialect.Dialect
	queries      *dialect.Queries[queries]
	instruments  *instruments
	missingFirst sync.Map // consumers for which logMissingFirst has logged a line
}

// New returns a Resequencer, which works in the transactions that Config.Tx returns. If
// config is invalid, the returned error names every invalid field. The tables must
// exist when messages arrive, see schema.Up.
func New(config Config) (*Resequencer, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, usercode.Refused("sequence", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("sequence: %w", err)
	}
	r := &Resequencer{config: config, dialect: d, queries: dialect.NewQueries(d, newQueries), instruments: newInstruments(config)}
	chain.Register(chain.Code{Part: "sequence"}, r.Middleware)
	return r, nil
}

// Middleware calls h with each message whose version may be applied, see [Policy]. A stale version
// is acked without h, or goes back to quarantine if it was replayed. An early one is parked. A late
// one goes to Config.OnStale, or to quarantine without it. Add Middleware inside of dedup's, which
// begins the transaction.
func (r *Resequencer) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return chain.Registered("sequence", func(msg *message.Message) (produced []*message.Message, err error) {
		outcome := failed // the outcome if h panics
		defer func() { r.instruments.handled.Add(1, outcome) }()

		a, ok, err := r.config.aggregateOf(msg)
		switch {
		case err != nil:
			outcome = invalid
			return nil, chain.Forever(chain.ReasonPermanent, err)
		case !ok:
			produced, err = h(msg)
			if err == nil {
				outcome = unversioned
			}
			return produced, err
		}
		outcome, err = r.decide(msg, a)
		if err != nil || outcome == ignored || outcome == merged {
			return nil, err
		}
		decided := outcome
		outcome = failed
		produced, err = h(msg)
		if err == nil {
			outcome = decided
		}
		return produced, err
	})
}

type delivered struct {
	aggregate

	consumer string
	delivery *parkedrows.Delivery
	tx       *sql.Tx
}

func (t delivered) replayed() bool {
	claim := t.delivery.Claim
	return claim != nil && claim.Replays > 0
}

// decide returns an error if the message must be held, or is given up on.
func (r *Resequencer) decide(msg *message.Message, a aggregate) (outcome int, err error) {
	ctx := msg.Context()
	t := delivered{aggregate: a, delivery: parkedrows.DeliveryOf(ctx)}
	t.consumer = t.delivery.Consumer
	var ok bool
	if t.tx, ok = r.config.Tx(ctx); !ok {
		return undecided, chain.NotCalled(fmt.Errorf("sequence: %w", errNoTx))
	}
	if t.consumer == "" {
		return undecided, chain.NotCalled(fmt.Errorf("sequence: %w", errNoConsumer))
	}
	for lost := false; ; {
		last, err := r.last(ctx, t)
		if err != nil {
			return undecided, statementError("read the last version", err)
		}
		if lost && !last.known {
			return undecided, statementError("write the version", r.dialect.Unchanged("versions", "a row was not inserted"))
		}
		filled := false
		outcome = applied
		switch r.config.place(last, a.version) {
		case stale:
			return ignored, r.stale(t, last, msg)
		case early:
			if outcome, filled, err = r.early(ctx, t, last); err != nil {
				return outcome, err
			}
		case late:
			if outcome, err = r.late(ctx, t, last, msg); err != nil {
				return outcome, err
			}
		}
		failpoint.Hit("sequence/decided")
		written, err := r.write(ctx, t, last, filled)
		if err != nil {
			err = statementError("write the version", err)
			if r.config.OnGap != nil && outcome == appliedWithGap && chain.Of(err).NotCalled { // OnGap may have ended the session
				err = chain.HandBack(err)
			}
			return undecided, err
		}
		if written {
			return outcome, nil
		}
		// Another transaction has inserted the first version since, so the loop decides again.
		lost = true
	}
}

// statementError returns an error with its disposition. Usually the message is not the cause,
// because the handler was not called, except if code around this middleware has caused an error in
// the transaction and ignored it, or the database cannot store the name of the aggregate.
func statementError(what string, err error) error {
	err = fmt.Errorf("sequence: %s: %w", what, dialect.Denied(err))
	switch {
	case dialect.Unstorable(err):
		return chain.Forever(chain.ReasonPermanent, err)
	case dialect.State(err) == "25P02": // in_failed_sql_transaction
		return err
	}
	return chain.NotCalled(err)
}

func (r *Resequencer) last(ctx context.Context, t delivered) (l last, err error) {
	err = r.queries.In(t.tx).last.GetAll(ctx, t.tx, []any{&l.version, &l.completeFrom}, t.consumer, t.kind, t.id)
	if errors.Is(err, sql.ErrNoRows) {
		return last{}, nil
	}
	l.known = err == nil
	return l, err
}

// write stores the version as the last applied one, and makes the next one due if it is held, with
// the commit of the handler's transaction. If another transaction has stored the first version
// meanwhile, it returns false.
func (r *Resequencer) write(ctx context.Context, t delivered, l last, filled bool) (bool, error) {
	after := r.config.with(l, t.version, filled)
	if l.known && after.version == l.version {
		return true, r.extend(ctx, t, l, after)
	}
	queries := r.queries.In(t.tx)
	query := queries.begin
	if l.known {
		query = queries.next
	}
	result, err := query.Exec(ctx, t.tx, t.consumer, t.kind, t.id, t.version, after.completeFrom)
	if err != nil {
		return false, err
	}
	written, err := result.RowsAffected()
	if err == nil && written == 0 && l.known {
		err = r.dialect.Unchanged("versions", "a row was not updated")
	}
	if err != nil || written == 0 || r.config.Policy != HoldForGap {
		return written == 1, err
	}
	failpoint.Hit("sequence/written")
	if result, err = queries.wake.Exec(ctx, t.tx, t.consumer, t.sequence(), t.version+1); err != nil {
		return false, err
	}
	woken, err := result.RowsAffected()
	if woken > 0 {
		t.delivery.MakesDue()
	}
	failpoint.Hit("sequence/woken")
	return true, err
}

// extend lowers completeFrom after a late version that comes immediately before it.
func (r *Resequencer) extend(ctx context.Context, t delivered, l, after last) error {
	if after == l {
		return nil
	}
	n, err := dialect.Affected(r.queries.In(t.tx).extend.Exec(ctx, t.tx, t.consumer, t.kind, t.id, after.completeFrom))
	if err == nil && n == 0 {
		err = r.dialect.Unchanged("versions", "a row was not updated")
	}
	return err
}

// Part describes the resequencer to once.Plugin.
func (r *Resequencer) Part() chain.Part {
	return chain.Part{
		Name: "sequence", Schema: r.config.Schema, Logger: r.config.Logger,
		Tables: []string{"versions", "parked"},
	}
}

type queries struct {
	last   dialect.Statement
	begin  dialect.Statement
	next   dialect.Statement
	extend dialect.Statement
	wake   dialect.Statement
	lowest dialect.Statement
}

func newQueries(d dialect.Dialect) queries {
	return queries{
		// The lock makes other messages of the aggregate wait until this transaction has ended.
		last: d.Statement("", `
			SELECT version, complete_from FROM {versions}
			WHERE consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3
			{for_update}`),

		begin: d.Statement("", `
			INSERT INTO {versions} (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			VALUES ($1, $2, $3, $4, $5, {now})
			ON CONFLICT (consumer, aggregate_type, aggregate_id) DO NOTHING`),

		next: d.Statement("", `
			UPDATE {versions} SET version = $4, complete_from = $5, applied_at = {now}
			WHERE consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3 AND version < $4`),

		// version stays the same, because the applied version is lower.
		extend: d.Statement("", `
			UPDATE {versions} SET complete_from = $4
			WHERE consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3`),

		// The due time of claimed rows is the end of their lease.
		wake: d.Statement("", `
			UPDATE {parked} SET due_at = {now}
			WHERE consumer = $1 AND early_of = $2 AND early_version = $3
			  AND early_of IS NOT NULL AND state = 'waiting' AND token IS NULL`),

		lowest: d.Statement("", `
			SELECT NOT EXISTS (SELECT 1 FROM {parked}
			                   WHERE consumer = $1 AND early_of = $2 AND early_version > $3 AND early_version < $4
			                     AND early_of IS NOT NULL AND state = 'waiting')`),
	}
}
