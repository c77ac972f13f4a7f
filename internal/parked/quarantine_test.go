package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
)

func exec(t *testing.T, s *parked.Store, query string, args ...any) {
	t.Helper()
	if _, err := s.DB().ExecContext(t.Context(), s.Dialect().SQL(query), args...); err != nil {
		t.Fatal(err)
	}
}

// A copy of a message that is given up on quarantines the row that waits, but not a row
// that is claimed, because its attempt may succeed, and not one that has ended.
func TestCopyQuarantinesARowThatWaits(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		d := &parked.Delivery{Consumer: "c", Topic: "t"}
		failure := parked.Failure{Err: errHandler, Reason: "permanent", Attempts: 2}
		for _, c := range []struct {
			set       string
			state     string
			attempts  int
			untouched bool
		}{
			{`attempts = 3`, parked.Quarantined, 5, false},
			{`state = 'quarantined', attempts = 1`, parked.Quarantined, 3, false},
			{fmt.Sprintf(`attempts = %d`, parked.MaxCount-2), parked.Quarantined, parked.MaxCount, false},
			{fmt.Sprintf(`attempts = %d`, parked.MaxCount-1), parked.Quarantined, parked.MaxCount, false},
			{`token = 'x', owner = 'y'`, parked.Waiting, 0, true},
			{`state = 'held', ordering_key = 'k'`, parked.Held, 0, true},
			{`state = 'resolved'`, parked.Resolved, 0, true},
			{`state = 'discarded'`, parked.Discarded, 0, true},
		} {
			exec(t, s, `DELETE FROM {parked}`)
			deliver(t, s, "m")
			exec(t, s, `UPDATE {parked} SET `+c.set)
			recorded, committed := 0, 0
			id, err := s.Quarantine(t.Context(), d, message.NewMessage("m", nil), failure, func(context.Context, *sql.Tx, int64) (func(), error) {
				recorded++
				return func() { committed++ }, nil
			})
			if err != nil || (id == 0) != c.untouched {
				t.Errorf("%s: row %d, %v", c.set, id, err)
			}
			if want := map[bool]int{false: 1}[c.untouched]; recorded != want || committed != want {
				t.Errorf("%s: recorded %d times, committed %d times", c.set, recorded, committed)
			}
			row := rows.Parked(t, s)[0]
			if row.State != c.state || row.Attempts != c.attempts || c.untouched != (row.Reason == "") {
				t.Errorf("%s: the row is %+v", c.set, row)
			}
		}
	})
}

// If one of two copies could be decoded, its content is kept.
func TestCopyThatWasDecodedIsKept(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		d := &parked.Delivery{Consumer: "c", Topic: "t"}
		quarantine := func(reason, kind string) {
			t.Helper()
			msg := message.NewMessage("m", nil)
			msg.Metadata["kind"] = kind
			if _, err := s.Quarantine(t.Context(), d, msg, parked.Failure{Err: errHandler, Reason: reason, Attempts: 1}, nil); err != nil {
				t.Fatal(err)
			}
		}
		is := func(reason, kind, key string) {
			t.Helper()
			var envelope []byte
			var gotReason, gotKey string
			err := db.QueryRowContext(t.Context(), `SELECT envelope, reason, COALESCE(dedup_key, 'none') FROM once_parked`).
				Scan(&envelope, &gotReason, &gotKey)
			if err != nil {
				t.Fatal(err)
			}
			msg, err := parked.Decode(envelope)
			if err != nil || msg.Metadata["kind"] != kind || gotReason != reason || gotKey != key {
				t.Errorf("the row has the reason %q, key %q and %v, %v; want %q, %q and kind %q", gotReason, gotKey, msg, err, reason, key, kind)
			}
		}
		quarantine("undecodable", "raw 1")
		exec(t, s, `UPDATE {parked} SET dedup_key = 'key:raw'`)
		quarantine("undecodable", "raw 2")
		is("undecodable", "raw 2", "none")
		exec(t, s, `UPDATE {parked} SET dedup_key = 'key:raw'`)
		quarantine("permanent", "decoded 1")
		is("permanent", "decoded 1", "none")
		exec(t, s, `UPDATE {parked} SET dedup_key = 'key:decoded'`)
		quarantine("exhausted", "decoded 2")
		is("exhausted", "decoded 1", "key:decoded")
		quarantine("undecodable", "raw 3")
		is("exhausted", "decoded 1", "key:decoded")
	})
}

