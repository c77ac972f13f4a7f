package dead_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
)

func TestLetterShowsTheWholeMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("bad", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		b.publish("topic", m, msg("free", ""))
		b.forward(&publisher{refuse: true}, 0, forwarder.BlockKey)

		listed, err := b.letters.List(b.Context(), operate.Filter{MessageID: "bad"})
		kit.OK(b, err)
		if len(listed.Rows) != 1 {
			b.Fatalf("len(listed) is %d, want 1: %+v", len(listed.Rows), listed.Rows)
		}
		if listed.Rows[0].Payload != nil {
			b.Fatalf("listed[0].Payload is %q, want nil", listed.Rows[0].Payload)
		}
		got, err := b.letters.Get(b.Context(), listed.Rows[0].ID)
		kit.OK(b, err)
		if time.Since(got.CreatedAt).Abs() > time.Minute {
			b.Fatalf("got.CreatedAt is %v, want %v, give or take %v", got.CreatedAt, time.Now(), time.Minute)
		}
		if time.Since(got.LastFailedAt).Abs() > time.Minute {
			b.Fatalf("got.LastFailedAt is %v, want %v, give or take %v", got.LastFailedAt, time.Now(), time.Minute)
		}
		want := dead.Letter{
			Message: dead.Message{
				ID: got.ID, Position: 1, MessageID: "bad", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			Attempts: 1, Error: "too large", Reason: dead.ReasonUnacceptable, BlocksKey: true, LastFailedAt: got.LastFailedAt,
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}

		free, err := b.letters.List(b.Context(), operate.Filter{MessageID: "free"})
		kit.OK(b, err)
		if free.Rows[0].BlocksKey {
			b.Fatal("free[0].BlocksKey is true")
		}
		if free.Rows[0].OrderingKey != "" {
			b.Fatalf("free[0].OrderingKey is %q, want nothing", free.Rows[0].OrderingKey)
		}
	})
}

func TestGetOfAnUnknownID(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		_, err := b.letters.Get(b.Context(), 4711)
		if !errors.Is(err, operate.ErrNotFound) {
			b.Fatalf("got %v, want ErrNotFound", err)
		}
		if err == nil || err.Error() != "dead: get: dead letter 4711: not found" {
			b.Fatalf(`got %v, want "deadletter: get: dead letter 4711: not found"`, err)
		}
		want := "dead: sent log: get: sent message -1: not found"
		if _, err := b.log.Get(b.Context(), -1); err == nil || err.Error() != want {
			b.Fatalf("Get: got %v, want %q", err, want)
		}
	})
}

func TestGetOfAnEmptyPayload(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(message.NewMessage("empty", message.Payload{}))
		got, err := b.letters.Get(b.Context(), 1)
		kit.OK(b, err)
		if got.Payload == nil {
			b.Fatal("got.Payload is nil: nil would say that the payload was not read")
		}
		if len(got.Payload) != 0 {
			b.Fatalf("got.Payload is %q, want none", got.Payload)
		}
	})
}

func TestListReturnsPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(102)...)
		all, err := b.letters.List(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if len(all.Rows) != 100 {
			b.Fatalf("len(all) is %d, want 100: %+v", len(all.Rows), all.Rows)
		}
		rest, err := b.letters.List(b.Context(), operate.Filter{AfterID: all.Rows[99].ID})
		kit.OK(b, err)
		if rest.Rows[0].MessageID != "100" || rest.Rows[1].MessageID != "101" {
			b.Fatalf("rest has %q and %q, want %q and %q", rest.Rows[0].MessageID, rest.Rows[1].MessageID, "100", "101")
		}
		two, err := b.letters.List(b.Context(), operate.Filter{Limit: 2})
		kit.OK(b, err)
		if len(two.Rows) != 2 {
			b.Fatalf("len(two) is %d, want 2: %+v", len(two.Rows), two.Rows)
		}
		for limit, want := range map[int]int{0: 101, 1: 1, 101: 101, 1000: 101} {
			n, err := b.letters.Count(b.Context(), operate.Filter{Limit: limit, AfterID: all.Rows[0].ID})
			kit.OK(b, err)
			if n.N != want {
				b.Errorf("with Limit %d, %d letters are counted, want %d", limit, n.N, want)
			}
		}
	})
}

