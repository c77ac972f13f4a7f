package dead

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

const exportVersion = 1

// exportBytes limits the payloads in memory. A single one may be larger.
const exportBytes = 1 << 20

// RawMetadata is set if the metadata is not in the form that package outbox writes.
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

	size int // size of the payload, in bytes
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

// Export writes the letters that match f to w, one JSON object per line, in ascending order of
// their IDs, at most Filter.Limit, and returns their number. After an error, w may contain more
// lines, and an incomplete last one.
//
// A line contains the whole message, with the payload in base64. Protect the file as you protect
// the messages.
func (l *Letters) Export(ctx context.Context, f operate.Filter, w io.Writer) (exported int, err error) {
	exported, err = l.table.export(ctx, f, w, func(ctx context.Context, f operate.Filter) (lines []line, after int64, err error) {
		p, err := l.list(ctx, f, true)
		for _, letter := range p.Rows {
			next := lineOf(letter.Message)
			next.deadLine = &deadLine{letter.Attempts, letter.Reason, letter.Error, letter.Unknown, letter.LastFailedAt}
			lines = append(lines, next)
		}
		return lines, p.Next, err
	})
	if err != nil {
		return exported, fmt.Errorf("dead: export: %w", err)
	}
	return exported, nil
}

// Export writes the messages that match f to w, in the format of [Letters.Export].
func (s *SentLog) Export(ctx context.Context, f operate.Filter, w io.Writer) (exported int, err error) {
	exported, err = s.table.export(ctx, f, w, func(ctx context.Context, f operate.Filter) (lines []line, after int64, err error) {
		p, err := s.list(ctx, f, true)
		for _, m := range p.Rows {
			next := lineOf(m.Message)
			next.sentLine = &sentLine{m.SentAt}
			lines = append(lines, next)
		}
		return lines, p.Next, err
	})
	if err != nil {
		return exported, fmt.Errorf("dead: sent log: export: %w", err)
	}
	return exported, nil
}

func lineOf(m Message) line {
	return line{
		Version: exportVersion, ID: m.ID, Position: m.Position, MessageID: m.MessageID, Topic: m.Topic, OrderingKey: m.OrderingKey,
		Metadata: m.Metadata, CreatedAt: m.CreatedAt, size: m.Size,
	}
}

// For each page, export calls list, which returns its lines without contents, and
// operate.Filter.AfterID for the next page.
func (t *table) export(
	ctx context.Context, f operate.Filter, w io.Writer, list func(ctx context.Context, f operate.Filter) ([]line, int64, error),
) (exported int, err error) {
	if err := t.Check(f); err != nil {
		return 0, err
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	limit := f.Limit
	for limit == 0 || exported < limit {
		f.Limit = rows.PageRows
		if limit > 0 {
			f.Limit = min(rows.PageRows, limit-exported)
		}
		lines, next, err := list(ctx, f)
		if err != nil {
			return exported, err
		}
		for len(lines) > 0 {
			n := payloadsPerQuery(lines)
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
		if f.AfterID = next; next == 0 {
			break
		}
	}
	return exported, nil
}

func payloadsPerQuery(lines []line) int {
	total := lines[0].size
	for i, next := range lines[1:] {
		if total += next.size; total > exportBytes {
			return i + 1
		}
	}
	return len(lines)
}

// encode adds the payloads to lines, and leaves out rows that were deleted in the meantime.
func (t *table) encode(ctx context.Context, encoder *json.Encoder, lines []line) (written int, err error) {
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
