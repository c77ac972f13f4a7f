package dead_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestSentLogShowsTheWholeMessage(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		m := msg("m", "key")
		m.Payload = []byte{0, 255, '\n'}
		m.Metadata["a"] = "ü"
		b.publish("topic", m, msg("free", ""))
		b.forward(&publisher{}, time.Hour, forwarder.SendSuccessors)
		if got := b.sent(); got != 2 {
			b.Fatalf("sent is %d, want 2", got)
		}

		listed := b.sentPage(operate.Filter{MessageID: "m"}).Rows
		if len(listed) != 1 {
			b.Fatalf("len(listed) is %d, want 1: %+v", len(listed), listed)
		}
		if listed[0].Payload != nil {
			b.Fatalf("listed[0].Payload is %q, want nil", listed[0].Payload)
		}
		got, err := b.log.Get(b.Context(), listed[0].ID)
		kit.OK(b, err)
		if time.Since(got.CreatedAt).Abs() > time.Minute {
			b.Fatalf("got.CreatedAt is %v, want %v, give or take %v", got.CreatedAt, time.Now(), time.Minute)
		}
		if time.Since(got.SentAt).Abs() > time.Minute {
			b.Fatalf("got.SentAt is %v, want %v, give or take %v", got.SentAt, time.Now(), time.Minute)
		}
		want := dead.SentMessage{
			Message: dead.Message{
				ID: got.ID, Position: 1, MessageID: "m", Topic: "topic", OrderingKey: "key", Payload: []byte{0, 255, '\n'}, Size: 3,
				Metadata: message.Metadata{"a": "ü", outbox.OrderingKey: "key"}, CreatedAt: got.CreatedAt,
			},
			SentAt: got.SentAt,
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}
		page := b.sentPage(operate.Filter{AfterID: got.ID - 1, Limit: 1})
		if page.Rows[0].ID != got.ID || page.Next != got.ID {
			b.Fatalf("the page has the ID %d and Next %d, want %d", page.Rows[0].ID, page.Next, got.ID)
		}
	})
}

func TestSentMessagesAreReplayed(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		m := described()
		m.Payload = []byte{0, 255}
		b.record("t", m, msg("other", ""))
		only := operate.Filter{MessageID: "described"}

		recorded := time.Now()
		kit.Eventually(b, time.Minute, "SQLite's clock, which has milliseconds, goes on", func() bool {
			return time.Since(recorded) > 2*time.Millisecond
		})
		_, forgetful := b.remembering(time.Nanosecond)
		report, err := forgetful.ReplayMatching(b.Context(), ann, only, operate.Plan{Rate: 1000})
		kit.OK(b, err)
		if want := (operate.Report{Total: 1, Skipped: []int64{1}}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v: consumers do not remember it", report, want)
		}
		if err := forgetful.Replay(b.Context(), ann, 1); !errors.Is(err, operate.ErrNeedsForce) {
			b.Fatalf("Replay: got %v, want ErrNeedsForce", err)
		}
		if got := b.Audits(); len(got) != 0 {
			b.Fatalf("audits are %q, want none", got)
		}
		b.wantPending(0)

		report, err = b.log.ReplayMatching(b.Context(), ann, only, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Total: 1, Changed: 1}); !reflect.DeepEqual(counts(report), want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := b.sent(); got != 2 {
			b.Fatalf("sent is %d, want 2: the log keeps the message", got)
		}
		if got := b.Number(`SELECT COUNT(*) FROM once_outbox WHERE unknown`); got != 1 {
			b.Fatalf("count is %d, want 1: a copy may have been sent", got)
		}
		if got, want := b.Audits(), []string{"ann | replay | sent:1 | described | the queue is back"}; !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		p := &publisher{}
		b.forward(p, 0, forwarder.SendSuccessors)
		if len(p.sent) != 1 {
			b.Fatalf("len(p.sent) is %d, want 1: %+v", len(p.sent), p.sent)
		}
		if p.sent[0].UUID != "described" {
			b.Fatalf(`p.sent[0].UUID is %q, want "described"`, p.sent[0].UUID)
		}
		if want := (message.Payload{0, 255}); !bytes.Equal(p.sent[0].Payload, want) {
			b.Fatalf("p.sent[0].Payload is %q, want %q", p.sent[0].Payload, want)
		}
		if got := unstamped(p.sent[0]); !reflect.DeepEqual(got, m.Metadata) {
			b.Fatalf("unstamped(p.sent[0]) is %v, want %v", got, m.Metadata)
		}
	})
}

