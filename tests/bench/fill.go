package main

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

// prepare publishes one message through the outbox, and stores a copy of its row in the
// table sample. The method add makes copies of this row.
func (s *scene) prepare(ctx context.Context) error {
	err := outbox.InTx(ctx, s.db.DB, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(s.queue.name, newMessage())
	})
	if err != nil {
		return err
	}
	return s.exec(ctx,
		`CREATE TABLE sample AS SELECT topic, payload, metadata FROM once_outbox`,
		`DELETE FROM once_outbox`)
}

// add inserts copies of the row in the table sample, in one transaction. If the parameter
// keys is above 0, the copies get this number of ordering keys in rotation.
func (s *scene) add(ctx context.Context, messages, keys int) error {
	_, err := s.db.ExecContext(ctx, `
		INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata)
		SELECT gen_random_uuid()::text, topic, 'key-' || n % $2, CASE WHEN $2 > 0 THEN n % $2 ELSE n END % 64, payload,
		       CASE WHEN $2 > 0 THEN (metadata::jsonb || jsonb_build_object('`+outbox.OrderingKey+`', 'key-' || n % $2))::json ELSE metadata END
		FROM sample, generate_series(1, $1::bigint) AS n`, messages, sql.NullInt64{Int64: int64(keys), Valid: keys > 0})
	return err
}

// fill fills the outbox with copies of one message, and prepares the database for the
// measurement with the method settle.
func (s *scene) fill(ctx context.Context, messages, keys int) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.add(ctx, messages, keys); err != nil {
		return err
	}
	return s.settle(ctx)
}

// fillFor is like fill, with messages of a tenant.
func (s *scene) fillFor(ctx context.Context, tenant string, messages, keys int) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	_, err := s.db.ExecContext(ctx, `
		UPDATE sample SET metadata = (metadata::jsonb || jsonb_build_object('`+outbox.TenantID+`', $1::text))::json`, tenant)
	if err != nil {
		return err
	}
	if err := s.add(ctx, messages, keys); err != nil {
		return err
	}
	return s.settle(ctx)
}

// settle vacuums the outbox and writes a checkpoint, so that earlier writes do not slow
// down the measurement.
func (s *scene) settle(ctx context.Context) error {
	return s.exec(ctx, `VACUUM ANALYZE once_outbox`, `CHECKPOINT`)
}

func (s *scene) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
