package forwarder

import (
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/sentdays"
	"github.com/watermill-once/once/internal/testkit"
)

// Old days are dropped again and again. If this user cannot drop them, the log says so
// once. A failure is tried again after a pause.
func TestOldDaysOfTheSentLogAreDroppedFromTimeToTime(t *testing.T) {
	t.Parallel()
	l, logs := idle()
	l.config.KeepSent = 24 * time.Hour
	began := time.Now().Add(-time.Second)
	for _, days := range []sentdays.Result{{ByDay: true, Owner: true}, {ByDay: true}, {ByDay: true}} {
		l.log.busy, l.log.next = true, time.Time{}
		l.sweptDays(days, began, nil)
		if l.log.busy || !l.log.next.Equal(began.Add(time.Minute)) {
			t.Errorf("%+v: busy is %t, and the next sweep follows after %v, want a minute", days, l.log.busy, l.log.next.Sub(began))
		}
	}
	if logs.Count("INFO The sent log is partitioned by day", "table="+l.config.Schema.Table("outbox_sent"), "once sweep") != 1 ||
		len(logs.Lines()) != 1 {
		t.Errorf("got %q", logs.Lines())
	}
	l.log = sentLog{busy: true}
	l.sweptDays(sentdays.Result{}, began, errors.New("no database"))
	if l.log.busy || l.log.fault.attempts != 1 || l.log.told || logs.Count("partitioned") != 1 {
		t.Errorf("after a failure: %+v, %q", l.log, logs.Lines())
	}
}

// If a batch was full, more old rows are probably left, so the next batch follows soon.
func TestFullBatchOfTheSentLogIsFollowedSoon(t *testing.T) {
	t.Parallel()
	l, _ := idle()
	l.config.KeepSent = 24 * time.Hour
	owner, exec := ownerOfAll(t, testkit.SQLite(t))
	l.store = owner
	l.scheduler.SetSlots([]int64{0})
	for range 2 {
		l.log.portion.Did(false)
	}
	exec(owner.dialect.SQL(`INSERT INTO {outbox_sent} (position, message_id, topic, payload, metadata, created_at, sent_at)
		WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 250)
		SELECT n, 'm', 't', '', '{}', {now}, {after -90000000} FROM s`))
	for _, soon := range []bool{true, false} {
		now := time.Now()
		l.log.next = time.Time{}
		if l.forgetSent(now); !l.log.busy {
			t.Fatal("no batch is deleted")
		}
		(<-l.done)()
		if got := l.log.next.Before(now.Add(time.Minute)); got != soon {
			t.Errorf("the next batch follows after %v, want soon: %t", l.log.next.Sub(now), soon)
		}
	}
}
