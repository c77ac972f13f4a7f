package parked

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
)

// Poll calls [Store.Due] for one subscription. A subscription polls also when it has no
// messages, and once_parked has many indexes, so planning the query takes PostgreSQL
// longer than executing it. After a result without due rows, Poll therefore first asks
// with a prepared query outside of a transaction, which takes one round trip. It is not
// safe for concurrent use.
type Poll struct {
	store  *Store
	reader *dialect.Reader // nil before the first use
	quiet  bool            // the latest result had no due rows
}

// Poll returns a Poll for the store.
func (s *Store) Poll() *Poll { return &Poll{store: s} }

// Due is like [Store.Due].
func (p *Poll) Due(ctx context.Context, sel Select) (*Due, error) {
	if p.quiet && p.none(ctx, sel) {
		return &Due{}, nil
	}
	due, err := p.store.Due(ctx, sel)
	p.quiet = err == nil && !due.Fresh() && !due.Crashed
	return due, err
}

// none reports whether no row is due. It returns false if this is unknown: the cause of
// an error may exist only outside of a transaction. Otherwise Store.Due returns it too.
func (p *Poll) none(ctx context.Context, sel Select) (none bool) {
	if p.reader == nil {
		p.reader = p.store.dialect.Reader(p.store.db)
	}
	if !p.reader.Usable() {
		return false
	}
	err := p.reader.Read(ctx, p.store.sql.dueAlone, []any{sel.Consumer, sel.Topic}, func(rows *sql.Rows) error {
		var live, retry, replay, crashed bool
		for rows.Next() {
			if err := rows.Scan(&live, &retry, &replay, &crashed); err != nil {
				return err
			}
			none = !live && !retry && !replay && !crashed
		}
		return nil
	})
	return none && err == nil
}
