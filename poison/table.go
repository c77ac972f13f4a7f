package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

// table reads and writes the quarantined rows of once_parked, and the tables of replays
// and of the audit log.
type table struct {
	db      *sql.DB
	dialect dialect.Dialect
	parked  *parked.Store
	sql     queries

	withoutContent bool // leave out the contents of entries, see Config.WithoutContent
}

func newTable(db *sql.DB, config schema.Config) (*table, error) {
	store, err := parked.NewStore(db, config)
	if err != nil {
		return nil, err
	}
	d := store.Dialect()
	return &table{db: db, dialect: d, parked: store, sql: newQueries(d)}, nil
}

// record writes a line of the audit log.
func (t *table) record(ctx context.Context, tx *sql.Tx, act Act, action string, id int64, consumer, messageID string) error {
	return t.recordOn(ctx, tx, act, action, "parked:"+strconv.FormatInt(id, 10), consumer, messageID)
}

func (t *table) recordOn(ctx context.Context, tx *sql.Tx, act Act, action, subject, consumer, messageID string) error {
	_, err := tx.ExecContext(ctx, t.sql.audit, parked.Clean(act.Actor, parked.MaxName), action, parked.Clean(subject, parked.MaxName),
		consumer, messageID, parked.Clean(act.Why, parked.MaxError))
	failpoint.Hit("poison/audited")
	return err
}

// count returns the number of quarantined rows, but at most limit.
func (t *table) count(ctx context.Context, limit int) (n int64, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, t.sql.count, limit).Scan(&n)
	})
	if err != nil {
		err = fmt.Errorf("count quarantined messages: %w", err)
	}
	return n, err
}

// selectIDs returns the values of the first column of all rows in the result.
func selectIDs(ctx context.Context, tx *sql.Tx, query string, args []any) (ids []int64, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var id int64
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, query, args...)
	return ids, err
}

// each calls f for each id. If a row is not in quarantine, each returns [ErrNotFound].
func each(ids []int64, f func(id int64) error) error {
	for _, id := range ids {
		err := f(id)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w in quarantine: %d", ErrNotFound, id)
		}
		if err != nil {
			return fmt.Errorf("message %d: %w", id, err)
		}
	}
	return nil
}
