package undecided

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
)

// limit is how long the middlewares of the router let a handler run. It is so long that
// no other message reaches it on a busy machine.
const limit = time.Second

// limits contains middlewares around the chain that end the context of a message.
var limits = map[string]message.HandlerMiddleware{
	"deadline": middleware.Timeout(limit),
	"cancel": func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithCancel(msg.Context())
			defer cancel()
			defer time.AfterFunc(limit, cancel).Stop()
			msg.SetContext(ctx)
			return h(msg)
		}
	},
}

// slowAttempts is the number of attempts of a slow message. The other messages of its
// batch may need several of them on a busy machine.
const slowAttempts = 4

// slow contains handlers that take longer than limit.
var slow = map[string]failure{
	"waits": {handle: func(ctx context.Context, _ *sql.Tx, _ *message.Message) error {
		<-ctx.Done()
		return ctx.Err()
	}},
	"waits, in other words": {says: []string{"too slow"}, handle: func(ctx context.Context, _ *sql.Tx, _ *message.Message) error {
		<-ctx.Done()
		return errors.New("too slow")
	}},
	executesAStatement: {handle: func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(600)`)
		return err
	}},
}

const executesAStatement = "executes a statement"

// slowIn returns the handlers for a database. SQLite has no statement that sleeps, so the handler
// uses a query that never ends.
func slowIn(dialect string) map[string]failure {
	all := maps.Clone(slow)
	if dialect == "sqlite" {
		all[executesAStatement] = failure{handle: func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
			const endless = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n`
			var n int
			return tx.QueryRowContext(ctx, endless).Scan(&n)
		}}
	}
	return all
}

// A middleware of the router ends the context of a message, as Watermill's Timeout
// does. No further transaction can begin for this delivery. An attempt is charged
// nevertheless, because the subscription continues: this is not a shutdown. Each mode
// runs with each driver. The middlewares alternate, so that each mode and each driver
// runs with both of them.
//
// With -short it runs with two modes, and without SQLite, whose query uses a whole core until
// the context ends.
func TestContextThatEndsBeforeTheHandlerIsCharged(t *testing.T) {
	t.Parallel()
	hows := slices.Sorted(maps.Keys(limits))
	for m, mode := range slices.Sorted(maps.Keys(modes)) {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			eachNumberedDriver(t, func(t *testing.T, driver int, db kit.Database) {
				if db.Dialect == "sqlite" || mode != "single" && mode != "batch" {
					kit.Long(t)
				}
				t.Parallel()
				how := hows[(m+driver)%len(hows)]
				t.Log(how)
				failing := slowIn(db.Dialect)
				w := newWorld(t, db, mode, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
					if f, bad := failing[msg.UUID]; bad {
						return f.handle(ctx, tx, msg)
					}
					return nil
				}, func(c *once.ConsumerConfig) { c.Retry.Policy.Immediate, c.Retry.Policy.Delayed = 2, slowAttempts-1 }, limits[how])
				for name := range failing {
					good := numbered(name, 5)
					w.deliver(8, append(append(good[:3:3], name), good[3:]...)...)
				}
				for name, f := range failing {
					f.attempts = slowAttempts
					w.isCharged(mode, name, f, numbered(name, 5))
				}
			})
		})
	}
}
