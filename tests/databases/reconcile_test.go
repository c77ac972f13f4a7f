package databases

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/schema"
)

// The statements of package reconcile work with pgx too.
func TestReconcileWithPgx(t *testing.T) {
	dsn := kit.Postgres(t).DSN
	db, err := sql.Open("pgx", dsn)
	kit.OK(t, err)
	defer db.Close()
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	for _, query := range []string{
		`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		 SELECT n, CASE WHEN n % 2 = 0 THEN gen_random_uuid()::text ELSE 'order-' || n END, 'orders', '', '{}', at, at
		 FROM (SELECT n, now() - interval '50 hours' + n * interval '10 seconds' AS at FROM generate_series(1, 10000) AS n) AS times`,
		`INSERT INTO once_inbox (message_id, consumer, processed_at, digest)
		 SELECT message_id, 'payments', sent_at, '' FROM once_outbox_sent WHERE id <> 5000`,
		`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('phantom', 'payments', now() - interval '3 hours', '')`,
		`INSERT INTO once_parked (message_id, consumer, topic, state, due_at, digest, envelope, created_at)
		 VALUES ('parked', 'payments', 'orders', 'quarantined', now(), '', '', now() - interval '3 hours')`,
	} {
		kit.Exec(t, db, query)
	}
	s, err := reconcile.NewSender(db, reconcile.SenderConfig{Topics: []string{"orders"}})
	kit.OK(t, err)
	r, err := reconcile.NewReceiver(db, reconcile.ReceiverConfig{Consumers: []string{"payments"}})
	kit.OK(t, err)
	reports, err := reconcile.Compare(t.Context(), s, r)
	kit.OK(t, err)
	got := reports[0]
	if len(got.Missing) != 1 || got.Missing[0].SentLogID != 5000 || len(got.Phantoms) != 2 ||
		got.Parked[0] != (reconcile.Count{State: "quarantined", N: 1, Oldest: got.Parked[0].Oldest}) {
		t.Errorf("got %+v", got)
	}
	lines, err := reconcile.Ledger(t.Context(), db, reconcile.LedgerConfig{By: []string{"day", "tenant"}})
	if err != nil || len(lines) < 3 {
		t.Errorf("got %+v, %v", lines, err)
	}
}
