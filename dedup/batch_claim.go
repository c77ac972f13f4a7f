package dedup

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
)

// errPartlyHandled rolls back the transaction of a batch, which starts again without some messages:
// the lease of a message has ended, so another process may handle it, or the inbox contains only
// its id or only its key. The row that was inserted for such a message must not be committed.
var errPartlyHandled = errors.New("a message was handled in part, or its lease has ended")

// claim inserts the messages of a batch, and finishes those that the inbox already contains.
func (r *batchRun) claim(ctx context.Context, tx *sql.Tx) error {
	fresh, err := r.insert(ctx, tx)
	if dialect.Unstorable(err) { // each message is then handled in a separate transaction, and only the bad one fails
		return unstorable(err)
	}
	if err != nil {
		dialect.Distrust(tx, err)
		return chain.NotCalled(fmt.Errorf("dedup: claim %d messages for %q: %w", len(r.items), r.consumer, dialect.Denied(err)))
	}
	if r.finishLost() {
		return errPartlyHandled
	}
	var known []string
	for _, item := range r.items {
		for _, id := range item.identities {
			if !fresh[id.id] {
				known = append(known, id.id)
			}
		}
	}
	if len(known) == 0 {
		return nil
	}
	digests, err := r.digests(ctx, tx, known)
	if err != nil {
		return chain.NotCalled(fmt.Errorf("dedup: compare %d messages for %q: %w", len(known), r.consumer, err))
	}
	isFresh := func(id identity) bool { return fresh[id.id] }
	isKnown := func(id identity) bool { return !fresh[id.id] }
	single := len(r.items) == 1
	partly := r.separate(func(item *batchItem) bool {
		return !single && slices.ContainsFunc(item.identities, isFresh) && slices.ContainsFunc(item.identities, isKnown)
	})
	r.items = slices.DeleteFunc(r.items, func(item *batchItem) bool {
		for _, id := range item.identities {
			if !fresh[id.id] {
				item.finish(r.compareDigest(id, digests[id.id]))
				return true
			}
		}
		return false
	})
	if partly {
		return errPartlyHandled
	}
	return nil
}

// finishLost ends messages whose lease may have ended with an error. It reports whether any did.
func (r *batchRun) finishLost() bool {
	before := len(r.items)
	r.items = slices.DeleteFunc(r.items, func(item *batchItem) bool {
		err := checkLease(item.ctx)
		if err != nil {
			item.finish(err)
		}
		return err != nil
	})
	return len(r.items) < before
}

// The rows are sorted by id, so that two batches with the same messages cannot deadlock.
func (r *batchRun) insert(ctx context.Context, tx *sql.Tx) (fresh map[string]bool, err error) {
	type inboxRow struct {
		identity

		tenant any
	}
	var rows []inboxRow
	for _, item := range r.items {
		for _, id := range item.identities {
			rows = append(rows, inboxRow{id, parkedrows.Tenant(item.msg)})
		}
	}
	slices.SortFunc(rows, func(a, b inboxRow) int { return strings.Compare(a.id, b.id) })
	args := make([]any, 1, 1+claimParams*len(rows))
	args[0] = r.consumer
	for _, row := range rows {
		args = append(args, row.id, row.digest[:], row.tenant)
	}

	wait := r.config.LockTimeout
	if len(r.items) > 1 {
		wait = min(wait, batchLockTimeout)
	}
	if _, err := tx.ExecContext(ctx, r.sql.beforeClaim(wait)); err != nil {
		return nil, err
	}
	fresh = make(map[string]bool, len(rows))
	if len(rows) > 0 {
		err = dialect.EachRow(ctx, tx, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			fresh[id] = true
			return err
		}, r.claims.In(tx).claim(len(rows)), args...)
	}
	if err == nil && r.sql.afterClaim != "" && len(rows) != 1 { // the statement for a single row resets the timeout itself
		_, err = tx.ExecContext(ctx, r.sql.afterClaim)
	}
	return fresh, err
}

func (r *batchRun) digests(ctx context.Context, tx *sql.Tx, ids []string) (map[string][]byte, error) {
	digests := make(map[string][]byte, len(ids))
	return digests, dialect.EachRow(ctx, tx, func(scan func(...any) error) error {
		var id string
		var digest []byte
		err := scan(&id, &digest)
		digests[id] = digest
		return err
	}, r.claims.In(tx).digests, r.consumer, r.dialect.Strings(ids))
}

func (r *batchRun) compareDigest(id identity, digest []byte) error {
	switch {
	case digest == nil:
		return r.unclaimed(id, r.consumer)
	case !bytes.Equal(digest, id.digest[:]):
		return collisionError(id, r.consumer)
	}
	return errAlreadyHandled
}
