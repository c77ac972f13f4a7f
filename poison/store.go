package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// Store stores the messages that a consumer cannot handle in the quarantine. All methods
// are safe for concurrent use.
type Store struct {
	config      Config
	parked      *parkedrows.Store
	sql         queries
	patience    parkedrows.Patience
	instruments *instruments
	hook        hook
	undecided   undecidedCalls

	started sync.Once // makes the first call of Middleware run observe
}

// New returns a Store that writes to the quarantine in db, which must be the consumer's
// own database. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Store, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, usercode.Refused("poison", err)
	}
	parked, err := parkedrows.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	store := &Store{
		config:   config,
		parked:   parked,
		sql:      newQueries(parked.Dialect()),
		patience: parkedrows.Patience{UnackedWait: config.UnackedWait, Logger: config.Logger},

		instruments: newInstruments(config),
		hook:        hook{call: config.OnQuarantine, logger: config.Logger},
	}
	chain.Register(chain.Code{Part: "poison"}, store.Middleware)
	return store, nil
}

// Part describes the Store for once.Plugin.
func (s *Store) Part() chain.Part {
	return chain.Part{
		Name: "poison", DB: s.parked.DB(), Schema: s.config.Schema, Logger: s.config.Logger,
		Tables: []string{"inbox", "parked", "replays"},
	}
}

type queries struct {
	entry string
	count string
}

func newQueries(d dialect.Dialect) queries {
	return queries{
		entry: d.SQL(`
			SELECT id, consumer, topic, message_id, tenant, reason, error, error_type, fingerprint, stack, attempts, crashes, replays, envelope
			FROM {parked} WHERE id = $1`),

		count: d.SQL(`
			SELECT COUNT(*) FROM (SELECT 1 FROM {parked} WHERE state = 'quarantined' LIMIT $1) AS counted`),
	}
}

func (s *Store) entry(ctx context.Context, tx *sql.Tx, id int64) (e Entry, err error) {
	var envelope []byte
	err = tx.QueryRowContext(ctx, s.sql.entry, id).Scan(&e.ID, &e.Consumer, &e.Topic, &e.MessageID, &e.Tenant,
		&e.Reason, &e.Error, &e.ErrorType, &e.Fingerprint, &e.Stack, &e.Attempts, &e.Crashes, &e.Replays, &envelope)
	if err != nil {
		return Entry{}, err
	}
	if msg, err := parkedrows.Decode(envelope); err == nil {
		e.Message = msg
	}
	return e, nil
}

func (s *Store) count(ctx context.Context, limit int) (n int64, err error) {
	err = s.parked.Dialect().Read(ctx, s.parked.DB(), func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.count, limit).Scan(&n)
	})
	if err != nil {
		err = fmt.Errorf("count quarantined messages: %w", err)
	}
	return n, err
}
