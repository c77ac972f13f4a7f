package quarantine

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
)

const importBatch = 100

// Import reads the output of [Entries.Export] and puts the entries into quarantine, in this
// database or another one. It returns the numbers of new and of known entries, which the table
// already contains in any state, and which do not change, so you can repeat an import. But after
// dedup has removed the row of a handled or discarded message, a repeated import adds it again. An
// error names the line; the lines before may have been imported.
func (q *Entries) Import(ctx context.Context, act operate.Act, r io.Reader) (imported, known int, err error) {
	if err := act.Validate(); err != nil {
		return 0, 0, fmt.Errorf("quarantine: import: %w", err)
	}
	in := bufio.NewReader(r)
	var entries []Entry
	size := 0
	flush := func() error {
		n, err := q.table.importAll(ctx, act, entries)
		if err != nil {
			return err
		}
		imported += n
		known += len(entries) - n
		entries, size = nil, 0
		return nil
	}
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return imported, known, fmt.Errorf("quarantine: import: line %d: %w", number, err)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			entry, err := readLine(text)
			if err != nil {
				return imported, known, fmt.Errorf("quarantine: import: line %d: %w", number, err)
			}
			entries = append(entries, entry)
			size += len(entry.Envelope)
		}
		if last || len(entries) == importBatch || size >= maxBytes {
			if err := flush(); err != nil {
				return imported, known, fmt.Errorf("quarantine: import: up to line %d: %w", number, err)
			}
		}
		if last {
			return imported, known, nil
		}
	}
}

// importAll skips entries that the table already contains.
func (t *table) importAll(ctx context.Context, act operate.Act, entries []Entry) (imported int, err error) {
	err = t.Write(ctx, func(tx *sql.Tx) error {
		imported = 0
		for i := range entries {
			e := &entries[i]
			id, err := t.importOne(ctx, tx, e)
			if err != nil {
				return err
			}
			if id == 0 {
				continue
			}
			failpoint.Hit("operate/quarantine/import")
			imported++
			consumer, messageID := parkedrows.Clean(e.Consumer, parkedrows.MaxName), parkedrows.Clean(e.MessageID, parkedrows.MaxName)
			if err := t.record(ctx, tx, act, "import", id, consumer, messageID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return imported, nil
}

func (t *table) importOne(ctx context.Context, tx *sql.Tx, e *Entry) (id int64, err error) {
	name := func(text string) string { return parkedrows.Clean(text, parkedrows.MaxName) }
	if e.MessageID == "" {
		exported, err := e.exportedID()
		if err != nil {
			return 0, err
		}
		var known bool
		err = tx.QueryRowContext(ctx, t.sql.known, exported, name(e.Consumer), e.Digest, e.CreatedAt.UnixMilli()).Scan(&known)
		if err != nil || known {
			return 0, err
		}
	}
	msg, err := parkedrows.Decode(e.Envelope)
	if err != nil { // a damaged envelope is imported without the columns that are read from its metadata
		msg = message.NewMessage("", nil)
	}
	err = tx.QueryRowContext(ctx, t.sql.insertImported, append([]any{
		name(e.Consumer), name(e.Topic), name(e.MessageID), name(e.Tenant), e.Digest, e.Envelope,
		e.Attempts, e.Crashes, e.Replays, name(e.Reason), parkedrows.Clean(e.Error, parkedrows.MaxError), name(e.ErrorType),
		name(e.Fingerprint), parkedrows.Clean(e.Stack, parkedrows.MaxStack), e.CreatedAt.UnixMilli(), millisOf(e.FirstFailedAt),
		millisOf(e.LastFailedAt),
		name(e.exportOrigin()), e.edited,
	}, parkedrows.LabelsOf(msg)...)...).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

// exportOrigin identifies the entry in all databases that import it.
func (e *Entry) exportOrigin() string {
	if e.origin != "" {
		return e.origin
	}
	return fmt.Sprintf("%d/%d/%x", e.ID, e.CreatedAt.UnixMilli(), e.Digest[:min(8, len(e.Digest))])
}

func (e *Entry) exportedID() (int64, error) {
	number, _, _ := strings.Cut(e.exportOrigin(), "/")
	id, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("origin %.40q does not begin with an ID", e.exportOrigin())
	}
	return id, nil
}

func (e *Entry) validateImport() error {
	var errs []error
	if len(e.Digest) == 0 {
		errs = append(errs, errors.New("digest is empty"))
	}
	if e.Reason == "" {
		errs = append(errs, errors.New("reason is empty"))
	}
	if e.CreatedAt.IsZero() {
		errs = append(errs, errors.New("created_at is empty"))
	}
	for _, count := range []struct {
		name  string
		value int
	}{{"attempts", e.Attempts}, {"crashes", e.Crashes}, {"replays", e.Replays}} {
		if count.value < 0 || count.value > parkedrows.MaxCount {
			errs = append(errs, fmt.Errorf("%s is %d, not in 0..%d", count.name, count.value, parkedrows.MaxCount))
		}
	}
	if e.Envelope == nil {
		errs = append(errs, errors.New("envelope is missing"))
	}
	if _, err := e.exportedID(); e.MessageID == "" && err != nil {
		errs = append(errs, err)
	}
	if msg, err := parkedrows.Decode(e.Envelope); err == nil { // a damaged envelope is imported as it is
		if parkedrows.Clean(msg.UUID, parkedrows.MaxName) != e.MessageID {
			errs = append(errs, errors.New("message_id is not that of the envelope"))
		}
		if !bytes.Equal(parkedrows.Digest(msg), e.Digest) {
			errs = append(errs, errors.New("digest is not that of the envelope"))
		}
	}
	return errors.Join(errs...)
}

func millisOf(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}