func TestReplayOfSentMessagesByID(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		b.record("t", msg("a", "key"), msg("b", ""))
		err := b.log.Replay(b.Context(), ann, 2, 4711)
		if !errors.Is(err, operate.ErrNotFound) {
			b.Fatalf("got %v, want ErrNotFound", err)
		}
		if want := "dead: sent log: replay: sent message 4711: not found"; err == nil || err.Error() != want {
			b.Fatalf("got %v, want %q", err, want)
		}
		b.wantPending(0)
		kit.OK(b, b.log.Replay(b.Context(), ann, 2, 1))
		if err := b.log.Replay(b.Context(), ann, 2); err != nil {
			b.Fatalf("%v: the second time", err)
		}
		b.wantPending(3)
		if got := b.Audits(); len(got) != 3 {
			b.Fatalf("%d audits, want 3: %q", len(got), got)
		}
	})
}

func TestSweepDaysSaysWhyItCannotSweep(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		if _, err := b.log.SweepDays(b.Context(), time.Hour); !errors.Is(err, dead.ErrNotByDay) {
			b.Errorf("a plain log: %v", err)
		}
		_, err := b.log.SweepDays(b.Context(), time.Second)
		if err == nil || !strings.Contains(err.Error(), "keep is 1s: must be at least a minute") {
			b.Errorf("a second: %v", err)
		}
		if b.SQLite() {
			return
		}
		kit.OK(b, schema.Up(b.Context(), b.DB, schema.Config{Sent: schema.ByDay}))
		if n, err := b.log.SweepDays(b.Context(), time.Hour); n != 0 || err != nil {
			b.Errorf("the owner: %d days, %v", n, err)
		}
		b.SetMaxOpenConns(1)
		b.Exec(`SET ROLE pg_read_all_data`)
		_, err = b.log.SweepDays(b.Context(), time.Hour)
		b.Exec(`RESET ROLE`)
		if !errors.Is(err, dead.ErrNotOwner) {
			b.Errorf("another user: %v", err)
		}
	})
}

// A row of the sent log may be committed after a row with a higher ID. SettledID waits
// for the commit of the first row.
func TestSettledIDWaitsForEarlierRows(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		id, err := b.log.SettledID(b.Context())
		kit.OK(b, err)
		if id != 0 {
			b.Fatalf("id is %d, want 0", id)
		}
		b.record("t", msg("first", ""), msg("second", ""))
		id, err = b.log.SettledID(b.Context())
		kit.OK(b, err)
		if id != 2 {
			b.Fatalf("id is %d, want 2", id)
		}
		if b.SQLite() {
			return
		}

		b.publish("t", msg("slow", ""))
		slow := kit.Begin(b, b)
		defer func() { _ = slow.Rollback() }()
		for _, query := range []string{ // as a forwarder does it
			`DELETE FROM once_outbox`,
			`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at) VALUES (9, 'slow', 't', '', '{}', now())`,
		} {
			kit.Exec(b, slow, query)
		}
		b.record("t", msg("quick", ""))
		kit.Waits(b, "has not ended", func(ctx context.Context) error {
			_, err := b.log.SettledID(ctx)
			return err
		})
		kit.OK(b, slow.Commit())
		id, err = b.log.SettledID(b.Context())
		kit.OK(b, err)
		if id != 4 {
			b.Fatalf("id is %d, want 4", id)
		}
	})
}
