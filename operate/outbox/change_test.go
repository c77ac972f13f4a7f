package outbox_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/outbox"
)

func TestCancelMovesToTheDeadLetters(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.lease()
		kit.OK(b, b.messages.Cancel(b.Context(), ann, b.id("refused"), b.id("later"), b.id("third")))
		if got := b.left(); got != "due head second" {
			b.Fatalf(`left is %q, want "due head second"`, got)
		}
		letters := b.dead()
		if len(letters) != 3 {
			b.Fatalf("len(letters) is %d, want 3: %+v", len(letters), letters)
		}
		for id, want := range map[string]struct {
			error    string
			unknown  bool
			attempts int
		}{
			"refused": {"cancelled by ann: order 7 is void; last error: no queue", true, 3},
			"later":   {"cancelled by ann: order 7 is void", false, 0},
			"third":   {"cancelled by ann: order 7 is void", true, 0},
		} {
			letter := letters[id]
			if letter.Reason != dead.ReasonCancelled {
				b.Fatalf("letter.Reason is %q, want %q", letter.Reason, dead.ReasonCancelled)
			}
			if letter.Error != want.error {
				b.Fatalf("%s: letter.Error is %q, want %q", id, letter.Error, want.error)
			}
			if letter.Unknown != want.unknown {
				b.Fatalf("%s: letter.Unknown is %v, want %v", id, letter.Unknown, want.unknown)
			}
			if letter.Attempts != want.attempts {
				b.Fatalf("%s: letter.Attempts is %d, want %d", id, letter.Attempts, want.attempts)
			}
			if letter.BlocksKey {
				b.Fatal("letter.BlocksKey is true")
			}
		}
		want := []string{
			"ann | cancel | outbox:2 | refused | order 7 is void",
			"ann | cancel | outbox:3 | later | order 7 is void",
			"ann | cancel | outbox:6 | third | order 7 is void",
		}
		if got := b.Audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}

		kit.OK(b, b.letters.Replay(b.Context(), ann, letters["later"].ID))
		if got := b.left(); got != "due head second later" {
			b.Fatalf(`left is %q, want "due head second later"`, got)
		}
	})
}

// Trap 98. Cancel refuses a message that is due, because a forwarder may be sending it.
func TestCancelLeavesWhatAForwarderMayBeSending(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.lease()
		b.Exec(`UPDATE once_outbox SET due_at = ` + b.FromNow(2*time.Second) + ` WHERE message_id = 'refused'`) // due before a slow commit
		for _, id := range []string{"due", "refused"} {
			if err := b.messages.Cancel(b.Context(), ann, b.id("later"), b.id(id)); !errors.Is(err, operate.ErrNeedsForce) {
				b.Fatalf("Cancel: got %v, want ErrNeedsForce", err)
			}
		}
		if got, want := b.left(), "due refused later head second third"; got != want {
			b.Fatalf("left is %q, want %q", got, want)
		}

		all := operate.Filter{All: true}
		report, err := b.messages.DryRun(b.Context(), all, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 4, Skipped: []int64{1, 2}}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got, want := b.left(), "due refused later head second third"; got != want {
			b.Fatalf("left is %q, want %q", got, want)
		}

		report, err = b.messages.CancelMatching(b.Context(), ann, all, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 4, Skipped: []int64{1, 2}}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got := b.left(); got != "due refused" {
			b.Fatalf(`left is %q, want "due refused"`, got)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_blocked_keys`)

		report, err = b.messages.CancelMatching(b.Context(), ann, all, operate.Plan{Force: true})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 2}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if !b.dead()["due"].Unknown {
			b.Fatal(`dead()["due"].Unknown is false`)
		}
		if !b.dead()["refused"].Unknown {
			b.Fatal(`dead()["refused"].Unknown is false`)
		}
	})
}

// Trap 98. A message can be cancelled even if it is due, as long as no forwarder has a
// lease on its slot.
func TestCancelTakesAllWithoutAForwarder(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_slots SET owner = 'dead', lease_until = ` + b.FromNow(-time.Second))
		var seen []int
		report, err := b.messages.CancelMatching(b.Context(), ann, operate.Filter{All: true}, operate.Plan{
			Rate: 4, Progress: func(r operate.Report) { seen = append(seen, r.Changed) },
		})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 6}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		// On a slow machine, several messages become due at the same time.
		if len(seen) < 2 || seen[len(seen)-1] != 6 || !slices.IsSorted(seen) {
			b.Fatalf("the progress is %v, want some numbers up to 6", seen)
		}
		if !b.dead()["due"].Unknown {
			b.Fatal(`dead()["due"].Unknown is false`)
		}
		if got := b.left(); got != "" {
			b.Fatalf("left is %q, want nothing", got)
		}
	})
}

