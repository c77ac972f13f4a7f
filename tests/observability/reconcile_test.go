package observability

import (
	"github.com/watermill-once/once/operate/reconcile"
)

// moveReconcile runs a comparison that fails, and a comparison that finds a missing message and a
// message that was never sent.
func moveReconcile(w *watch, seen *seen) {
	db := w.database()
	s, err := reconcile.NewSender(db, reconcile.SenderConfig{Topics: []string{"orders"}, MeterProvider: w.meters})
	if err != nil {
		w.Fatal(err)
	}
	r, err := reconcile.NewReceiver(db, reconcile.ReceiverConfig{Consumers: []string{"payments"}})
	if err != nil {
		w.Fatal(err)
	}
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
	if _, err := reconcile.Compare(w.Context(), s, r); err != nil {
		w.Error(err)
	}
	for name, series := range map[string][]string{
		"once.reconcile.runs":     {"once.outcome=ok", "once.outcome=failed"},
		"once.reconcile.compared": {""},
		"once.reconcile.found":    {"once.reason=missing", "once.reason=phantom"},
	} {
		for _, one := range series {
			if got := w.value(name, one); got != 1 {
				w.Errorf("%s{%s} is %v, want 1", name, one, got)
			}
		}
	}
	seen.look(w)
}
