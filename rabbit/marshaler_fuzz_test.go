package rabbit_test

import (
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/rabbit"
)

// Unmarshal restores a message that was marshalled, except the keys that control the
// broker, and the keys that the subscriber sets.
func FuzzRoundTrip(f *testing.F) {
	f.Add("id", "key", "value", "once_redelivered", "true", []byte("payload"))
	f.Add("", "BCC", "queue", "_watermill_message_uuid", "other", []byte(nil))
	f.Add("a\x00\xff", "x-death", "[]", "once_delivery_count", "-1", []byte{0, 0xff})
	f.Add("id", "User_Id", "guest", "Expiration", "1", []byte("{}"))
	f.Fuzz(func(t *testing.T, id, key, value, other, otherValue string, payload []byte) {
		msg := message.NewMessage(id, payload)
		msg.Metadata = message.Metadata{key: value, other: otherValue}
		publishing, err := rabbit.Marshaler{}.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		for name := range publishing.Headers {
			if meta.Steering(name) {
				t.Errorf("header %q steers the broker", name)
			}
		}
		got := unmarshal(t, arrived(publishing))
		want := maps.Clone(msg.Metadata)
		maps.DeleteFunc(want, func(name, _ string) bool {
			switch name {
			case "_watermill_message_uuid", "_once_publish":
				return true
			}
			return meta.Steering(name) || !meta.Travels(name)
		})
		want["once_redelivered"] = "false"
		if got.UUID != id || string(got.Payload) != string(payload) || !maps.Equal(got.Metadata, want) {
			t.Errorf("%q %q %q was restored as %q %q %q", id, payload, want, got.UUID, got.Payload, got.Metadata)
		}
	})
}
