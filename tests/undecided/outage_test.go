package undecided

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// If the database goes down twice while a handler runs, no attempt of the message is
// counted. The policy allows only one attempt, so otherwise the message would be in
// quarantine.
func TestOutageCountsAsNoAttempt(t *testing.T) {
	for name, open := range drivers {
		for mode := range modes {
			if name != "libpq" && mode != "single" {
				continue // the errors depend on the driver, and not on the mode
			}
			t.Run(name+"/"+mode, func(t *testing.T) {
				if name != "libpq" || mode != "single" && mode != "batch" {
					testkit.Long(t)
				}
				t.Parallel()
				server := testkit.PrivatePostgres(t)
				db, err := open(server.DSN("postgres"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				ends, restarted, up := 0, make(chan error, 2), make(chan struct{})
				isUp := sync.OnceFunc(func() { close(up) })
				w := newWorld(t, testkit.Database{DB: db, Dialect: "postgres"}, mode,
					func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
						if ends++; ends > 2 {
							return nil
						}
						if ends == 2 { // the server accepts connections before Restart returns
							<-up
						}
						server.Stop()
						time.AfterFunc(300*time.Millisecond, func() { // meanwhile some calls of the handler fail
							err := server.Restart(context.WithoutCancel(t.Context()))
							isUp()
							restarted <- err
						})
						return statement(`SELECT 1`)(ctx, tx, nil)
					},
					func(c *once.ConsumerConfig) { c.Retry.Policy = retry.Policy{Immediate: -1, Delayed: -1} })
				w.deliver(1, "m")
				for range 2 {
					if err := <-restarted; err != nil {
						t.Fatal(err)
					}
				}
				testkit.Eventually(t, time.Minute, "the message takes effect", func() bool {
					var n int // the database may not be up again yet
					return db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM effects`).Scan(&n) == nil && n == 1
				})
				page, err := w.consumer.Quarantine().List(t.Context(), poison.Filter{})
				if err != nil || len(page.Entries) > 0 || ends != 3 {
					t.Fatalf("in quarantine are %v after %d calls, %v", page.Entries, ends, err)
				}
			})
		}
	}
}
