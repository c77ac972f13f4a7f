package parked_test

import (
	"testing"
	"time"

	"github.com/watermill-once/once/parked"
)

func TestGetReturnsEachField(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_parked SET tenant = 'acme', ordering_key = 'key', owner = 'host/9/z', token = 'x',
			attempts = 3, crashes = 2, replays = 1, reason = 'permanent', error = 'no answer', error_type = '*T',
			created_at = ` + b.fromNow(-5*time.Hour) + `, due_at = ` + b.fromNow(time.Hour) + `, first_failed_at = ` + b.fromNow(-4*time.Hour) + `,
			last_failed_at = ` + b.fromNow(-3*time.Hour) + `, finished_at = ` + b.fromNow(-2*time.Hour) +
			` WHERE message_id = 'due'`)
		m, err := b.messages.Get(b.Context(), b.id("due"))
		if err != nil {
			b.Fatal(err)
		}
		for name, field := range map[string]struct{ got, want any }{
			"ID": {m.ID, b.id("due")}, "Consumer": {m.Consumer, consumer}, "Topic": {m.Topic, topic}, "MessageID": {m.MessageID, "due"},
			"Tenant": {m.Tenant, "acme"}, "OrderingKey": {m.OrderingKey, "key"}, "State": {m.State, parked.Waiting},
			"Claimed": {m.Claimed, true}, "ClaimedBy": {m.ClaimedBy, "host/9/z"},
			"Attempts": {m.Attempts, 3}, "Crashes": {m.Crashes, 2}, "Replays": {m.Replays, 1},
			"Reason": {m.Reason, "permanent"}, "Error": {m.Error, "no answer"}, "ErrorType": {m.ErrorType, "*T"},
			"DueAt":         {time.Until(m.DueAt).Round(time.Hour), time.Hour},
			"CreatedAt":     {time.Since(m.CreatedAt).Round(time.Hour), 5 * time.Hour},
			"FirstFailedAt": {time.Since(m.FirstFailedAt).Round(time.Hour), 4 * time.Hour},
			"LastFailedAt":  {time.Since(m.LastFailedAt).Round(time.Hour), 3 * time.Hour},
			"FinishedAt":    {time.Since(m.FinishedAt).Round(time.Hour), 2 * time.Hour},
		} {
			if field.got != field.want {
				b.Errorf("%s is %v, want %v", name, field.got, field.want)
			}
		}
		m, err = b.messages.Get(b.Context(), b.id("third"))
		if err != nil {
			b.Fatal(err)
		}
		if !m.FirstFailedAt.IsZero() || !m.LastFailedAt.IsZero() || !m.FinishedAt.IsZero() || m.ClaimedBy != "" {
			b.Errorf("a message that has not failed is %+v", m)
		}
	})
}

// CreatedAfter is inclusive and CreatedBefore exclusive, in whole milliseconds.
func TestPeriodOfAFilterIncludesItsBegin(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		at := time.UnixMilli(1_700_000_000_123)
		value := any(at)
		if b.sqlite() {
			value = at.UnixMilli()
		}
		b.exec(`UPDATE once_parked SET created_at = $1 WHERE message_id = 'due'`, value)
		for _, c := range []struct {
			after, before time.Time
			found         int
		}{
			{after: at, found: 1},
			{after: at.Add(time.Millisecond)},
			{after: at.Add(time.Millisecond - 1), found: 1},
			{before: at},
			{before: at.Add(time.Millisecond - 1)},
			{before: at.Add(time.Millisecond), found: 1},
		} {
			n, err := b.messages.Count(b.Context(), parked.Filter{MessageID: "due", CreatedAfter: c.after, CreatedBefore: c.before})
			if err != nil {
				b.Fatal(err)
			}
			if n.N != c.found {
				b.Errorf("from %v until %v: %d messages, want %d", c.after, c.before, n.N, c.found)
			}
		}
	})
}
