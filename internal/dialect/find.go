package dialect

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

type place struct {
	db     weak.Pointer[sql.DB]
	prefix string
}

// A function of the user can change the search path and the role of a connection, which keeps them
// in the pool. So they are read before the first such function runs.
var (
	sessions sync.Map // weak.Pointer[sql.DB] -> statement that restores the settings in a transaction
	found    sync.Map // place -> name of the schema
)

// find names the schema to which the search path leads. If it leads to no tables, or to several
// sets, the next statement or the check at the start shows the reason.
func (d Dialect) find(ctx context.Context, db *sql.DB) (Dialect, error) {
	if d.SQLite() {
		return d, nil
	}
	err := d.remember(ctx, db)
	if err == nil && d.config.Schema == "" {
		d, err = d.findSchema(ctx, db)
	}
	if errors.Is(err, schema.ErrMissing) || errors.Is(err, schema.ErrAmbiguous) || errors.Is(err, schema.ErrDialect) {
		return d, nil
	}
	return d, err
}

func (d Dialect) findSchema(ctx context.Context, db *sql.DB) (Dialect, error) {
	if named := d.known(db); named.config.Schema != "" {
		return named, nil
	}
	config := d.config
	err := d.Read(withoutValues{ctx}, db, func(tx *sql.Tx) (err error) {
		config, err = schema.Find(ctx, tx, d.config)
		return err
	})
	if err != nil {
		return d, err
	}
	found.Store(place{weak.Make(db), d.config.Prefix}, config.Schema)
	return d.known(db), nil
}

// A transaction with the values of a message's context would count as one of the message's
// transactions, see package oncetest.
type withoutValues struct{ context.Context }

func (withoutValues) Value(any) any { return nil }

func (d Dialect) known(db *sql.DB) Dialect {
	if d.SQLite() || d.config.Schema != "" {
		return d
	}
	if name, ok := found.Load(place{weak.Make(db), d.config.Prefix}); ok {
		d.config.Schema = name.(string) //nolint:forcetypeassert // nothing else is stored
	}
	return d
}

func (d Dialect) remember(ctx context.Context, db *sql.DB) error {
	if _, ok := sessions.Load(weak.Make(db)); ok {
		return nil
	}
	var path, role string
	err := db.QueryRowContext(ctx, `SELECT current_setting('search_path'), current_setting('role')`).Scan(&path, &role)
	if err != nil {
		return d.Explain(ctx, db, usercode.HideDSN(err))
	}
	text := AppendText([]byte(`SELECT set_config('search_path', `), path)
	text = AppendText(append(text, `, true), set_config('role', `...), role)
	sessions.LoadOrStore(weak.Make(db), string(append(text, `, true)`...)))
	return nil
}

// restore returns a statement that restores the search path and the role of a connection for the
// rest of a transaction, or "" if no function of the user has run with a connection of db.
func (d Dialect) restore(db *sql.DB) string {
	if d.SQLite() {
		return ""
	}
	text, ok := sessions.Load(weak.Make(db))
	if !ok {
		return ""
	}
	return text.(string) //nolint:forcetypeassert // nothing else is stored
}

// Queries contains queries for transactions in which a function of the user, perhaps the handler of
// an earlier message of a batch, may have changed the search path. If [Dialect.BeginScope] has
// begun the transaction, they name the schema.
type Queries[Q any] struct {
	dialect Dialect
	build   func(d Dialect) Q
	unnamed Q
	named   atomic.Pointer[namedQueries[Q]]
}

type namedQueries[Q any] struct {
	schema  string
	queries Q
}

// NewQueries returns the queries that build returns for a Dialect.
func NewQueries[Q any](d Dialect, build func(d Dialect) Q) *Queries[Q] {
	return &Queries[Q]{dialect: d, build: build, unnamed: build(d)}
}

// In returns the queries for tx. They use the search path if tx is nil, or not from BeginScope, or
// begun for another prefix.
func (q *Queries[Q]) In(tx *sql.Tx) Q {
	name := q.schemaOf(tx)
	if name == "" {
		return q.unnamed
	}
	n := q.named.Load()
	if n == nil || n.schema != name {
		d := q.dialect
		d.config.Schema = name
		n = &namedQueries[Q]{name, q.build(d)}
		q.named.Store(n)
	}
	return n.queries
}

func (q *Queries[Q]) schemaOf(tx *sql.Tx) string {
	if q.dialect.SQLite() || q.dialect.config.Schema != "" {
		return ""
	}
	s, ok := scopes.Load(tx)
	if !ok {
		return ""
	}
	config := s.(scope).schema.config //nolint:forcetypeassert // nothing else is stored
	if config.Prefix != q.dialect.config.Prefix {
		return ""
	}
	return config.Schema
}
