package databases

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

const line = "The database may lose what was acknowledged"

// Trap 91. Each part that starts logs once if the database may lose
// acknowledged commits, and logs nothing for any other database.
func TestStartLogsADatabaseThatMayLoseCommits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		db      kit.Database
		setting string
		says    string
	}{
		"PostgreSQL":      {kit.Postgres(t), `SELECT 1`, ""},
		"PostgreSQL, off": {kit.Postgres(t), `SET synchronous_commit = off`, "synchronous_commit is off"},
		"SQLite":          {kit.SQLite(t), `SELECT 1`, ""},
		"SQLite, off":     {kit.SQLite(t), `PRAGMA synchronous = OFF`, "PRAGMA synchronous is OFF"},
	} {
		t.Run(name, func(t *testing.T) {
			config := schema.Config{Dialect: schema.Dialect(test.db.Dialect)}
			kit.OK(t, schema.Up(t.Context(), test.db.DB, config))
			test.db.SetMaxOpenConns(1) // so that all statements use the session with this setting
			test.db.SetConnMaxIdleTime(0)
			kit.Exec(t, test.db, test.setting)
			for what, start := range map[string]func(t *testing.T, db *sql.DB, config schema.Config, logs *kit.Logs, want int){
				"forwarder": startForwarder, "consumer": startConsumer,
			} {
				var logs kit.Logs
				want := 1
				if test.says == "" {
					want = 0
				}
				start(t, test.db.DB, config, &logs, want)
				if logs.Count(line, test.says) != want {
					t.Errorf("%s: not %d times in %q", what, want, logs.Lines())
				}
			}
		})
	}
}

func startForwarder(t *testing.T, db *sql.DB, config schema.Config, logs *kit.Logs, _ int) {
	t.Helper()
	f, err := forwarder.New(db, nowhere{}, forwarder.Config{Schema: config, Logger: logs})
	kit.OK(t, err)
	until(t, f.Run, func() bool {
		select {
		case <-f.Running():
			return true
		default:
			return false
		}
	})
}

func startConsumer(t *testing.T, db *sql.DB, config schema.Config, logs *kit.Logs, want int) {
	t.Helper()
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: config, Logger: logs})
	kit.OK(t, err)
	// The first sweep removes one expired row.
	insert := `INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('old', 'c', '2020-01-01', '')`
	if config.Dialect == schema.SQLite {
		insert = `INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('old', 'c', 0, '')`
	}
	kit.Exec(t, db, insert)
	until(t, consumer.Run, func() bool {
		n := kit.One[int](t, db, `SELECT count(*) FROM once_inbox`)
		return n == 0 && logs.Count(line) >= want
	})
}

// until runs a part until done returns true. Then it cancels the context of the part, and waits for
// its end.
func until(t *testing.T, run func(ctx context.Context) error, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := kit.Go(func() error { return run(ctx) })
	kit.Eventually(t, time.Minute, "the part has started", done)
	cancel()
	kit.Check(t, <-ended)
}
