package outboxrow

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
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
		require.Equal(t, wantErr, err)
		if err == nil {
			require.Len(t, got, len(want))
			for key, value := range want {
				require.Equal(t, value, got[key])
			}
		}
	})
}
