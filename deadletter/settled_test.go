package deadletter_test

import (
	"context"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// A row of the sent log may be committed after a row with a higher ID. SettledID waits
// for the commit of the first row.
func TestSettledIDWaitsForEarlierRows(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		id, err := b.log.SettledID(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if id != 0 {
			b.Fatalf("id is %d, want 0", id)
		}
		b.record("t", msg("first", ""), msg("second", ""))
		id, err = b.log.SettledID(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if id != 2 {
			b.Fatalf("id is %d, want 2", id)
		}
		if b.sqlite() {
			return
		}

		b.publish("t", msg("slow", ""))
		slow, err := b.db.BeginTx(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = slow.Rollback() }()
		for _, query := range []string{ // as a forwarder does it
			`DELETE FROM once_outbox`,
			`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at) VALUES (9, 'slow', 't', '', '{}', now())`,
		} {
			if _, err := slow.ExecContext(b.Context(), query); err != nil {
				b.Fatal(err)
			}
		}
		b.record("t", msg("quick", ""))
		testkit.Waits(b, "has not ended", func(ctx context.Context) error {
			_, err := b.log.SettledID(ctx)
			return err
		})
		if err := slow.Commit(); err != nil {
			b.Fatal(err)
		}
		id, err = b.log.SettledID(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if id != 4 {
			b.Fatalf("id is %d, want 4", id)
		}
	})
}
