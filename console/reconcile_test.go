package console_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/reconcile"
	"github.com/watermill-once/once/schema"
)

func TestReportsOfReconciliationsAreShown(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := benchIn(t, db, nil)
		b.seed()
		archive, err := reconcile.NewArchive(db.DB, schema.Config{Dialect: schema.Dialect(db.Dialect)})
		require.NoError(t, err)
		at := time.Now()
		complete := reconcile.Report{Consumer: "payments", Topics: []string{"orders.placed"}, Sent: 10, Known: 10}
		for range 21 {
			require.NoError(t, archive.Keep(t.Context(), complete))
		}
		require.NoError(t, archive.Keep(t.Context(), reconcile.Report{
			Consumer: "<b>mail", Topics: []string{"orders.placed"}, Sent: 12, Known: 11,
			Missing:  []reconcile.Missing{{MessageID: "sent-1", Topic: "orders.placed", SentLogID: 1, SentAt: at, LastSentAt: at}},
			Phantoms: []reconcile.Phantom{{MessageID: "ghost", State: reconcile.Quarantined, At: at, Dead: true}},
		}))
		list := b.get("reconcile")
		assert.Contains(t, list.text, "&lt;b&gt;mail")
		assert.Contains(t, list.text, ">differs<")
		assert.Contains(t, b.get("reconcile?before=3").text, "report?id=2")
		assert.Contains(t, list.text, "reconcile?before=3")
		assert.Contains(t, b.get("report?id=1").text, ">complete<")
		report := b.get("report?id=22").text
		for _, part := range []string{"sent-1", "copy?id=1", "ghost", "a dead letter", "change?do=replay-sent&amp;id=1"} {
			assert.Contains(t, report, part)
		}
		assert.Contains(t, b.get("change?do=replay-sent&id=1").text, "1 message")
		assert.Equal(t, http.StatusNotFound, b.do(http.MethodGet, "report?id=99", nil).StatusCode)
		assert.Equal(t, http.StatusBadRequest, b.do(http.MethodGet, "reconcile?before=x", nil).StatusCode)
	})
}