func TestGroupsByReasonAndError(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(5)...)
		b.Exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id IN ('1', '2')`)
		b.Exec(`UPDATE once_outbox_dead SET reason = 'unacceptable', last_error = 'it''s: "ü"', fingerprint = 'unacceptable: it'
			WHERE message_id = '3'`)
		b.Exec(`UPDATE once_outbox_dead SET reason = 'unacceptable', fingerprint = 'unacceptable: no' WHERE message_id = '4'`)
		b.age("once_outbox_dead", "died_at", time.Hour, `message_id = '1'`)
		page, err := b.letters.Groups(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if len(page.Groups) != 3 {
			b.Fatalf("%d groups, want 3: %+v", len(page.Groups), page.Groups)
		}
		first := page.Groups[0]
		if first.FirstFailedAt.Sub(time.Now().Add(-time.Hour)).Abs() > time.Minute {
			b.Fatalf("first.FirstFailedAt is %v, want %v, give or take %v", first.FirstFailedAt, time.Now().Add(-time.Hour), time.Minute)
		}
		if time.Since(first.LastFailedAt).Abs() > time.Minute {
			b.Fatalf("first.LastFailedAt is %v, want %v, give or take %v", first.LastFailedAt, time.Now(), time.Minute)
		}
		want := operate.Group{
			Fingerprint: "exhausted: no queue", Count: 3, Topics: []string{"s", "t"}, Reason: "exhausted", Error: "no queue",
			FirstFailedAt: first.FirstFailedAt, LastFailedAt: first.LastFailedAt,
		}
		if !reflect.DeepEqual(first, want) {
			b.Fatalf("first is %+v, want %+v", first, want)
		}

		// The fingerprint finds exactly the letters of its group.
		for _, g := range page.Groups {
			page, err := b.letters.List(b.Context(), operate.Filter{Fingerprint: g.Fingerprint})
			kit.OK(b, err)
			if len(page.Rows) != g.Count {
				b.Fatalf("%d letters, want %d: %+v", len(page.Rows), g.Count, page.Rows)
			}
			for _, l := range page.Rows {
				if l.Reason != g.Reason {
					b.Fatalf("l.Reason is %q, want %q", l.Reason, g.Reason)
				}
				if l.Error != g.Error {
					b.Fatalf("l.Error is %q, want %q", l.Error, g.Error)
				}
				if !slices.Contains(g.Topics, l.Topic) {
					b.Fatalf("g.Topics are %q, without %q", g.Topics, l.Topic)
				}
			}
		}
		some, err := b.letters.Groups(b.Context(), operate.Filter{Topic: "s"})
		kit.OK(b, err)
		if len(some.Groups) != 1 {
			b.Fatalf("len(some) is %d, want 1: %+v", len(some.Groups), some.Groups)
		}
		if some.Groups[0].Count != 2 {
			b.Fatalf("some[0].Count is %d, want 2", some.Groups[0].Count)
		}
		report, err := b.letters.ReplayMatching(b.Context(), ann, operate.Filter{Fingerprint: first.Fingerprint}, operate.Plan{})
		kit.OK(b, err)
		if report.Changed != 3 {
			b.Fatalf("report.Replayed is %d, want 3", report.Changed)
		}
	})
}

func TestGroupsReturnsPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		none, err := b.letters.Groups(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if len(none.Groups) != 0 {
			b.Fatalf("none is %+v, want none", none.Groups)
		}
		b.insertDead(messages(105)...)
		b.Exec(`UPDATE once_outbox_dead SET last_error = message_id, fingerprint = 'exhausted: ' || message_id`)
		b.Exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id = '0'`)
		b.insertDead(msg("another", ""))
		b.Exec(`UPDATE once_outbox_dead SET last_error = '0', fingerprint = 'exhausted: 0' WHERE message_id = 'another'`)
		first, err := b.letters.Groups(b.Context(), operate.Filter{})
		kit.OK(b, err)
		if len(first.Groups) != 100 {
			b.Fatalf("len(first) is %d, want 100: %+v", len(first.Groups), first.Groups)
		}
		if want := []string{"s", "t"}; !slices.Equal(first.Groups[0].Topics, want) {
			b.Fatalf("first[0].Topics are %q, want %q: a page ends between groups, not between topics", first.Groups[0].Topics, want)
		}
		rest, err := b.letters.Groups(b.Context(), operate.Filter{AfterGroup: first.Groups[99].Fingerprint})
		kit.OK(b, err)
		if len(rest.Groups) != 5 {
			b.Fatalf("len(rest) is %d, want 5: %+v", len(rest.Groups), rest.Groups)
		}
		two, err := b.letters.Groups(b.Context(), operate.Filter{Limit: 2, AfterGroup: first.Groups[0].Fingerprint})
		kit.OK(b, err)
		if !reflect.DeepEqual(two.Groups, first.Groups[1:3]) {
			b.Fatalf("two is %+v, want %+v", two.Groups, first.Groups[1:3])
		}
		seen := map[string]bool{}
		for _, g := range append(first.Groups, rest.Groups...) {
			seen[g.Error] = true
		}
		for i := range 105 {
			if !seen[fmt.Sprint(i)] {
				b.Fatal("seen[fmt.Sprint(i)] is false")
			}
		}
	})
}

