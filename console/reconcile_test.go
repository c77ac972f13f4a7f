package console_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/schema"
)

func TestReportsOfReconciliationsAreShown(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := benchIn(t, db, nil)
		b.seed()
		archive, err := reconcile.NewArchive(db.DB, schema.Config{Dialect: schema.Dialect(db.Dialect)})
		kit.OK(t, err)
		at := time.Now()
		complete := reconcile.Report{Consumer: "payments", Topics: []string{"orders.placed"}, Sent: 10, Known: 10}
		for range 21 {
			kit.OK(t, archive.Keep(t.Context(), complete))
		}
		kit.OK(t, archive.Keep(t.Context(), reconcile.Report{
			Consumer: "<b>mail", Topics: []string{"orders.placed"}, Sent: 12, Known: 11,
			Missing:  []reconcile.Missing{{MessageID: "sent-1", Topic: "orders.placed", SentLogID: 1, SentAt: at, LastSentAt: at}},
			Phantoms: []reconcile.Phantom{{MessageID: "ghost", State: "quarantined", At: at, Dead: true}},
		}))
		list := b.get("reconcile")
		says(t, list.text, "&lt;b&gt;mail", ">differs<")
		says(t, b.get("reconcile?before=3").text, "report?id=2")
		says(t, list.text, "reconcile?before=3")
		says(t, b.get("report?id=1").text, ">complete<")
		report := b.get("report?id=22").text
		for _, part := range []string{"sent-1", "copy?id=1", "ghost", "a dead letter", "change?do=replay-sent&amp;id=1"} {
			says(t, report, part)
		}
		says(t, b.get("change?do=replay-sent&id=1").text, "1 message")
		b.answers(http.StatusNotFound, http.MethodGet, "report?id=99", nil)
		b.answers(http.StatusBadRequest, http.MethodGet, "reconcile?before=x", nil)
	})
}
