package deadletter_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/outbox"
)

// decoded returns the lines of an export.
func decoded(t *testing.T, text *bytes.Buffer) (lines []map[string]any) {
	t.Helper()
	scanner := bufio.NewScanner(text)
	scanner.Buffer(nil, 8<<20)
	for scanner.Scan() {
		var line map[string]any
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &line))
		lines = append(lines, line)
	}
	require.NoError(t, scanner.Err())
	return lines
}

func TestExportWritesTheWholeLetter(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := msg("<a>", "key")
		m.Payload = []byte{0, 255, '\n'}
		b.insertDead(m, msg("odd", ""))
		b.exec(`UPDATE once_outbox_dead SET metadata = '[1]' WHERE message_id = 'odd'`)
		var out bytes.Buffer
		n, err := b.letters.Export(b.Context(), deadletter.Filter{}, &out)
		require.NoError(b, err)
		require.Equal(b, 2, n)
		require.Contains(b, out.String(), `"<a>"`, "not escaped as HTML")
		lines := decoded(b.T, &out)
		letter, err := b.letters.Get(b.Context(), 1)
		require.NoError(b, err)
		require.Equal(b, map[string]any{
			"version": 1.0, "id": 1.0, "position": 1000.0, "message_id": "<a>", "topic": "t", "ordering_key": "key",
			"metadata": map[string]any{outbox.OrderingKey: "key"}, "payload": "AP8K",
			"created_at": letter.CreatedAt.Format(time.RFC3339Nano), "last_failed_at": letter.LastFailedAt.Format(time.RFC3339Nano),
			"attempts": 20.0, "reason": "exhausted", "error": "no queue", "unknown": false,
		}, lines[0])
		require.Equal(b, "WzFd", lines[1]["raw_metadata"], "metadata of another form is written as it is")
		require.NotContains(b, lines[1], "metadata")
		require.NotContains(b, lines[1], "sent_at")
	})
}

func TestExportReturnsAllPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(205)...)
		large := message.NewMessage("large", bytes.Repeat([]byte("x"), 700_000))
		b.insertDead(large, large, large)
		var out bytes.Buffer
		n, err := b.letters.Export(b.Context(), deadletter.Filter{AfterID: 1}, &out)
		require.NoError(b, err)
		require.Equal(b, 207, n)
		lines := decoded(b.T, &out)
		require.Len(b, lines, 207)
		require.Equal(b, "2", fmt.Sprint(lines[0]["id"]))
		require.Equal(b, "208", fmt.Sprint(lines[206]["id"]))
		require.Len(b, lines[206]["payload"], 933_336)

		out.Reset()
		n, err = b.letters.Export(b.Context(), deadletter.Filter{Topic: "t", Limit: 150}, &out)
		require.NoError(b, err)
		require.Equal(b, 150, n)
		require.Equal(b, 150, strings.Count(out.String(), "\n"))
		n, err = b.letters.Export(b.Context(), deadletter.Filter{Topic: "no such topic"}, &out)
		require.NoError(b, err)
		require.Zero(b, n)
	})
}

func TestExportOfTheSentLog(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.record("t", msg("a", ""))
		var out bytes.Buffer
		n, err := b.log.Export(b.Context(), deadletter.Filter{}, &out)
		require.NoError(b, err)
		require.Equal(b, 1, n)
		line := decoded(b.T, &out)[0]
		require.Contains(b, line, "sent_at")
		require.NotContains(b, line, "reason")
		require.Equal(b, "a", line["message_id"])
	})
}

type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestExportReportsAnErrorOfTheWriter(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(3)...)
		n, err := b.letters.Export(b.Context(), deadletter.Filter{}, full{})
		require.ErrorIs(b, err, errFull)
		require.ErrorContains(b, err, "deadletter: export: ")
		require.Zero(b, n)
	})
}
