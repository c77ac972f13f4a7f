package dedup_test

import (
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// The estimate of a small table is its number of rows, once the database has analyzed it.
func TestSizeOfTheInbox(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
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
		b.exec(`ANALYZE`)
		live, dead, bytes := size()
		if live < 3 || live > 6 { // the statistics may count the rows twice for a time
			t.Errorf("%d rows, want 3", live)
		}
		if known := dead >= 0 && bytes > 0; known != (db.Dialect != "sqlite") {
			t.Errorf("%d dead rows, %d bytes", dead, bytes)
		}
	})
}
