package quarantine_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

// The edited message becomes a new entry, which is due immediately for the consumer
// that failed. The old entry is discarded, and the handler is not called for a late
// copy of its message.
func TestTrap72EditedMessageReplacesTheOldOne(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		msg := message.NewMessage("m1", []byte("amount=-5"))
		msg.Metadata = message.Metadata{"raw": "\xff\x00", "once_tenant_id": "acme"}
		kit.OK(t, b.handle("payments", msg, failing(errHandler)))
		old := b.list()[0]
		id, err := b.store.Edit(t.Context(), act, old.ID, func(msg *message.Message) error {
			if msg.UUID == "m1" || string(msg.Payload) != "amount=-5" || msg.Metadata["raw"] != "\xff\x00" {
				t.Errorf("to be edited is %+v", msg)
			}
			msg.Payload = []byte("amount=5")
			return nil
		}, quarantine.EditOptions{})
		kit.OK(t, err)
		edited, err := b.store.Get(t.Context(), id)
		if err != nil || edited.State != parkedrows.Waiting || edited.EditedFrom != old.ID || edited.Consumer != "payments" ||
			edited.Topic != old.Topic || edited.Tenant != "acme" || string(edited.Message.Payload) != "amount=5" ||
			edited.Message.Metadata["raw"] != "\xff\x00" || edited.Message.Metadata[quarantine.EditedFrom] != "m1" {
			t.Fatalf("%v, edited %+v", err, edited)
		}
		if gone, err := b.store.Get(t.Context(), old.ID); err != nil || gone.State != parkedrows.Discarded ||
			string(gone.Message.Payload) != "amount=-5" {
			t.Fatalf("%v, the old one is %+v", err, gone)
		}
		lines := b.Audits()
		if len(lines) != 2 || !strings.HasPrefix(lines[0], "ann | edit | ") || !strings.HasPrefix(lines[1], "ann | edited | ") {
			t.Errorf("audit %q", lines)
		}

		var mu sync.Mutex
		var ran []string
		handle := func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, msg.UUID)
			return nil
		}
		b.consume("payments", handle)
		kit.Eventually(t, 20*time.Second, "the edited message is on record as done", func() bool {
			e, err := b.store.Get(t.Context(), id)
			return err == nil && e.State == parkedrows.Resolved
		})
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config, Consumer: "payments"})
		kit.OK(t, err)
		late := message.NewMessage("m1", []byte("amount=-5"))
		kit.OK(t, kit.Err(inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) { return nil, handle(msg) })(late)))
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(ran, []string{edited.Message.UUID}) {
			t.Fatalf("handled were %q", ran)
		}
	})
}

func TestEditedMessageMayStayInQuarantine(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "m1")
		id, err := b.store.Edit(t.Context(), act, b.list()[0].ID, func(msg *message.Message) error {
			msg.UUID = "m1-mended"
			return nil
		}, quarantine.EditOptions{KeepQuarantined: true})
		kit.OK(t, err)
		left := b.list()
		if len(left) != 1 || left[0].ID != id || left[0].MessageID != "m1-mended" || left[0].Error != errHandler.Error() ||
			left[0].FirstFailedAt.IsZero() || left[0].Fingerprint == "" {
			t.Fatalf("in quarantine are %+v", left)
		}
	})
}

// After an error of Edit the entry is unchanged.
func TestRefusedEditChangesNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "m1", "m2")
		kit.OK(t, b.store.Discard(t.Context(), act, b.list()[1].ID))
		id := b.list()[0].ID
		rename := func(to string) func(*message.Message) error {
			return func(msg *message.Message) error { msg.UUID = to; return nil }
		}
		for name, c := range map[string]struct {
			act    operate.Act
			id     int64
			change func(*message.Message) error
			want   error
			text   string
		}{
			"own error":     {act, id, func(*message.Message) error { return errHandler }, errHandler, ""},
			"the same id":   {act, id, rename("m1"), quarantine.ErrIDInUse, "m1"},
			"an id in use":  {act, id, rename("m2"), quarantine.ErrIDInUse, "m2"},
			"no id":         {act, id, rename(""), nil, "id is empty"},
			"bad id":        {act, id, rename("a\x00"), nil, "no valid text"},
			"not there":     {act, 4711, rename("x"), operate.ErrNotFound, "4711"},
			"discarded":     {act, id + 1, rename("x"), operate.ErrNotFound, "discarded"},
			"nobody":        {operate.Act{Why: "w"}, id, rename("x"), nil, "Actor"},
			"for no reason": {operate.Act{Actor: "ann"}, id, rename("x"), nil, "Why"},
			"no change":     {act, id, nil, nil, "change is nil"},
		} {
			_, err := b.store.Edit(t.Context(), c.act, c.id, c.change, quarantine.EditOptions{})
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if left := b.list(); len(left) != 1 || left[0].MessageID != "m1" || len(b.Audits()) != 1 {
			t.Fatalf("left are %q, audit %q", names(left), b.Audits())
		}
	})
}

// A reader without the right to read contents does not get the stack of a panic. An
// edited entry keeps the stack.
func TestStackOfAPanicIsContent(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		b.quarantinePanic("payments", "m1")
		e := b.list()[0]
		if e.Stack == "" {
			t.Fatal("the entry has no stack")
		}

		reader, err := quarantine.New(db.DB, operate.Config{Schema: b.Config, WithoutContent: true})
		kit.OK(t, err)
		if page, err := reader.List(t.Context(), operate.Filter{}); err != nil || len(page.Rows) != 1 || page.Rows[0].Stack != "" {
			t.Errorf("%v, without content: %+v", err, page)
		}

		keep := quarantine.EditOptions{KeepQuarantined: true}
		edited, err := b.store.Edit(t.Context(), act, e.ID, func(*message.Message) error { return nil }, keep)
		kit.OK(t, err)
		if got, err := b.store.Get(t.Context(), edited); err != nil || got.Stack != e.Stack {
			t.Errorf("%v, the edited entry has the stack %q", err, got.Stack)
		}
	})
}
