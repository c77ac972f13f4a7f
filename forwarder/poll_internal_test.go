package forwarder

import (
	"testing"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
)

// A poll after an empty sweep first checks whether there are rows. The check finds
// everything that a sweep would report: rows to send, slots without an owner, new
// pauses and blocked keys.
func TestPollFirstAsksWhetherThereAreRows(t *testing.T) {
	t.Parallel()
	eachCounted(t, func(t *testing.T, server testkit.Database, s *store, trips *counting) {
		exec := func(query string) {
			t.Helper()
			if _, err := server.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		sweep := func(read dispatch.Read) found {
			t.Helper()
			read.Slots, read.Limit, read.Bytes = []int64{0}, 10, 1<<20
			got, err := s.rows(t.Context(), &read)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		poll := func() found { t.Helper(); return sweep(dispatch.Read{Poll: true}) }
		insert := func(slot, values string) {
			t.Helper()
			exec(`INSERT INTO once_outbox (message_id, topic, payload, metadata, slot, due_at)
				VALUES ('m1', 'topic', '', '{}', ` + slot + `, ` + values + `)`)
		}
		empty := func(reason string) {
			t.Helper()
			if got := poll(); len(got.rows) != 0 || got.reach.Covered != dispatch.Everything || got.reach.Horizon <= 0 ||
				got.reach.Ceiling < got.reach.Horizon {
				t.Fatalf("%s: got %d rows, %+v", reason, len(got.rows), got.reach)
			}
		}
		finds := func(reason string) {
			t.Helper()
			if got := poll(); len(got.rows) != 1 || got.rows[0].ID != "m1" {
				t.Fatalf("%s: got %d rows, want the row", reason, len(got.rows))
			}
			exec(`DELETE FROM once_outbox`)
			empty("the row is deleted")
			empty("the row is deleted")
		}
		empty("the first poll")
		empty("the second poll")
		if !s.quiet {
			t.Fatal("after an empty sweep, the next poll does not ask first")
		}

		insert("0", "NULL")
		finds("a row")
		insert("0", "now() - interval '1 second'")
		finds("a row that is due")
		insert("0", "now() + interval '1 hour'")
		empty("a delayed row")
		empty("a delayed row")
		exec(`DELETE FROM once_outbox`)

		insert("1", "NULL")
		empty("a row of another slot")
		if s.quiet {
			t.Fatal("while rows of another slot wait, each poll asks first")
		}
		exec(`DELETE FROM once_outbox`)
		empty("the row is deleted")

		exec(`UPDATE once_slots SET owner = 'other', lease_until = now() + interval '1 hour'`)
		if poll().unowned {
			t.Fatal("all slots have owners, but the poll reports one without")
		}
		exec(`UPDATE once_slots SET lease_until = now() - interval '1 second' WHERE slot = 7`)
		if !poll().unowned {
			t.Fatal("the poll does not report a slot without an owner")
		}
		exec(`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'topic', 'ann', 'lunch')`)
		if got := poll().reach.Pauses; len(got.Topics) != 1 {
			t.Fatalf("the poll reports the pauses %+v, want the topic", got)
		}
		exec(`DELETE FROM once_pauses`)
		exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 7, 7, 'refused')`)
		if got := poll().reach.Horizon; got != 0 || !s.inTx {
			t.Fatalf("a key is blocked: the horizon is %d, want 0 and then a read in a transaction", got)
		}
		exec(`DELETE FROM once_blocked_keys`)
		poll()
		empty("no key is blocked")

		// After a hint there are rows, so the check would only take time.
		trips.writes.Store(0)
		sweep(dispatch.Read{})
		if got := trips.writes.Load(); got > 2 { // on a busy machine, pgx pings a connection that was idle for a second
			t.Fatalf("a sweep after a hint took %d round trips", got)
		}
		insert("0", "NULL")
		if got := sweep(dispatch.Read{Poll: true, Known: []int64{1 << 40}}); len(got.rows) != 1 {
			t.Fatalf("with rows in memory, got %d rows", len(got.rows))
		}
	})
}
