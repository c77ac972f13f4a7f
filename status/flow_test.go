package status_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

func TestFlowCountsWhatMoves(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		before, err := b.reader.Flow(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if len(before.Handled) != 0 {
			b.Fatalf("before.Handled is %+v, want none", before.Handled)
		}
		for range 5 {
			b.message(b.in(0), "NULL", "NULL")
		}
		b.exec(`DELETE FROM once_outbox WHERE position <= 2`)
		for n, consumer := range []string{"mail", "payments", "payments"} {
			b.exec(fmt.Sprintf(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m%d', '%s', '')`, n, consumer))
		}
		b.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('old', 'old', '', ` + b.in(-time.Minute) + `)`)
		testkit.Eventually(b, time.Minute, "the database has counted", func() bool {
			after, err := b.reader.Flow(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if len(after.Handled) != 2 {
				b.Fatalf("len(after.Handled) is %d, want 2: %+v", len(after.Handled), after.Handled)
			}
			if after.Handled[0].Consumer != "mail" {
				b.Fatalf(`after.Handled[0].Consumer is %q, want "mail"`, after.Handled[0].Consumer)
			}
			if math.Abs(after.Handled[1].PerSecond-2.0/30) > 0.001 {
				b.Fatalf("after.Handled[1].PerSecond is %v, want 2.0/30, give or take 0.001", after.Handled[1].PerSecond)
			}
			return after.Written-before.Written == 5 && after.Removed-before.Removed == 2
		})
	})
}

// If more than 2,000 messages were handled in the last 30 seconds, the rate is that of
// the latest 2,000 messages.
func TestFlowOfManyMessages(t *testing.T) {
	b := newBench(t, testkit.Postgres(t))
	b.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT n, 'payments', '', now() - n * interval '5 milliseconds' FROM generate_series(1, 5000) AS n`)
	flow, err := b.reader.Flow(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	// The rate is 200 a second if the database answers immediately.
	if flow.Handled[0].PerSecond <= 2000.0/30 {
		b.Fatalf("flow.Handled[0].PerSecond is %v, want more than %v", flow.Handled[0].PerSecond, 2000.0/30)
	}
	if flow.Handled[0].PerSecond > 201.0 {
		b.Fatalf("flow.Handled[0].PerSecond is %v, want at most 201.0", flow.Handled[0].PerSecond)
	}
}
