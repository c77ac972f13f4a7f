package deadletter

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// exportVersion is the form of a line.
const exportVersion = 1

// exportBytes bounds the payloads that are in memory at the same time, unless a
// single payload is larger.
const exportBytes = 1 << 20

// line is an exported row. RawMetadata is set instead of Metadata if the row has
// metadata that package outbox does not write.
type line struct {
	Version     int               `json:"version"`
	ID          int64             `json:"id"`
	Position    int64             `json:"position"`
	MessageID   string            `json:"message_id"`
	Topic       string            `json:"topic"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	RawMetadata []byte            `json:"raw_metadata,omitempty"`
	Payload     []byte            `json:"payload"`
	CreatedAt   time.Time         `json:"created_at"`

	*deadLine
	*sentLine

	size int // of the payload
}

type deadLine struct {
	Attempts     int       `json:"attempts"`
	Reason       string    `json:"reason"`
	Error        string    `json:"error"`
	Unknown      bool      `json:"unknown"`
	LastFailedAt time.Time `json:"last_failed_at"`
}

type sentLine struct {
	SentAt time.Time `json:"sent_at"`
}

// Export writes the letters that match to w, one JSON object a line, in ascending
// order of their IDs, and returns how many it wrote. If there is an error, w may
// contain more lines than that, and an incomplete last line. Filter.Limit is the
// largest total number of lines; the default is no limit.
//
// A line has the whole message, with the payload in base64. Protect the file as
// you protect the messages.
func (l *Letters) Export(ctx context.Context, f Filter, w io.Writer) (exported int, err error) {
	exported, err = l.table.export(ctx, f, w, func(ctx context.Context, f Filter) (lines []line, err error) {
		letters, err := l.list(ctx, f)
		for _, letter := range letters {
			next := lineOf(letter.Message)
			next.deadLine = &deadLine{letter.Attempts, letter.Reason, letter.Error, letter.Unknown, letter.LastFailedAt}
			lines = append(lines, next)
		}
		return lines, err
	})
	if err != nil {
		return exported, fmt.Errorf("deadletter: export: %w", err)
	}
	return exported, nil
}

// Export writes the messages that match to w, as [Letters.Export] does.
func (s *SentLog) Export(ctx context.Context, f Filter, w io.Writer) (exported int, err error) {
	exported, err = s.table.export(ctx, f, w, func(ctx context.Context, f Filter) (lines []line, err error) {
		messages, err := s.list(ctx, f)
		for _, m := range messages {
			next := lineOf(m.Message)
			next.sentLine = &sentLine{m.SentAt}
			lines = append(lines, next)
		}
		return lines, err
	})
	if err != nil {
		return exported, fmt.Errorf("deadletter: sent log: export: %w", err)
	}
	return exported, nil
}

func lineOf(m Message) line {
	return line{
		Version: exportVersion, ID: m.ID, Position: m.Position, MessageID: m.MessageID, Topic: m.Topic, OrderingKey: m.OrderingKey,
		Metadata: m.Metadata, CreatedAt: m.CreatedAt, size: m.Size,
	}
}

// export writes one page after the other. list returns the lines of a page
// without their contents.
func (t table) export(
	ctx context.Context, f Filter, w io.Writer, list func(ctx context.Context, f Filter) ([]line, error),
) (exported int, err error) {
	if err := t.validate(f); err != nil {
		return 0, err
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	limit := f.Limit
	for limit == 0 || exported < limit {
		f.Limit = page
		if limit > 0 {
			f.Limit = min(page, limit-exported)
		}
		lines, err := list(ctx, f)
		if err != nil || len(lines) == 0 {
			return exported, err
		}
		f.AfterID = lines[len(lines)-1].ID
		for len(lines) > 0 {
			n := together(lines)
			written, err := t.encode(ctx, encoder, lines[:n])
			if err == nil {
				err = out.Flush()
			}
			if err != nil {
				return exported, err
			}
			exported += written
			lines = lines[n:]
		}
	}
	return exported, nil
}

// together returns how many payloads to read in one query, at least one.
func together(lines []line) int {
	total := lines[0].size
	for i, next := range lines[1:] {
		if total += next.size; total > exportBytes {
			return i + 1
		}
	}
	return len(lines)
}

// encode completes and writes lines, and returns how many. Rows that were deleted
// meanwhile are left out.
func (t table) encode(ctx context.Context, encoder *json.Encoder, lines []line) (written int, err error) {
	ids := make([]int64, len(lines))
	for i, next := range lines {
		ids[i] = next.ID
	}
	found, err := t.contents(ctx, ids...)
	if err != nil {
		return 0, err
	}
	for _, next := range lines {
		row, ok := found[next.ID]
		if !ok {
			continue
		}
		next.Payload = row.payload
		if next.Metadata == nil {
			next.RawMetadata = row.metadata
		}
		if err := encoder.Encode(next); err != nil {
			return written, err
		}
		written++
	}
	return written, nil
}