func TestRetryMakesMessagesDue(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		report, err := b.messages.RetryMatching(b.Context(), ann, operate.Filter{All: true}, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 2}); !reflect.DeepEqual(report, want) { // a message that its producer delayed stays delayed
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		page, err := b.messages.List(b.Context(), operate.Filter{State: outbox.Due})
		kit.OK(b, err)
		if got := ids(page.Rows); got != "due refused head" {
			b.Fatalf(`ids(page.Messages) is %q, want "due refused head"`, got)
		}
		if page.Rows[1].Attempts != 3 {
			b.Fatalf("page.Messages[1].Attempts is %d, want 3", page.Rows[1].Attempts)
		}
		kit.OK(b, b.messages.Retry(b.Context(), ann, b.id("later")))
		want := []string{
			"ann | retry | outbox:2 | refused | order 7 is void",
			"ann | retry | outbox:4 | head | order 7 is void",
			"ann | retry | outbox:3 | later | order 7 is void",
		}
		if got := b.Audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}

		p := &publisher{}
		b.forward(p, forwarder.Config{})
		kit.Eventually(b.T, time.Minute, "all are sent, the key in its order", func() bool {
			return len(p.all()) == 6 && b.left() == ""
		})
	})
}

// A forwarder has read past the messages that wait behind a head. After the head is
// cancelled, the forwarder sends these messages.
func TestCancelledHeadLetsItsKeyContinue(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		p := &publisher{refused: "broken"}
		b.forward(p, forwarder.Config{Backoff: func(int) time.Duration { return time.Hour }})
		b.publish("broken", msg("head", "k"), msg("alone", ""))
		b.publish("fine", msg("second", "k"), msg("third", "k"))
		kit.Eventually(b.T, time.Minute, "the head backs off", func() bool {
			n, err := b.messages.Count(b.Context(), operate.Filter{State: outbox.BackingOff})
			kit.OK(b, err)
			return n.N == 2
		})
		if got := p.all(); len(got) != 0 {
			b.Fatalf("p.all is %q, want none", got)
		}
		kit.OK(b, b.messages.Cancel(b.Context(), ann, b.id("head"), b.id("second")))
		kit.Eventually(b.T, time.Minute, "the rest of the key is sent", func() bool { return b.left() == "alone" })
		if got, want := p.all(), []string{"third"}; !slices.Equal(got, want) {
			b.Fatalf("p.all is %q, want %q", got, want)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_blocked_keys`)
	})
}

// A call of List, Count or Backlog reads a limited number of rows, and the field Next
// of its result says where the next call continues. If an index finds the matching
// rows, one call returns them all, even in a large table.
func TestListsAreBounded(t *testing.T) {
	kit.Long(t)
	eachDatabase(t, func(b *bench) {
		const rows = 100_000
		numbers := `generate_series(1, $1) AS s(n)`
		if b.SQLite() {
			numbers = `(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < $1) SELECT n FROM s) AS s`
		}
		b.Exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, due_at, failing_since)
			SELECT 'm' || n, 't' || (n % 50), n % 64, '0123456789012345678901234567890123456789012345678901234567890123456789', '{}',
			       CASE WHEN n % 10000 = 0 THEN `+b.FromNow(time.Hour)+` END, CASE WHEN n % 10000 = 0 THEN `+b.FromNow(0)+` END
			FROM `+numbers, rows)
		for name, call := range map[string]func() error{
			"list": func() error {
				_, err := b.messages.List(b.Context(), operate.Filter{})
				return err
			},
			"an id that does not exist": func() error {
				page, err := b.messages.List(b.Context(), operate.Filter{MessageID: "none"})
				if page.Next == 0 {
					b.Fatal("page.Next is 0")
				}
				return err
			},
			"the last page of a topic": func() error {
				page, err := b.messages.List(b.Context(), operate.Filter{Topic: "t1", AfterID: rows - 1000})
				if len(page.Rows) != 1000/50 {
					b.Fatalf("len(page.Messages) is %d, want %d", len(page.Rows), 1000/50)
				}
				if page.Next != 0 {
					b.Fatalf("page.Next is %d, want 0", page.Next)
				}
				return err
			},
			"few that back off": func() error {
				page, err := b.messages.List(b.Context(), operate.Filter{State: outbox.BackingOff})
				if len(page.Rows) != 10 {
					b.Fatalf("%d messages, want 10: %+v", len(page.Rows), page.Rows)
				}
				if page.Next != 0 {
					b.Fatalf("page.Next is %d, want 0", page.Next)
				}
				return err
			},
			"count": func() error {
				n, err := b.messages.Count(b.Context(), operate.Filter{Topic: "t1"})
				if n.Next == 0 {
					b.Fatal("n.Next is 0")
				}
				return err
			},
			"backlog": func() error {
				backlog, err := b.messages.Backlog(b.Context(), operate.Filter{})
				if len(backlog.Topics) != 50 {
					b.Fatalf("%d topics, want 50: %+v", len(backlog.Topics), backlog.Topics)
				}
				if backlog.Next == 0 {
					b.Fatal("backlog.Next is 0")
				}
				return err
			},
		} {
			began := time.Now()
			if err := call(); err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			b.Logf("%s: %v", name, time.Since(began))
		}
	})
}
