package parked

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
)

// Origin names an entry for good, whichever database it is brought to.
func (e *Entry) Origin() string {
	if e.origin != "" {
		return e.origin
	}
	return fmt.Sprintf("%d/%d/%x", e.ID, e.CreatedAt.UnixMilli(), e.Digest[:min(8, len(e.Digest))])
}

// CheckImport refuses an entry of which the columns are not those of its
// envelope.
func (e *Entry) CheckImport() error {
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
		if count.value < 0 || count.value > maxCount {
			errs = append(errs, fmt.Errorf("%s is %d, not in 0..%d", count.name, count.value, maxCount))
		}
	}
	if e.Envelope == nil {
		errs = append(errs, errors.New("envelope is missing"))
	}
	if _, err := e.originID(); e.MessageID == "" && err != nil {
		errs = append(errs, err)
	}
	if msg, err := Decode(e.Envelope); err == nil { // a damaged one is kept as it is
		if Clean(msg.UUID, maxName) != e.MessageID {
			errs = append(errs, errors.New("message_id is not that of the envelope"))
		}
		if !bytes.Equal(Digest(msg), e.Digest) {
			errs = append(errs, errors.New("digest is not that of the envelope"))
		}
	}
	return errors.Join(errs...)
}

// Edited says that the entry is the edited form of another one, here or where
// it was exported.
func (e *Entry) Edited() bool { return e.edited }

// Exported is an entry that has the given origin.
func (e Entry) Exported(origin string, edited bool) Entry {
	e.origin, e.edited = origin, edited
	return e
}

// Import puts entries into quarantine, as far as they are not in the table
// already, in whatever state. It returns how many were new.
func (s *Store) Import(ctx context.Context, act Act, entries []Entry) (imported int, err error) {
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		imported = 0
		for i := range entries {
			id, err := s.importOne(ctx, tx, &entries[i])
			if err != nil {
				return err
			}
			if id == 0 {
				continue
			}
			failpoint.Hit("parked/import")
			imported++
			e := &entries[i]
			if err := s.record(ctx, tx, act, "import", id, Clean(e.Consumer, maxName), Clean(e.MessageID, maxName)); err != nil {
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

// originID is the ID that the entry had where it was exported.
func (e *Entry) originID() (int64, error) {
	number, _, _ := strings.Cut(e.Origin(), "/")
	id, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("origin %.40q does not begin with an ID", e.Origin())
	}
	return id, nil
}

func (s *Store) importOne(ctx context.Context, tx *sql.Tx, e *Entry) (id int64, err error) {
	if e.MessageID == "" {
		here, err := e.originID()
		if err != nil {
			return 0, err
		}
		var known bool
		err = tx.QueryRowContext(ctx, s.sql.known, here, Clean(e.Consumer, maxName), e.Digest, e.CreatedAt.UnixMilli()).Scan(&known)
		if err != nil || known {
			return 0, err
		}
	}
	err = tx.QueryRowContext(ctx, s.sql.insertImported,
		Clean(e.Consumer, maxName), Clean(e.Topic, maxName), Clean(e.MessageID, maxName), Clean(e.Tenant, maxName), e.Digest, e.Envelope,
		e.Attempts, e.Crashes, e.Replays, Clean(e.Reason, maxName), Clean(e.Error, maxError), Clean(e.ErrorType, maxName),
		Clean(e.Fingerprint, maxName), e.CreatedAt.UnixMilli(), millisOf(e.FirstFailedAt), millisOf(e.LastFailedAt),
		Clean(e.Origin(), maxName), e.edited).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

// millisOf is NULL for the zero time.
func millisOf(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}
