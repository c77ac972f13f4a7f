package databases

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

const foreign = "日本" // not in LATIN1

// Trap 86. schema.Up refuses a database whose encoding is not UTF-8. But tables may
// have been created by hand in such a database, or restored into it from a backup. A
// message that this database cannot store goes to quarantine, and the messages behind
// it are handled.
func TestTextThatTheDatabaseCannotStoreIsQuarantined(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			db := kit.PostgresIn(t, encoding)
			tables, err := schema.SQL(schema.Config{})
			kit.OK(t, err)
			kit.Exec(t, db, tables+`CREATE TABLE effects (payload text)`)
			eachDriver(t, db.DSN, func(t *testing.T, db *sql.DB) {
				for _, mode := range []string{"single", "durable", "batch"} {
					t.Run(mode, func(t *testing.T) { unstorable(t, db, mode, encoding) })
				}
			})
		})
	}
}

func unstorable(t *testing.T, db *sql.DB, mode, encoding string) {
	t.Helper()
	kit.Exec(t, db, `TRUNCATE once_inbox, once_parked, effects`)
	// The test uses single middlewares, because the checks of once.Plugin refuse such a database.
	logs := &kit.Logs{}
	retries, err1 := retry.New(db, retry.Config{
		Policy: retry.Policy{Immediate: -1, Delayed: 1, Base: time.Millisecond}, PollInterval: 10 * time.Millisecond, Logger: logs,
	})
	once, err2 := dedup.New(db, dedup.Config{Logger: logs})
	poisoned, err3 := poison.New(db, poison.Config{Logger: logs})
	entries, err6 := quarantine.New(db, operate.Config{})
	storage, err4 := durable.New(db, durable.Config{Logger: logs})
	router, err5 := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(t, errors.Join(err1, err2, err3, err4, err5, err6))
	transport := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
	sub, middleware := message.Subscriber(transport), once.Middleware
	switch mode {
	case "durable":
		sub = storage.Subscriber(transport)
	case "batch":
		middleware = once.BatchMiddleware
	}
	router.AddMiddleware(poisoned.Middleware, retries.Middleware, middleware)
	router.AddConsumerHandler("worker", "events", retries.Subscriber("worker", sub), func(msg *message.Message) error {
		if string(msg.Payload) == "fails" {
			return errors.New("there is no " + foreign)
		}
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects VALUES ($1)`, string(msg.Payload))
		return err
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := kit.Go(func() error { return router.Run(ctx) })
	select {
	case <-router.Running():
	case err := <-ended:
		t.Fatal(err)
	}
	defer func() {
		stop()
		kit.Check(t, <-ended)
		if t.Failed() {
			t.Log(logs.Lines()[:min(8, len(logs.Lines()))])
		}
	}()

	tenant := message.NewMessage("of a tenant", []byte("a tenant"))
	outbox.SetTenant(tenant, foreign)
	for _, msg := range []*message.Message{
		message.NewMessage(foreign, []byte("an id")), tenant, message.NewMessage("fails", []byte("fails")),
		message.NewMessage("good", []byte("good")),
	} {
		kit.OK(t, transport.Publish("events", msg))
	}
	var payloads, effects []string
	kit.Eventually(t, time.Minute, "each message has an effect or is in quarantine", func() bool {
		payloads, effects = nil, texts(t, db)
		page, err := entries.List(t.Context(), operate.Filter{})
		kit.OK(t, err)
		for _, e := range page.Rows {
			payloads = append(payloads, string(e.Message.Payload))
		}
		return len(payloads)+len(effects) >= 4
	})
	// SQL_ASCII accepts any bytes, and a connection of pgx uses the encoding of the database. In
	// both cases text may be stored as different text.
	client := kit.One[string](t, db, `SHOW client_encoding`)
	refused := encoding == "LATIN1" && client == "UTF8"
	if !slices.Contains(effects, "good") || !slices.Contains(payloads, "fails") || len(payloads)+len(effects) != 4 ||
		refused && (!slices.Contains(payloads, "an id") || !slices.Contains(payloads, "a tenant")) {
		t.Errorf("messages in quarantine: %q, with an effect: %q", payloads, effects)
	}
}

func texts(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	return kit.Lines(t, db, `SELECT payload FROM effects`)
}
