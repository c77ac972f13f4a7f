package quarantine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
)

// raw calls the middleware with a message that its transport could not decode.
func (b *bench) raw(consumer, id string) {
	b.Helper()
	msg := message.NewMessage(id, []byte("raw"))
	msg.Metadata.Set("form", "raw")
	msg.SetContext(usercode.WithUndecodable(b.Context(), fmt.Errorf("message %q cannot be read", id)))
	never := func(*message.Message) ([]*message.Message, error) {
		b.Error("the handler saw it")
		return nil, nil
	}
	kit.OK(b, b.handle(consumer, msg, never))
}

// No handler may get the raw form, neither from the transport nor by a replay. The
// edited message must be handled.
func TestTrap41UndecodableMessageIsNotReplayed(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "fine")
		b.raw("payments", "odd")
		fine, odd := b.list()[0], b.list()[1]
		if odd.Reason != poison.ReasonUndecodable || odd.Error != `message "odd" cannot be read` {
			t.Fatalf("%+v", odd)
		}
		if err := b.store.Replay(t.Context(), act, fine.ID, odd.ID); !errors.Is(err, quarantine.ErrUndecodable) {
			t.Fatalf("error %v", err)
		}
		if left := b.list(); len(left) != 2 || left[0].Replays+left[1].Replays != 0 || len(b.Audits()) != 0 {
			t.Fatalf("in quarantine are %+v, audit %q", left, b.Audits())
		}

		c := &counted{}
		b.consume("payments", c.handle)
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{Force: true})
		if got := counts(r.Report); err != nil || got != "finished: 2 of 2 replayed, 1 resolved, 1 failed, 0 waiting" {
			t.Fatalf("%v, %s", err, got)
		}
		again := b.list()
		if len(again) != 1 || again[0].ID != odd.ID || again[0].Replays != 1 || again[0].Reason != odd.Reason ||
			again[0].Error != odd.Error || again[0].ErrorType != odd.ErrorType || again[0].Fingerprint != odd.Fingerprint {
			t.Fatalf("in quarantine are %+v, want %+v", again, odd)
		}

		read := func(msg *message.Message) error { msg.UUID = "mended"; return nil }
		edited, err := b.store.Edit(t.Context(), act, odd.ID, read, quarantine.EditOptions{KeepQuarantined: true})
		kit.OK(t, err)
		kit.OK(t, b.store.Replay(t.Context(), act, edited))
		kit.Eventually(t, 20*time.Second, "the edited message is done", func() bool {
			e, err := b.store.Get(t.Context(), edited)
			return err == nil && e.State == parkedrows.Resolved
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.ran) != 2 || c.ran["fine"] != 1 || c.ran["mended"] != 1 {
			t.Errorf("handled were %v", c.ran)
		}
	})
}

// If only one of two copies could be decoded, this copy is kept.
func TestDecodedCopyReplacesUndecodableOne(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		good := func() *message.Message {
			msg := message.NewMessage("m1", []byte("raw")) // only its headers could not be decoded
			msg.Metadata.Set("form", "read")
			return msg
		}
		b.raw("payments", "m1")
		kit.OK(t, b.handle("payments", good(), failing(errHandler)))
		e := b.list()[0]
		if e.Reason != poison.ReasonFailed || e.Attempts != 2 || e.Message.Metadata.Get("form") != "read" {
			t.Fatalf("%+v with %v", e, e.Message.Metadata)
		}
		b.raw("payments", "m1")
		if left := b.list(); len(left) != 1 || left[0].Reason != poison.ReasonFailed || left[0].Attempts != 2 {
			t.Fatalf("in quarantine are %+v", left)
		}

		waits := &parkedrows.Delivery{Consumer: "inventory", Topic: "orders.placed"}
		kit.OK(t, b.parked.Park(t.Context(), waits, good(), parkedrows.Failure{}, time.Hour))
		b.raw("inventory", "m1")
		var all []rows.Row
		for _, row := range rows.Parked(t, b.parked) {
			if row.Consumer == "inventory" {
				all = append(all, row)
			}
		}
		if len(all) != 1 || all[0].State != parkedrows.Waiting || all[0].Message.Metadata.Get("form") != "read" {
			t.Fatalf("%+v", all)
		}
	})
}
