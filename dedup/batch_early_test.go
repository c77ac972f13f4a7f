package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
)

// If the earlier versions of a message are in the same batch, the batch must apply the
// message, in whatever order the messages arrive. A message whose earlier version is
// missing must be postponed by itself, and the other messages of its batch must not be
// postponed.
func TestEarlyMessagesInABatchWaitForTheirVersion(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b, c := inBatches(t, db, 6, nil), &calls{}
		h := ways["each"](b, c, func(tx *sql.Tx, msg *message.Message) error {
			var number, applied int
			if _, err := fmt.Sscanf(msg.UUID, "m%d", &number); err != nil {
				return err
			}
			err := tx.QueryRowContext(context.Background(), `SELECT COUNT(*) FROM effects`).Scan(&applied)
			if err != nil || number == applied {
				return err
			}
			place := disposition.Turn{Sequence: "all", Version: int64(number)}
			return disposition.NotYet(place, time.Minute, errors.New("not yet"))
		})
		msgs := slices.Delete(numbered(7), 4, 5) // m05 and m06 wait for the deleted message
		slices.Reverse(msgs)
		for n, err := range deliver(h, msgs...) {
			switch id := msgs[n].UUID; id {
			case "m05", "m06":
				if v := disposition.Of(err); v.Early == nil || fmt.Sprintf("m%02d", v.Early.Version) != id {
					t.Errorf("%s: %v, early %+v", id, err, v.Early)
				}
			default:
				if err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		}
		b.expect(4, 4, 4)
		if len(c.txs) > 2 {
			t.Errorf("%d transactions, want one that finds the early messages and one that commits", len(c.txs))
		}
	})
}
