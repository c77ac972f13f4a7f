package parkedrows_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
)

func exec(t *testing.T, s *parkedrows.Store, query string, args ...any) {
	t.Helper()
	kit.Exec(t, s.DB(), s.Dialect().SQL(query), args...)
}

// If a consumer gives up on a copy of a message, the waiting row of the message is
// quarantined. A claimed row is not, because its attempt may succeed. A row in a final
// state does not change.
func TestCopyQuarantinesARowThatWaits(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		d := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		failure := parkedrows.Failure{Err: errHandler, Reason: "permanent", Attempts: 2}
		for _, c := range []struct {
			set       string
			state     string
			attempts  int
			untouched bool
		}{
			{`attempts = 3`, parkedrows.Quarantined, 5, false},
			{`state = 'quarantined', attempts = 1`, parkedrows.Quarantined, 3, false},
			{fmt.Sprintf(`attempts = %d`, parkedrows.MaxCount-2), parkedrows.Quarantined, parkedrows.MaxCount, false},
			{fmt.Sprintf(`attempts = %d`, parkedrows.MaxCount-1), parkedrows.Quarantined, parkedrows.MaxCount, false},
			{`token = 'x', owner = 'y'`, parkedrows.Waiting, 0, true},
			{`state = 'held', ordering_key = 'k'`, parkedrows.Held, 0, true},
			{`state = 'resolved'`, parkedrows.Resolved, 0, true},
			{`state = 'discarded'`, parkedrows.Discarded, 0, true},
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

// If only one of two copies of a message could be decoded, the row keeps the content of
// that copy.
func TestCopyThatWasDecodedIsKept(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		d := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		quarantine := func(reason, kind string) {
			t.Helper()
			msg := message.NewMessage("m", nil)
			msg.Metadata["kind"] = kind
			kit.OK(t, kit.Err(s.Quarantine(t.Context(), d, msg, parkedrows.Failure{Err: errHandler, Reason: reason, Attempts: 1}, nil)))
		}
		is := func(reason, kind, key string) {
			t.Helper()
			var envelope []byte
			var gotReason, gotKey string
			kit.OK(t, db.QueryRowContext(t.Context(), `SELECT envelope, reason, COALESCE(dedup_key, 'none') FROM once_parked`).
				Scan(&envelope, &gotReason, &gotKey))
			msg, err := parkedrows.Decode(envelope)
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

// If the Recorder of an entry fails, nothing is stored, and the claim can be settled
// later.
func TestEntryWithoutItsRecordIsNotStored(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		deliver(t, s, "m")
		c := claim(t, s, selection)[0]
		refused := errors.New("refused")
		committed := false
		_, err := s.Quarantine(t.Context(), &parkedrows.Delivery{Consumer: "c", Claim: c.Claim}, nil, parkedrows.Failure{Err: errHandler},
			func(context.Context, *sql.Tx, int64) (func(), error) { return func() { committed = true }, refused })
		if !errors.Is(err, refused) || committed || c.Settled() {
			t.Errorf("%v, committed %t, settled %t", err, committed, c.Settled())
		}
		if row := rows.Parked(t, s)[0]; row.State != parkedrows.Waiting || row.Crashes != 1 {
			t.Errorf("the row is %+v", row)
		}
		_, err = s.Quarantine(t.Context(), &parkedrows.Delivery{Consumer: "c", Claim: c.Claim}, nil, parkedrows.Failure{}, nil)
		if err != nil || !c.Settled() {
			t.Errorf("%v, settled %t", err, c.Settled())
		}
		if row := rows.Parked(t, s)[0]; row.State != parkedrows.Quarantined || row.Crashes != 0 {
			t.Errorf("the row is %+v", row)
		}
	})
}

// A redelivered message is parked before its handler runs. Such a row has no failure.
func TestRowOfARedeliveredMessageHasNotFailed(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		d := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		for id, f := range map[string]parkedrows.Failure{"redelivered": {}, "failed": {
			Err: errHandler, Reason: "failed", Attempts: 2,
			Rounds: 1,
		}} {
			kit.OK(t, s.Park(t.Context(), d, message.NewMessage(id, nil), f, 0))
		}
		for _, row := range rows.Parked(t, s) {
			failed := row.MessageID == "failed"
			if row.FirstFailedAt.IsZero() == failed || row.LastFailedAt.IsZero() == failed || (row.Error != "") != failed ||
				(row.ErrorType != "") != failed || (row.Fingerprint != "") != failed || (row.Attempts == 2 && row.Rounds == 1) != failed {
				t.Errorf("the row is %+v", row)
			}
		}
	})
}

// The count of waiting rows stops at 100,000, so that it costs little.
func TestBacklogCountsUpToItsLimit(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.Postgres(t)
	s := newStore(t, db)
	fill(t, db, "live", "", 50_001)
	exec(t, s, `INSERT INTO {parked} (consumer, topic, message_id, digest, envelope, state, crashes, due_at)
		SELECT 'c', 't', n, '', '', 'waiting', 1, now() FROM generate_series(1, 50001) AS n`)
	if b, err := s.Backlog(t.Context()); err != nil || b.Waiting != 100_000 {
		t.Errorf("%d rows wait, %v; want 100,000", b.Waiting, err)
	}
}

// Backlog returns the number of waiting rows, the time since the oldest of them became
// due, and the number of blocked keys. A claimed row is not due.
func TestBacklogCountsWhatWaits(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		is := func(waiting, forKey, blocked int64, lag time.Duration) {
			t.Helper()
			b, err := s.Backlog(t.Context())
			if err != nil || b.Waiting != waiting || b.WaitingForKey != forKey || b.BlockedKeys != blocked ||
				b.Lag < lag || b.Lag > lag+time.Minute {
				t.Errorf("%+v, %v; want %d, %d, %d and %v", b, err, waiting, forKey, blocked, lag)
			}
		}
		is(0, 0, 0, 0)
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a"), message.NewMessage("m1", nil)))
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

// Forget deletes only rows of handled messages that are old enough, the oldest first.
// It does not delete replayed rows, because they show the outcome of their replay.
func TestForgetDeletesOldHandledRows(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
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

func ids(t *testing.T, s *parkedrows.Store) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, row := range rows.Parked(t, s) {
		all[row.MessageID] = true
	}
	return all
}
