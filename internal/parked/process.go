package parked

import (
	"context"
	"database/sql"
	"runtime"
	"sync"
	"weak"
)

// Listener is a quarantine. It learns of the rows that retry quarantines
// without a call of the middlewares, because no handler may run them.
type Listener interface {
	// Handles reports whether messages of the consumer pass through the
	// middleware of this quarantine.
	Handles(consumer string) bool

	// Record is a [Recorder].
	Record(ctx context.Context, tx *sql.Tx, id int64) (committed func(), err error)
}

// Listen registers l for the rows that any Store of this table in this process
// quarantines by [Store.QuarantineClaim]. If there are several listeners, only
// the listener that handles the consumer is called, or the first one.
func (s *Store) Listen(l Listener) {
	s.process.mu.Lock()
	defer s.process.mu.Unlock()
	s.process.listeners = append(s.process.listeners, l)
}

// process is the state that all Stores of one table in one process share.
type process struct {
	mu        sync.Mutex
	listeners []Listener
	uses      map[usedName]map[*Use]struct{}
}

// listener returns the listener that handles the consumer, or else the first
// one, or nil.
//
//nolint:ireturn // the implementations are in other packages
func (p *process) listener(consumer string) Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		if l.Handles(consumer) {
			return l
		}
	}
	if len(p.listeners) > 0 {
		return p.listeners[0]
	}
	return nil
}

type tableOf struct {
	db   weak.Pointer[sql.DB]
	name string
}

// shared maps each table to its process state. It is global because retry and
// poison do not know each other: a user makes each with a Store of its own.
//
//nolint:gochecknoglobals // two Stores share it without being given it
var shared = struct {
	sync.Mutex

	tables map[tableOf]weak.Pointer[process]
}{tables: map[tableOf]weak.Pointer[process]{}}

func processOf(db *sql.DB, name string) *process {
	shared.Lock()
	defer shared.Unlock()
	table := tableOf{weak.Make(db), name}
	if p := shared.tables[table].Value(); p != nil {
		return p
	}
	p := &process{}
	shared.tables[table] = weak.Make(p)
	runtime.AddCleanup(p, forget, table)
	return p
}

// forget removes the entry of a table that no Store uses any more, unless a new
// Store has begun to use the table.
func forget(table tableOf) {
	shared.Lock()
	defer shared.Unlock()
	if shared.tables[table].Value() == nil {
		delete(shared.tables, table)
	}
}
