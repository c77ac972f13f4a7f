package parked_test

import (
	"strings"
	"testing"
	"time"

	store "github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/parked"
)

// A watcher must not read the contents of messages and errors.
func TestListWithoutContent(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_parked SET error_type = '*T' WHERE message_id = 'failed'`)
		watcher, err := parked.New(b.db, parked.Config{Schema: b.config, WithoutContent: true})
		if err != nil {
			b.Fatal(err)
		}
		for m, content := range map[*parked.Messages]bool{watcher: false, b.messages: true} {
			page, err := m.List(b.Context(), parked.Filter{MessageID: "failed"})
			if err != nil {
				b.Fatal(err)
			}
			if one := page.Messages[0]; (one.Size > 0) != content || (one.Error == "no answer") != content || one.Error == "" == content ||
				one.ErrorType != "*T" || one.Attempts != 3 {
				b.Errorf("with content %t: %+v", content, one)
			}
		}
	})
}

// An actor or a reason that is too long for its column is shortened, and the message is
// still cancelled.
func TestLongReasonIsShortened(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		long := parked.Act{Actor: strings.Repeat("a", 300), Why: strings.Repeat("w", 5000)}
		if err := b.messages.Cancel(b.Context(), long, b.id("failed")); err != nil {
			b.Fatal(err)
		}
		page, err := b.messages.List(b.Context(), parked.Filter{MessageID: "failed"})
		if err != nil {
			b.Fatal(err)
		}
		one := page.Messages[0]
		if len(one.Error) != store.MaxError || !strings.HasPrefix(one.Error, "cancelled by aaa") || one.FirstFailedAt.IsZero() {
			b.Errorf("the error has %d bytes: %.40q", len(one.Error), one.Error)
		}
		want := strings.Repeat("a", 255) + " | cancel | parked:2 | payments | failed | " + strings.Repeat("w", 4096)
		if got := b.audits(); len(got) != 1 || got[0] != want {
			b.Errorf("audits are %.300q", got)
		}
	})
}

// A message with an early version is shown as early while it waits.
func TestEarlyMessageIsShownWhileItWaits(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_parked SET early_since = ` + b.fromNow(-time.Minute) + ` WHERE message_id IN ('failed', 'poison')`)
		page, err := b.messages.List(b.Context(), parked.Filter{})
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range page.Messages {
			if want := m.MessageID == "failed"; m.Early != want {
				b.Errorf("%s: early is %t", m.MessageID, m.Early)
			}
		}
	})
}
