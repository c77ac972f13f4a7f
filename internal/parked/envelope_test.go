package parked_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

func TestMain(m *testing.M) { testkit.MainWithTables(m) }

func TestTrap50EnvelopeKeepsEveryByte(t *testing.T) {
	nasty := []string{"", "a", "\x00", "\xff\xfe", "ünïcode 🐇", strings.Repeat("x", 70_000)}
	for _, s := range nasty {
		msg := message.NewMessage(s, []byte(s))
		for _, key := range nasty {
			msg.Metadata[key] = s
		}
		got, err := parked.Decode(parked.Encode(msg))
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equals(msg) {
			t.Fatalf("%.10q does not come back as it was", s)
		}
	}
}

func TestDamagedEnvelopeIsAnError(t *testing.T) {
	whole := parked.Encode(message.NewMessage("id", []byte("payload")))
	for n := range whole {
		if _, err := parked.Decode(whole[:n]); err == nil {
			t.Errorf("%d of %d bytes are accepted", n, len(whole))
		}
	}
	if _, err := parked.Decode(append(bytes.Clone(whole), 0)); err == nil {
		t.Error("a byte too many is accepted")
	}
	if _, err := parked.Decode(append([]byte{99}, whole[1:]...)); err == nil {
		t.Error("an unknown version is accepted")
	}
}

func FuzzDecode(f *testing.F) {
	msg := message.NewMessage("id", []byte("payload"))
	msg.Metadata["key"] = "value"
	f.Add(parked.Encode(msg))
	f.Add([]byte{1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, envelope []byte) {
		msg, err := parked.Decode(envelope)
		if err != nil {
			return
		}
		again, err := parked.Decode(parked.Encode(msg))
		if err != nil || !again.Equals(msg) {
			t.Fatalf("%x does not survive: %v", envelope, err)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("a\x00b\xffü", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if limit < 0 {
			return
		}
		got := parked.Clean(text, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Fatalf("Clean(%q, %d) is %q", text, limit, got)
		}
	})
}

func TestSnapshotIsIndependent(t *testing.T) {
	msg := message.NewMessage("id", []byte("body"))
	msg.Metadata["k"] = "v"
	snapshot := parked.Snapshot(msg)
	msg.Payload[0], msg.Metadata["k"], msg.UUID = 'X', "changed", "other"
	parked.Restore(msg, snapshot)
	msg.Payload[1] = 'Y'
	if string(snapshot.Payload) != "body" || msg.UUID != "id" || msg.Metadata["k"] != "v" || string(msg.Payload) != "bYdy" {
		t.Fatalf("snapshot %+v, message %+v", snapshot, msg)
	}
}

func TestDecodedMessageIsIndependentOfItsEnvelope(t *testing.T) {
	envelope := parked.Encode(message.NewMessage("id", []byte("body")))
	first, err := parked.Decode(envelope)
	if err != nil {
		t.Fatal(err)
	}
	first.Payload[0] = 'X'
	if second, err := parked.Decode(envelope); err != nil || string(second.Payload) != "body" {
		t.Errorf("the payload is %q, %v", second.Payload, err)
	}
}

func TestDigestDistinguishesIDAndPayload(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range [][2]string{{"a", "bc"}, {"a", "bd"}, {"ab", "c"}, {"", "abc"}, {"abc", ""}, {"abd", ""}} {
		seen[string(parked.Digest(message.NewMessage(m[0], []byte(m[1]))))] = true
	}
	if len(seen) != 6 {
		t.Fatalf("%d digests of 6 messages", len(seen))
	}
}
