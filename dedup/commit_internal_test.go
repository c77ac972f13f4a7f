package dedup

import (
	"database/sql"
	"errors"
	"io"
	"testing"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/schema"
)

// A failed check of a transaction is the handler's fault only if the transaction has
// ended. After a lost connection the outcome is undecided, although the handler has
// run.
func TestFailedCheckTellsTheHandlersFaultFromALostConnection(t *testing.T) {
	t.Parallel()
	refused := &pq.Error{Code: "23514", Message: "refused"}
	full := &pq.Error{Code: "53100", Message: "no space left on device"}
	ended := &pq.Error{Code: "42704", Message: `unrecognized configuration parameter "` + endedParameter + `"`}
	for _, c := range []struct {
		dialect schema.Dialect
		err     error
		want    disposition.Kind
	}{
		{"postgres", io.ErrUnexpectedEOF, disposition.Undecided},
		{"postgres", full, disposition.Undecided},
		{"postgres", refused, disposition.Failed},
		{"postgres", ended, disposition.Permanent},
		{"postgres", sql.ErrTxDone, disposition.Permanent},
		{"sqlite", errors.New("no such savepoint: " + savepoint), disposition.Permanent},
		{"sqlite", sql.ErrTxDone, disposition.Permanent},
		{"sqlite", errors.New("refused"), disposition.Failed},
	} {
		d, err := dialect.New(schema.Config{Dialect: c.dialect})
		if err != nil {
			t.Fatal(err)
		}
		got := (&Inbox{dialect: d}).checkError(c.err)
		if v := disposition.Of(got); v.Kind != c.want || v.NotCalled || !errors.Is(got, c.err) {
			t.Errorf("%s: %v becomes %v, disposition %d", c.dialect, c.err, got, v.Kind)
		}
	}
}
