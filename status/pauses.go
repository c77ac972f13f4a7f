package status

import (
	"context"
	"database/sql"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Pause is a topic or a tenant of the outbox whose messages an operator lets wait, see
// pending.Messages.Pause.
type Pause struct {
	// Topic or Tenant is set.
	Topic, Tenant string

	// Actor paused it, at Since, and gave the reason Why.
	Actor, Why string
	Since      time.Time
}

// maxPauses is the maximum number of pauses that are listed.
const maxPauses = 100

func (r *Reader) pauses(ctx context.Context, tx *sql.Tx) (all []Pause, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			p          Pause
			kind, name string
			since      int64
		)
		err := scan(&kind, &name, &p.Actor, &p.Why, &since)
		if kind == outboxrow.PausedTenant {
			p.Tenant = name
		} else {
			p.Topic = name
		}
		p.Since = time.UnixMilli(since).UTC()
		all = append(all, p)
		return err
	}, r.dialect.SQL(`SELECT kind, name, actor, why, {millis paused_at} FROM {pauses} ORDER BY paused_at, kind, name LIMIT $1`), maxPauses)
	return all, err
}
