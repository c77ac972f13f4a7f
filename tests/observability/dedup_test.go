package observability

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/meta"
)

// moveLag handles messages with the times of a forwarder, and with times that a sender
// has invented. A message that was handled before has no lag.
func moveLag(w *watch, inbox *dedup.Inbox) {
	now := time.Now()
	for id, stamps := range map[string][2]string{
		"sent":           {meta.Stamp(now.Add(-2 * time.Second)), meta.Stamp(now.Add(-time.Second))},
		"ahead":          {meta.Stamp(now.Add(2 * time.Second)), ""}, // the clock of the database is ahead
		"of long ago":    {"2001-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"},
		"of the future":  {"9999-01-01T00:00:00.000Z", meta.Stamp(now.Add(time.Hour))},
		"no time at all": {"yesterday", "-1"},
	} {
		for range 2 {
			msg := message.NewMessage("lag "+id, nil)
			msg.Metadata.Set(meta.CreatedAt, stamps[0])
			msg.Metadata.Set(meta.PublishedAt, stamps[1])
			if _, err := inbox.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg); err != nil {
				w.Error(err)
			}
		}
	}
	for since, want := range map[string]float64{"created": 2, "published": 1} {
		if got := w.value("once.dedup.lag", "once.since="+since); got != want {
			w.Errorf("%v messages have a lag since %s, want %v", got, since, want)
		}
	}
}

// moveSize observes an inbox by day while its retention runs, and while its table is
// missing.
func moveSize(w *watch, db *sql.DB, inbox *dedup.Inbox, seen *seen) {
	if got := w.value("once.dedup.rows", "once.state=live"); got != -1 {
		w.Errorf("%v rows are observed without Run", got)
	}
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- inbox.Run(ctx) }()
	w.exec(db, `INSERT INTO once_inbox (message_id, consumer, digest) SELECT 'size ' || n, 'payments', '' FROM generate_series(1, 300) AS n`)
	w.exec(db, `DELETE FROM once_inbox WHERE message_id LIKE 'size %0'`)
	w.exec(db, `ANALYZE once_inbox`)
	w.reaches(270, "once.dedup.rows", "once.state=live")
	w.reaches(30, "once.dedup.rows", "once.state=dead")
	w.reaches(8192, "once.dedup.size", "")
	if got := w.value("once.dedup.rows", "once.state=live"); got > 1000 { // the statistics may count the rows twice for a time
		w.Errorf("the estimate for 270 rows is %v", got)
	}
	w.exec(db, `ALTER TABLE once_inbox RENAME TO away`)
	if _, err := inbox.Sweep(w.Context()); err == nil {
		w.Error("a sweep without its table works")
	}
	w.exec(db, `ALTER TABLE away RENAME TO once_inbox`)
	for _, outcome := range []string{"ok", "failed"} {
		w.reaches(1, "once.dedup.sweeps", "once.outcome="+outcome)
	}
	seen.look(w) // before the end of Run, which ends the observation
	cancel()
	if err := <-ended; err != nil {
		w.Error(err)
	}
	if got := w.value("once.dedup.rows", "once.state=live"); got != -1 {
		w.Errorf("%v rows are observed after Run", got)
	}
}
