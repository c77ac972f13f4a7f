package parked

import (
	"database/sql"
	"runtime"
	"sync"
	"weak"
)

// process is the state that all Stores of the same table share in one process.
type process struct {
	mu   sync.Mutex
	uses map[usedName]map[*Use]struct{}
}

type tableOf struct {
	db   weak.Pointer[sql.DB]
	name string
}

// shared contains the state of each table in this process. It is a global variable,
// because each retry.Retries and each poison.Quarantine has its own Store.
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

// forget removes the state of a table that no Store uses any more. It does nothing if a
// new Store uses the table.
func forget(table tableOf) {
	shared.Lock()
	defer shared.Unlock()
	if shared.tables[table].Value() == nil {
		delete(shared.tables, table)
	}
}
