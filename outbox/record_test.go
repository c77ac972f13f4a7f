package outbox

import (
	"encoding/json"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Metadata is stored as encoding/json writes it.
func TestMetadataIsEncodedAsByEncodingJSON(t *testing.T) {
	all := message.Metadata{"": "", "b": "two", "a": "one", "日本": "\u2028", "invalid": "\xff"}
	for c := range rune(256) {
		all["key"+string(c)] = "value" + string(c) + "."
	}
	for _, metadata := range []message.Metadata{nil, {}, {"a": "b"}, all} {
		want, _ := json.Marshal(metadata)
		if len(metadata) == 0 {
			want = []byte("{}")
		}
		if got := encode(metadata); got != string(want) {
			t.Errorf("encoded as %s\nwant %s", got, want)
		}
	}
}
