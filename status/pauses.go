package status

import (
	"context"
	"database/sql"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Pause describes a paused topic or tenant of the outbox. The messages of the topic or
// tenant wait until an operator ends the pause, see pending.Messages.Pause.
type Pause struct {
	// Either Topic or Tenant is set.
	Topic, Tenant string

	// Actor is the person who paused the topic or tenant, and Why is the reason. Since is
	// the time of the pause.
	Actor, Why string
	Since      time.Time
}

// maxPauses is the maximum number of listed pauses.
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
