package dead_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/outbox"
)

// decoded returns the lines of an export.
func decoded(t *testing.T, text *bytes.Buffer) (lines []map[string]any) {
	t.Helper()
	scanner := bufio.NewScanner(text)
	scanner.Buffer(nil, 8<<20)
	for scanner.Scan() {
		var line map[string]any
		kit.OK(t, json.Unmarshal(scanner.Bytes(), &line))
		lines = append(lines, line)
	}
	kit.OK(t, scanner.Err())
	return lines
}

func TestExportWritesTheWholeLetter(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("<a>", "key")
		m.Payload = []byte{0, 255, '\n'}
		b.insertDead(m, msg("odd", ""))
		b.Exec(`UPDATE once_outbox_dead SET metadata = '[1]' WHERE message_id = 'odd'`)
		var out bytes.Buffer
		n, err := b.letters.Export(b.Context(), operate.Filter{}, &out)
		kit.OK(b, err)
		if n != 2 {
			b.Fatalf("n is %d, want 2", n)
		}
		if got, want := out.String(), `"<a>"`; !strings.Contains(got, want) {
			b.Fatalf("%q does not contain %q: not escaped as HTML", got, want)
		}
		lines := decoded(b.T, &out)
		letter, err := b.letters.Get(b.Context(), 1)
		kit.OK(b, err)
		want := map[string]any{
			"version": 1.0, "id": 1.0, "position": 1000.0, "message_id": "<a>", "topic": "t", "ordering_key": "key",
			"metadata": map[string]any{outbox.OrderingKey: "key"}, "payload": "AP8K",
			"created_at": letter.CreatedAt.Format(time.RFC3339Nano), "last_failed_at": letter.LastFailedAt.Format(time.RFC3339Nano),
			"attempts": 20.0, "reason": "exhausted", "error": "no queue", "unknown": false,
		}
		if !reflect.DeepEqual(lines[0], want) {
			b.Fatalf("lines[0] is %v, want %v", lines[0], want)
		}
		if lines[1]["raw_metadata"] != "WzFd" {
			b.Fatalf(`lines[1]["raw_metadata"] is %v, want "WzFd": metadata of another form is written as it is`, lines[1]["raw_metadata"])
		}
		if _, ok := lines[1]["metadata"]; ok {
			b.Fatalf(`lines[1] has "metadata": %v`, lines[1])
		}
		if _, ok := lines[1]["sent_at"]; ok {
			b.Fatalf(`lines[1] has "sent_at": %v`, lines[1])
		}
	})
}

func TestExportReturnsAllPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(205)...)
		large := message.NewMessage("large", bytes.Repeat([]byte("x"), 700_000))
		b.insertDead(large, large, large)
		var out bytes.Buffer
		n, err := b.letters.Export(b.Context(), operate.Filter{AfterID: 1}, &out)
		kit.OK(b, err)
		if n != 207 {
			b.Fatalf("n is %d, want 207", n)
		}
		lines := decoded(b.T, &out)
		if len(lines) != 207 {
			b.Fatalf("%d lines, want 207", len(lines))
		}
		if got := fmt.Sprint(lines[0]["id"]); got != "2" {
			b.Fatalf(`lines[0]["id"] is %q, want "2"`, got)
		}
		if got := fmt.Sprint(lines[206]["id"]); got != "208" {
			b.Fatalf(`lines[206]["id"] is %q, want "208"`, got)
		}
		if payload, _ := lines[206]["payload"].(string); len(payload) != 933_336 {
			b.Fatalf("the payload has %d characters, want 933336", len(payload))
		}

		out.Reset()
		n, err = b.letters.Export(b.Context(), operate.Filter{Topic: "t", Limit: 150}, &out)
		kit.OK(b, err)
		if n != 150 {
			b.Fatalf("n is %d, want 150", n)
		}
		if got := strings.Count(out.String(), "\n"); got != 150 {
			b.Fatalf("%d lines, want 150", got)
		}
		n, err = b.letters.Export(b.Context(), operate.Filter{Topic: "no such topic"}, &out)
		kit.OK(b, err)
		if n != 0 {
			b.Fatalf("n is %d, want 0", n)
		}
	})
}

func TestExportOfTheSentLog(t *testing.T) {
	eachSentLog(t, func(b *bench) {
		b.record("t", msg("a", ""))
		var out bytes.Buffer
		n, err := b.log.Export(b.Context(), operate.Filter{}, &out)
		kit.OK(b, err)
		if n != 1 {
			b.Fatalf("n is %d, want 1", n)
		}
		line := decoded(b.T, &out)[0]
		if _, ok := line["sent_at"]; !ok {
			b.Fatalf(`line has no "sent_at": %v`, line)
		}
		if _, ok := line["reason"]; ok {
			b.Fatalf(`line has "reason": %v`, line)
		}
		if line["message_id"] != "a" {
			b.Fatalf(`line["message_id"] is %v, want "a"`, line["message_id"])
		}
	})
}

type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestExportReportsAnErrorOfTheWriter(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(3)...)
		n, err := b.letters.Export(b.Context(), operate.Filter{}, full{})
		if !errors.Is(err, errFull) {
			b.Fatalf("got %v, want errFull", err)
		}
		if err == nil || !strings.Contains(err.Error(), "dead: export: ") {
			b.Fatalf(`got %v, want an error with "deadletter: export: "`, err)
		}
		if n != 0 {
			b.Fatalf("n is %d, want 0", n)
		}
	})
}
