package poison

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/watermill-once/once/internal/parked"
)

// exportVersion is the form of a line.
const exportVersion = 1

// line is an entry as it is exported. Envelope is the message byte for byte, in
// base64; what else is there of it can be read and is not read back.
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
	Attempts      int               `json:"attempts"`
	Crashes       int               `json:"crashes"`
	Replays       int               `json:"replays"`
	CreatedAt     time.Time         `json:"created_at"`
	FirstFailedAt time.Time         `json:"first_failed_at,omitzero"`
	LastFailedAt  time.Time         `json:"last_failed_at,omitzero"`
	Edited        bool              `json:"edited,omitempty"` // so what could not be decoded can be now
	Metadata      map[string]string `json:"metadata,omitempty"`
	Digest        string            `json:"digest"`
	Envelope      []byte            `json:"envelope"`
}

// Export writes the messages in quarantine that match to w, one JSON object a
// line, and returns how many: with an error there may be some more, and a part
// of one. Filter's Limit, if there is one, is about all of them.
//
// A line holds the message byte for byte, payload and metadata included: keep
// it as you keep these.
func (s *Quarantine) Export(ctx context.Context, f Filter, w io.Writer) (exported int, err error) {
	if err := parked.Filter(f).Validate(); err != nil {
		return 0, fmt.Errorf("poison: export: %w", err)
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for f.Limit == 0 || exported < f.Limit {
		n := page
		if f.Limit > 0 {
			n = min(n, f.Limit-exported)
		}
		ids, err := s.parked.Next(ctx, parked.Filter(f), n, atOnce, parked.Quarantined)
		if err != nil {
			return exported, fmt.Errorf("poison: export: %w", err)
		}
		if len(ids) == 0 {
			break
		}
		entries, err := s.parked.List(ctx, parked.Filter{IDs: ids}, parked.Quarantined)
		if err != nil {
			return exported, fmt.Errorf("poison: export: %w", err)
		}
		for i := range entries {
			if err := encoder.Encode(lineOf(&entries[i])); err != nil {
				return exported, fmt.Errorf("poison: export: %w", err)
			}
		}
		if err := out.Flush(); err != nil {
			return exported, fmt.Errorf("poison: export: %w", err)
		}
		exported += len(entries)
		f.AfterID = ids[len(ids)-1]
	}
	return exported, nil
}

// atOnce bounds the bytes of the messages that are in memory together, within
// the size of one.
const atOnce = 1 << 20

func lineOf(e *parked.Entry) line {
	l := line{
		Version: exportVersion, Origin: e.Origin(), Consumer: e.Consumer, Topic: e.Topic, MessageID: e.MessageID, Tenant: e.Tenant,
		Reason: e.Reason, Error: e.Error, ErrorType: e.ErrorType, Fingerprint: e.Fingerprint,
		Attempts: e.Attempts, Crashes: e.Crashes, Replays: e.Replays,
		CreatedAt: e.CreatedAt.UTC(), Edited: e.Edited(), Digest: hex.EncodeToString(e.Digest), Envelope: e.Envelope,
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

// Imported is what became of the lines of an import.
type Imported struct {
	Imported int // new in quarantine
	Known    int // in the table already, in quarantine or not, and left alone
}

// importBatch is how many lines are imported in one transaction.
const importBatch = 100

// Import puts what [Quarantine.Export] has written into quarantine, in this database
// or another. An entry that is there already is left as it is, so that an
// import can be repeated, until dedup has removed what was handled or discarded
// in between. An error names its line: what stands before it may have been
// imported, and is known when it is imported again.
func (s *Quarantine) Import(ctx context.Context, act Act, r io.Reader) (Imported, error) {
	var done Imported
	if err := parked.Act(act).Validate(); err != nil {
		return done, fmt.Errorf("poison: import: %w", err)
	}
	in := bufio.NewReader(r)
	var entries []parked.Entry
	size := 0
	flush := func() error {
		n, err := s.parked.Import(ctx, parked.Act(act), entries)
		if err != nil {
			return err
		}
		done.Imported += n
		done.Known += len(entries) - n
		entries, size = nil, 0
		return nil
	}
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return done, fmt.Errorf("poison: import: line %d: %w", number, err)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			entry, err := readLine(text)
			if err != nil {
				return done, fmt.Errorf("poison: import: line %d: %w", number, err)
			}
			entries = append(entries, entry)
			size += len(entry.Envelope)
		}
		if last || len(entries) == importBatch || size >= atOnce {
			if err := flush(); err != nil {
				return done, fmt.Errorf("poison: import: up to line %d: %w", number, err)
			}
		}
		if last {
			return done, nil
		}
	}
}

func readLine(text []byte) (parked.Entry, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return parked.Entry{}, err
	}
	if l.Version != exportVersion {
		return parked.Entry{}, fmt.Errorf("version is %d: this code knows %d", l.Version, exportVersion)
	}
	if l.Origin == "" {
		return parked.Entry{}, errors.New("origin is empty")
	}
	digest, err := hex.DecodeString(l.Digest)
	if err != nil {
		return parked.Entry{}, fmt.Errorf("digest: %w", err)
	}
	entry := parked.Entry{Shown: parked.Shown{
		Consumer: l.Consumer, Topic: l.Topic, MessageID: l.MessageID, Tenant: l.Tenant,
		Reason: l.Reason, Error: l.Error, ErrorType: l.ErrorType, Fingerprint: l.Fingerprint,
		Attempts: l.Attempts, Crashes: l.Crashes, Replays: l.Replays,
		CreatedAt: l.CreatedAt, FirstFailedAt: l.FirstFailedAt, LastFailedAt: l.LastFailedAt,
		Digest: digest, Envelope: l.Envelope,
	}}.Exported(l.Origin, l.Edited)
	return entry, entry.CheckImport()
}