// Groups reads only the latest letters, and reports that there are more.
func TestGroupsLooksAtTheLatestLetters(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("oldest", ""))
		b.Exec(`UPDATE once_outbox_dead SET last_error = 'old', fingerprint = 'exhausted: old'`)
		fill := func(letters int) {
			b.Exec(fmt.Sprintf(`
				WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %d)
				INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error,
				                              reason, fingerprint, unknown)
				SELECT n, 'm', 't', '', '{}', created_at, 20, 'new', 'exhausted', 'exhausted: new', unknown
				FROM numbers, once_outbox_dead WHERE message_id = 'oldest'`,
				letters))
		}
		groups := func(f operate.Filter) (all []string) {
			found, err := b.letters.Groups(b.Context(), f)
			kit.OK(b, err)
			for _, g := range found.Groups {
				all = append(all, fmt.Sprint(g.Error, " ", g.Count, " ", g.More))
			}
			return all
		}
		fill(9_999)
		if got, want := groups(operate.Filter{}), []string{"new 9999 false", "old 1 false"}; !slices.Equal(got, want) {
			b.Fatalf("groups are %q, want %q", got, want)
		}
		fill(1)
		if got, want := groups(operate.Filter{}), []string{"new 10000 true"}; !slices.Equal(got, want) {
			b.Fatalf("groups are %q, want %q", got, want)
		}
		if got := groups(operate.Filter{AfterGroup: "exhausted: new"}); len(got) != 0 {
			b.Fatalf("groups are %q, want none", got)
		}
		if got, want := groups(operate.Filter{Topic: "t"}), []string{"new 10000 true"}; !slices.Equal(got, want) {
			b.Fatalf("groups of the topic are %q, want %q", got, want)
		}
		b.Exec(`UPDATE once_outbox_dead SET tenant = 'acme'`)
		if got, want := groups(operate.Filter{Tenant: "acme"}), []string{"new 10000 true"}; !slices.Equal(got, want) {
			b.Fatalf("groups of the tenant are %q, want %q", got, want)
		}
		if got, want := groups(operate.Filter{MessageID: "oldest"}), []string{"old 1 false"}; !slices.Equal(got, want) {
			b.Fatalf("groups of the message are %q, want %q", got, want)
		}
	})
}
