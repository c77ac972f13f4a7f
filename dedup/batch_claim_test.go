package dedup_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// A batch waits for a duplicate of one of its messages for at most a second, so that the
// other messages continue soon. A message in its own transaction waits for LockTimeout.
// The statements of a handler use the lock_timeout of their connection.
func TestBatchWaitsAtMostASecondForADuplicate(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]string{
		10 * time.Second:       "10s, handler: 0, 1s, 1s, handler: 0, handler: 0",
		500 * time.Millisecond: "500ms, handler: 0, 500ms, 500ms, handler: 0, handler: 0",
	} {
		b := inBatches(t, testkit.Postgres(t), 2, func(c *dedup.Config) { c.LockTimeout = timeout })
		b.exec(`CREATE TABLE timeouts (n bigint GENERATED ALWAYS AS IDENTITY, value text);
			CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN INSERT INTO timeouts (value) VALUES (current_setting('lock_timeout')); RETURN NEW; END $$;
			CREATE TRIGGER look BEFORE INSERT ON once_inbox FOR EACH ROW EXECUTE FUNCTION look()`)
		h := b.inbox.BatchMiddleware(func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			_, err := tx.ExecContext(msg.Context(), `INSERT INTO timeouts (value) VALUES ('handler: ' || current_setting('lock_timeout'))`)
			return nil, err
		})
		alone := message.NewMessage("alone", nil)
		alone.SetContext(parked.WithTried(t.Context(), alone, true)) // it failed before
		noErrors(t, deliver(h, alone))
		noErrors(t, deliver(h, numbered(2)...))
		var got string
		if err := b.QueryRowContext(t.Context(), `SELECT string_agg(value, ', ' ORDER BY n) FROM timeouts`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("LockTimeout %v: lock_timeout is %s, want %s", timeout, got, want)
		}
	}
}
