package quarantine

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

const exportVersion = 1

// Envelope contains the message byte for byte, in base64. Metadata is for people who read the file,
// and ignored by an import.
type line struct {
	Version       int               `json:"version"`
	Origin        string            `json:"origin"`
	Consumer      string            `json:"consumer"`
	Topic         string            `json:"topic"`
	MessageID     string            `json:"message_id"`
	Tenant        string            `json:"tenant,omitempty"`
	Reason        string            `json:"reason"`
	Error         string            `json:"error"`
	ErrorType     string            `json:"error_type"`
	Fingerprint   string            `json:"fingerprint"`
	Stack         string            `json:"stack,omitempty"`
	Attempts      int               `json:"attempts"`
	Crashes       int               `json:"crashes"`
	Replays       int               `json:"replays"`
	CreatedAt     time.Time         `json:"created_at"`
	FirstFailedAt time.Time         `json:"first_failed_at,omitzero"`
	LastFailedAt  time.Time         `json:"last_failed_at,omitzero"`
	Edited        bool              `json:"edited,omitempty"` // an edited message can be decoded even if Reason is "undecodable"
	Metadata      map[string]string `json:"metadata,omitempty"`
	Digest        string            `json:"digest"`
	Envelope      []byte            `json:"envelope"`
}

// Export writes the matching messages in quarantine to w, one JSON object per line, at most
// Filter.Limit, and returns their number. After an error, w may contain more lines, and an
// incomplete last one.
//
// A line contains the message byte for byte, with payload and metadata. Protect the output as you
// protect the messages.
func (q *Entries) Export(ctx context.Context, f operate.Filter, w io.Writer) (exported int, err error) {
	if err := q.table.Check(f); err != nil {
		return 0, fmt.Errorf("quarantine: export: %w", err)
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for f.Limit == 0 || exported < f.Limit {
		n := rows.PageRows
		if f.Limit > 0 {
			n = min(n, f.Limit-exported)
		}
		ids, err := q.table.nextIDs(ctx, f, n, maxBytes)
		if err != nil {
			return exported, fmt.Errorf("quarantine: export: %w", err)
		}
		if len(ids) == 0 {
			break
		}
		page := operate.Filter{IDs: ids, Limit: len(ids)}
		found, err := q.table.list(ctx, page, func(tx *sql.Tx) (rows.Window, error) { return q.table.Window(ctx, tx, page, false) })
		if err != nil {
			return exported, fmt.Errorf("quarantine: export: %w", err)
		}
		for i := range found.Rows {
			if err := encoder.Encode(lineOf(&found.Rows[i])); err != nil {
				return exported, fmt.Errorf("quarantine: export: %w", err)
			}
		}
		if err := out.Flush(); err != nil {
			return exported, fmt.Errorf("quarantine: export: %w", err)
		}
		exported += len(found.Rows)
		f.AfterID = ids[len(ids)-1]
	}
	return exported, nil
}

// maxBytes limits the messages in memory. The last one may exceed it.
const maxBytes = 1 << 20

// nextIDs returns the first matching entries, at most n and size bytes, but at least one.
func (t *table) nextIDs(ctx context.Context, f operate.Filter, n int, size int64) (ids []int64, err error) {
	where := t.where(f, parkedrows.Quarantined)
	query := t.SQL(`SELECT id, length(envelope) FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.Arg(n))
	err = t.Look(ctx, func(tx *sql.Tx) error {
		left := size
		ids = nil
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var id, length int64
			err := scan(&id, &length)
			left -= length
			if left >= 0 || len(ids) == 0 {
				ids = append(ids, id)
			}
			return err
		}, query, where.Args...)
	})
	if err != nil {
		return nil, fmt.Errorf("look for parked messages: %w", err)
	}
	return ids, nil
}

func lineOf(e *Entry) line {
	l := line{
		Version: exportVersion, Origin: e.exportOrigin(), Consumer: e.Consumer, Topic: e.Topic, MessageID: e.MessageID, Tenant: e.Tenant,
		Reason: e.Reason, Error: e.Error, ErrorType: e.ErrorType, Fingerprint: e.Fingerprint, Stack: e.Stack,
		Attempts: e.Attempts, Crashes: e.Crashes, Replays: e.Replays,
		CreatedAt: e.CreatedAt.UTC(), Edited: e.edited, Digest: hex.EncodeToString(e.Digest), Envelope: e.Envelope,
	}
	if !e.FirstFailedAt.IsZero() {
		l.FirstFailedAt = e.FirstFailedAt.UTC()
	}
	if !e.LastFailedAt.IsZero() {
		l.LastFailedAt = e.LastFailedAt.UTC()
	}
	if e.Message != nil {
		l.Metadata = e.Message.Metadata
	}
	return l
}

func readLine(text []byte) (Entry, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return Entry{}, err
	}
	if l.Version != exportVersion {
		return Entry{}, fmt.Errorf("version is %d, this library reads version %d", l.Version, exportVersion)
	}
	if l.Origin == "" {
		return Entry{}, errors.New("origin is empty")
	}
	digest, err := hex.DecodeString(l.Digest)
	if err != nil {
		return Entry{}, fmt.Errorf("digest: %w", err)
	}
	entry := Entry{
		Consumer: l.Consumer, Topic: l.Topic, MessageID: l.MessageID, Tenant: l.Tenant,
		Reason: l.Reason, Error: l.Error, ErrorType: l.ErrorType, Fingerprint: l.Fingerprint, Stack: l.Stack,
		Attempts: l.Attempts, Crashes: l.Crashes, Replays: l.Replays,
		CreatedAt: l.CreatedAt, FirstFailedAt: l.FirstFailedAt, LastFailedAt: l.LastFailedAt,
		Digest: digest, Envelope: l.Envelope, origin: l.Origin, edited: l.Edited,
	}
	return entry, entry.validateImport()
}
