package observability

import (
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/reconcile"
)

// moveReconcile runs a comparison that fails, and a comparison that finds a missing message and a
// message that was never sent.
func moveReconcile(w *watch, seen *seen) {
	db := w.database()
	s, err := reconcile.NewSender(db, reconcile.SenderConfig{Topics: []string{"orders"}, MeterProvider: w.meters})
	kit.OK(w, err)
	r, err := reconcile.NewReceiver(db, reconcile.ReceiverConfig{Consumers: []string{"payments"}})
	kit.OK(w, err)
	w.zero("once.reconcile.")
	if _, err := reconcile.Compare(w.Context(), s, r); err == nil {
		w.Error("an empty sent log was compared")
	}
	for _, row := range []struct{ ago, sent, handled string }{{"50 hours", "first", "first"}, {"3 hours", "lost", "phantom"}} {
		w.exec(db, `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
			VALUES (1, '`+row.sent+`', 'orders', '', '{}', now() - interval '`+row.ago+`', now() - interval '`+row.ago+`')`)
		w.exec(db, `INSERT INTO once_inbox (message_id, consumer, processed_at, digest)
			VALUES ('`+row.handled+`', 'payments', now() - interval '`+row.ago+`', '')`)
	}
	w.exec(db, `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		VALUES (1, 'lost, too', 'orders', '', '{}', now() - interval '3 hours', now() - interval '3 hours')`)
	kit.Check(w, kit.Err(reconcile.Compare(w.Context(), s, r)))
	for name, series := range map[string]map[string]float64{
		"once.reconcile.runs":     {"once.outcome=ok": 1, "once.outcome=failed": 1},
		"once.reconcile.compared": {"": 2},
		"once.reconcile.found":    {"once.reason=missing": 2, "once.reason=phantom": 1},
	} {
		for one, want := range series {
			w.want(want, name, one)
		}
	}
	seen.look(w)
}
