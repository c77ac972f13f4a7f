package outboxrow

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

var metadataTexts = []string{
	`{}`, ` {} `, `{"a": "b"}`, `{"a":"b","c":"d"}`, `{ "a" : "b" , "c" : "" }`, `{"": ""}`, `{"a":"{},:"}`,
	`{"日本": "🜚"}`, `{"a":"\u0041\"\\"}`, "{\n\"a\":\t\"b\"}",
	`{"a":1}`, `{"a":null}`, `{"a":{"b":"c"}}`, `{"a":["b"]}`, `["a"]`, `"a"`, `1`, `null`, `true`, ``,
	`{`, `{"a"`, `{"a":`, `{"a":"b"`, `{"a":"b",`, `{"a":"b",}`, `{"a":"b"}}`, `{"a" "b"}`, `{a:"b"}`,
}

// FuzzDecodeMetadata compares DecodeMetadata with encoding/json.
func FuzzDecodeMetadata(f *testing.F) {
	for _, text := range metadataTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
			return // the database refuses such text
		}
		want := message.Metadata{}
		wantErr := json.Unmarshal([]byte(text), &want)
		got, err := DecodeMetadata([]byte(text))
		if !reflect.DeepEqual(err, wantErr) {
			t.Fatalf("err is %v, want %v", err, wantErr)
		}
		if err == nil {
			if len(got) != len(want) {
				t.Fatalf("len(got) is %d, want %d: %v", len(got), len(want), got)
			}
			for key, value := range want {
				if got[key] != value {
					t.Fatalf("got[key] is %q, want %q", got[key], value)
				}
			}
		}
	})
}
