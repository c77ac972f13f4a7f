package parked

import (
	"context"
	"database/sql"
	"runtime"
	"sync"
	"weak"
)

// Listener is a quarantine that wants to know of what others put there:
// retry does so with messages that must not be run.
type Listener interface {
	// Handles says whether messages of the consumer go through it.
	Handles(consumer string) bool

	// Aside is part of the transaction, see [Aside].
	Aside(ctx context.Context, tx *sql.Tx, e Entry) error

	// Arrived is called after the commit.
	Arrived(e Entry)
}

// Listen has l told of what arrives in the table, through whichever Store of
// this process. Of several listeners one is told.
func (s *Store) Listen(l Listener) {
	s.arrivals.mu.Lock()
	defer s.arrivals.mu.Unlock()
	s.arrivals.listeners = append(s.arrivals.listeners, l)
}

// arrivals is what the Stores of one table in one process share.
type arrivals struct {
	mu        sync.Mutex
	listeners []Listener
	uses      map[usedName]map[*Use]struct{}
}

// listener returns the one that handles the consumer, or else the first.
//
//nolint:ireturn // it is not known here what listens
func (a *arrivals) listener(consumer string) Listener {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.listeners {
		if l.Handles(consumer) {
			return l
		}
	}
	if len(a.listeners) > 0 {
		return a.listeners[0]
	}
	return nil
}

type tableOf struct {
	db   weak.Pointer[sql.DB]
	name string
}

// shared is all arrivals that a Store still has. retry and poison are not to
// know each other, and a user makes one Store for each.
//
//nolint:gochecknoglobals // what two Stores share without being given it
var shared = struct {
	sync.Mutex

	tables map[tableOf]weak.Pointer[arrivals]
}{tables: map[tableOf]weak.Pointer[arrivals]{}}

func arrivalsOf(db *sql.DB, name string) *arrivals {
	shared.Lock()
	defer shared.Unlock()
	table := tableOf{weak.Make(db), name}
	if a := shared.tables[table].Value(); a != nil {
		return a
	}
	a := &arrivals{}
	shared.tables[table] = weak.Make(a)
	runtime.AddCleanup(a, forget, table)
	return a
}

// forget drops a table that no Store has any more, unless another one has it
// anew.
func forget(table tableOf) {
	shared.Lock()
	defer shared.Unlock()
	if shared.tables[table].Value() == nil {
		delete(shared.tables, table)
	}
}
