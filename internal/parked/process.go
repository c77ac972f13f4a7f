package parked

import (
	"database/sql"
	"runtime"
	"sync"
	"weak"
)

// process is the state that all Stores of one table in one process share.
type process struct {
	mu   sync.Mutex
	uses map[usedName]map[*Use]struct{}
}

type tableOf struct {
	db   weak.Pointer[sql.DB]
	name string
}

// shared maps each table to its process state. It is global because every Retries
// and Quarantine has a Store of its own.
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
