package dedup

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
)

// errMixed says that something of a message was done before and something was
// not, its id and its key, or that it is not ours any more: its rows must go
// before the others can be handled.
var errMixed = errors.New("done in part")

// claim enters the messages of a turn into the inbox with one statement. Those
// that are there already are settled.
func (t *turn) claim(ctx context.Context, tx *sql.Tx) error {
	fresh, err := t.insert(ctx, tx)
	if dialect.Unstorable(err) { // of several messages, each is asked alone
		return unstorable(err)
	}
	if err != nil {
		return disposition.NotCalled(fmt.Errorf("dedup: claim %d messages for %q: %w", len(t.entries), t.consumer, err))
	}
	if t.leaveLost() {
		return errMixed
	}
	var known []string
	for _, e := range t.entries {
		for _, id := range e.identities {
			if !fresh[id.id] {
				known = append(known, id.id)
			}
		}
	}
	if len(known) == 0 {
		return nil
	}
	digests, err := t.digests(ctx, tx, known)
	if err != nil {
		return disposition.NotCalled(fmt.Errorf("dedup: compare %d messages for %q: %w", len(known), t.consumer, err))
	}
	lone := len(t.entries) == 1
	mixed := t.drop(func(e *entry) bool {
		isFresh := func(id identity) bool { return fresh[id.id] }
		return !lone && slices.ContainsFunc(e.identities, isFresh) && slices.ContainsFunc(e.identities, not(isFresh))
	})
	t.entries = slices.DeleteFunc(t.entries, func(e *entry) bool {
		for _, id := range e.identities {
			if !fresh[id.id] {
				e.settle(t.compared(id, digests[id.id]))
				return true
			}
		}
		return false
	})
	if mixed {
		return errMixed
	}
	return nil
}

// leaveLost settles those that are not held any more, and says whether there were
// any.
func (t *turn) leaveLost() bool {
	before := len(t.entries)
	t.entries = slices.DeleteFunc(t.entries, func(e *entry) bool {
		err := held(e.ctx)
		if err != nil {
			e.settle(err)
		}
		return err != nil
	})
	return len(t.entries) < before
}

func not[T any](f func(T) bool) func(T) bool { return func(v T) bool { return !f(v) } }

// insert returns which ids were not there. It goes in the order of ids, so that
// two batches with the same messages do not wait for each other.
func (t *turn) insert(ctx context.Context, tx *sql.Tx) (fresh map[string]bool, err error) {
	type row struct {
		identity

		tenant any
	}
	var rows []row
	for _, e := range t.entries {
		for _, id := range e.identities {
			rows = append(rows, row{id, parked.Tenant(e.msg)})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.id, b.id) })
	args := make([]any, 1, 1+claimParams*len(rows))
	args[0] = t.consumer
	for _, r := range rows {
		args = append(args, r.id, r.digest[:], r.tenant)
	}

	wait := t.config.LockTimeout
	if len(t.entries) > 1 {
		wait = min(wait, batchLockTimeout)
	}
	if _, err := tx.ExecContext(ctx, t.sql.beforeClaim(wait)); err != nil {
		return nil, err
	}
	fresh = make(map[string]bool, len(rows))
	if len(rows) > 0 {
		err = query(ctx, tx, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			fresh[id] = true
			return err
		}, t.sql.claim(len(rows)), args...)
	}
	if err == nil && t.sql.afterClaim != "" && len(rows) != 1 { // one claim sets it back by itself
		_, err = tx.ExecContext(ctx, t.sql.afterClaim)
	}
	return fresh, err
}

// digests returns those that the inbox has of the ids.
func (t *turn) digests(ctx context.Context, tx *sql.Tx, ids []string) (map[string][]byte, error) {
	digests := make(map[string][]byte, len(ids))
	return digests, query(ctx, tx, func(scan func(...any) error) error {
		var id string
		var digest []byte
		err := scan(&id, &digest)
		digests[id] = digest
		return err
	}, t.sql.digests, t.consumer, t.dialect.Strings(ids))
}

// compared tells a copy from another message with the same id.
func (t *turn) compared(id identity, digest []byte) error {
	switch {
	case digest == nil: // retention has just removed the row: the next try inserts it
		return disposition.NotCalled(fmt.Errorf("dedup: compare message %q for %q: %w", id.id, t.consumer, sql.ErrNoRows))
	case !bytes.Equal(digest, id.digest[:]):
		return collided(id, t.consumer)
	}
	return errDone
}

func query(ctx context.Context, tx *sql.Tx, each func(scan func(...any) error) error, query string, args ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
