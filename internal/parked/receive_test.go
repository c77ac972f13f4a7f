package parked_test

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
)

// odd returns different messages with unusual ids, which can all be stored.
func odd() []*message.Message {
	var all []*message.Message
	for _, id := range []string{
		"plain", `quoted "'`, `back\slash`, "{,}", "[1]", "NULL", "null", " ", "ümläut", "",
		"nul\x00", "bad\xff", strings.Repeat("x", 6400), strings.Repeat("x", 6401),
	} {
		msg := message.NewMessage(id, []byte("body \x00\xff of "+id))
		msg.Metadata.Set("key\x00\xff", id)
		all = append(all, msg)
	}
	all[0].Metadata.Set("once_tenant_id", `ten"ant`)
	all[1].Payload = nil
	return append(all, message.NewMessage("plain", []byte("another body")))
}

// Every message of a batch is stored unchanged, whatever bytes the other messages
// contain.
func TestTrap69BatchIsStoredByteForByte(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		msgs := odd()
		stored, err := s.Receive(t.Context(), batch("c", append(msgs, msgs[0].Copy())...))
		if err != nil || stored != int64(len(msgs)) {
			t.Fatalf("%d stored, %v", stored, err)
		}
		claimed := claim(t, s, selection)
		if len(claimed) != len(msgs) {
			t.Fatalf("%d rows, want %d", len(claimed), len(msgs))
		}
		for i, c := range claimed { // in the order of their arrival
			if want := msgs[i]; c.Err != nil || c.Message.UUID != want.UUID || !bytes.Equal(c.Message.Payload, want.Payload) ||
				!maps.Equal(c.Message.Metadata, want.Metadata) {
				t.Errorf("%q came back as %v, %v", want.UUID, c.Message, c.Err)
			}
		}
		entries := rows.Parked(t, s)
		if entries[0].Tenant != `ten"ant` || entries[1].Tenant != "" || !bytes.Equal(entries[0].Digest, parked.Digest(msgs[0])) {
			t.Errorf("%+v", entries[0])
		}
		// All messages have rows already, except the message that has no usable id.
		if stored, err = s.Receive(t.Context(), batch("c", msgs...)); err != nil || stored != 1 {
			t.Errorf("%d stored again, %v", stored, err)
		}
		if stored, err = s.Receive(t.Context(), batch("another", msgs...)); err != nil || stored != int64(len(msgs)) {
			t.Errorf("%d stored for another consumer, %v", stored, err)
		}
	})
}

// If one claim was lost, Resolve settles the other claims.
func TestResolveSettlesEachClaimOnItsOwn(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "lost")
		sel := selection
		sel.Lease = time.Millisecond
		old := claim(t, s, sel)[0].Claim
		sel = selection
		sel.Crashed = true
		var current []parked.Claimed
		testkit.Eventually(t, 30*time.Second, "the lease is over", func() bool {
			current = claim(t, s, sel)
			return len(current) == 1
		})
		deliver(t, s, "done", "kept")
		fresh := claim(t, s, selection)
		fresh[1].Keep = true
		// A later claim has the row of the old claim now. Another claim in the same call has
		// the token of that later claim.
		current[0].ID, fresh[0].Token = current[0].ID+1000, current[0].Token
		err := s.Resolve(t.Context(), old, current[0].Claim, fresh[0].Claim, fresh[1].Claim)
		if !errors.Is(err, parked.ErrClaimLost) {
			t.Errorf("%v, want ErrClaimLost", err)
		}
		entries := rows.Parked(t, s)
		if len(entries) != 3 || entries[0].State != parked.Waiting || entries[1].State != parked.Waiting ||
			entries[2].State != parked.Resolved {
			t.Fatalf("%+v", entries)
		}
		if entries[2].Crashes != 0 || entries[2].FinishedAt.IsZero() {
			t.Errorf("the resolved row is %+v", entries[2])
		}
		if !fresh[1].Settled() || fresh[1].Age() < 0 || fresh[1].Age() > time.Minute {
			t.Errorf("%+v", fresh[1].Claim)
		}
	})
}

func batch(consumer string, msgs ...*message.Message) *parked.Batch {
	b := parked.NewBatch("t", parked.Subscription{Consumer: consumer})
	for _, msg := range msgs {
		b.Add(msg)
	}
	return b
}