// If the record of an entry fails, nothing is stored, and the claim can be settled later.
func TestEntryWithoutItsRecordIsNotStored(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "m")
		c := claim(t, s, selection)[0]
		refused := errors.New("refused")
		committed := false
		_, err := s.Quarantine(t.Context(), &parked.Delivery{Consumer: "c", Claim: c.Claim}, nil, parked.Failure{Err: errHandler},
			func(context.Context, *sql.Tx, int64) (func(), error) { return func() { committed = true }, refused })
		if !errors.Is(err, refused) || committed || c.Settled() {
			t.Errorf("%v, committed %t, settled %t", err, committed, c.Settled())
		}
		if row := rows.Parked(t, s)[0]; row.State != parked.Waiting || row.Crashes != 1 {
			t.Errorf("the row is %+v", row)
		}
		_, err = s.Quarantine(t.Context(), &parked.Delivery{Consumer: "c", Claim: c.Claim}, nil, parked.Failure{}, nil)
		if err != nil || !c.Settled() {
			t.Errorf("%v, settled %t", err, c.Settled())
		}
		if row := rows.Parked(t, s)[0]; row.State != parked.Quarantined || row.Crashes != 0 {
			t.Errorf("the row is %+v", row)
		}
	})
}

// Backlog counts rows that wait, how long the oldest of them has been due, and blocked
// keys. A claimed row is not due.
func TestBacklogCountsWhatWaits(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		is := func(waiting, forKey, blocked int64, lag time.Duration) {
			t.Helper()
			b, err := s.Backlog(t.Context())
			if err != nil || b.Waiting != waiting || b.WaitingForKey != forKey || b.BlockedKeys != blocked ||
				b.Lag < lag || b.Lag > lag+time.Minute {
				t.Errorf("%+v, %v; want %d, %d, %d and %v", b, err, waiting, forKey, blocked, lag)
			}
		}
		is(0, 0, 0, 0)
		if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a"), message.NewMessage("m1", nil)); err != nil {
			t.Fatal(err)
		}
		deliver(t, s, "m2", "m3")
		exec(t, s, `UPDATE {parked} SET due_at = {after $1} WHERE message_id = 'm1'`, -time.Hour.Milliseconds())
		exec(t, s, `UPDATE {parked} SET due_at = {after $1} WHERE message_id = 'm2'`, time.Hour.Milliseconds())
		exec(t, s, `UPDATE {parked} SET due_at = {after $1}, crashes = 2 WHERE message_id = 'm3'`, -2*time.Hour.Milliseconds())
		is(4, 1, 0, 2*time.Hour)
		exec(t, s, `UPDATE {parked} SET due_at = {after $1} WHERE message_id IN ('m1', 'm3', 'a1')`, time.Hour.Milliseconds())
		if b, err := s.Backlog(t.Context()); err != nil || b.Lag != 0 {
			t.Errorf("nothing is due, and the lag is %v, %v", b.Lag, err)
		}
		exec(t, s, `UPDATE {parked} SET state = 'quarantined' WHERE message_id IN ('m1', 'a1')`)
		is(2, 1, 1, 0)
		exec(t, s, `UPDATE {parked} SET state = 'resolved'`)
		is(0, 0, 0, 0)
	})
}

// Forget deletes only rows of handled messages that are old enough, the oldest first, and
// no replayed ones: they show the outcome of their replay.
func TestForgetDeletesOldHandledRows(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "older", "old", "new", "replayed", "discarded", "waiting", "of another topic", "of another")
		finish := func(id string, ago time.Duration, set string) {
			t.Helper()
			exec(t, s, `UPDATE {parked} SET finished_at = {after $1}, `+set+` WHERE message_id = $2`, -ago.Milliseconds(), id)
		}
		finish("older", 3*time.Hour, `state = 'resolved'`)
		finish("old", 2*time.Hour, `state = 'resolved'`)
		finish("new", time.Minute, `state = 'resolved'`)
		finish("replayed", 4*time.Hour, `state = 'resolved', replays = 1`)
		finish("discarded", 4*time.Hour, `state = 'discarded'`)
		finish("of another topic", 4*time.Hour, `state = 'resolved', topic = 'u'`)
		finish("of another", 4*time.Hour, `state = 'resolved', consumer = 'd'`)
		for _, want := range []string{"older", "old", ""} {
			before := ids(t, s)
			n, err := s.Forget(t.Context(), "t", "c", time.Hour, 1)
			if wanted := map[bool]int64{true: 1}[want != ""]; err != nil || n != wanted {
				t.Errorf("%d rows are deleted, %v; want %q", n, err, want)
			}
			if after := ids(t, s); before[want] && after[want] || len(after) != len(before)-int(n) {
				t.Errorf("%v are left, want all but %q", after, want)
			}
		}
	})
}

func ids(t *testing.T, s *parked.Store) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, row := range rows.Parked(t, s) {
		all[row.MessageID] = true
	}
	return all
}
