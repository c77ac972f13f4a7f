package dedup_test

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// The estimate of a small table is its number of rows, once the database has analyzed it.
func TestSizeOfTheInbox(t *testing.T) {
	eachLayout(t, func(t *testing.T, db testkit.Database, tables schema.Config) {
		b := newBenchIn(t, db, tables, nil)
		size := func() (live, dead, bytes int64) {
			live, dead, bytes, err := b.inbox.Size(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return live, dead, bytes
		}
		if live, _, _ := size(); live != 0 {
			t.Errorf("%d rows in an empty inbox", live)
		}
		for _, id := range []string{"1", "2", "3"} {
			b.exec(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('` + id + `', 'payments', '')`)
		}
		testkit.Eventually(t, time.Minute, "there are 3 rows", func() bool { // the statistics may count the rows twice for a time
			b.exec(`ANALYZE`)
			live, _, _ := size()
			return live == 3
		})
		_, dead, bytes := size()
		if known := dead >= 0 && bytes > 0; known != (db.Dialect != "sqlite") {
			t.Errorf("%d dead rows, %d bytes", dead, bytes)
		}
	})
}
