package parked

import (
	"runtime"
	"testing"
	"weak"

	"github.com/watermill-once/once/internal/testkit"
)

// The state of a table is kept while a Store uses it, and then removed.
func TestStateOfAnUnusedTableIsRemoved(t *testing.T) {
	t.Parallel()
	table := tableOf{weak.Make(testkit.SQLite(t).DB), "a table"}
	known := func() bool {
		shared.Lock()
		defer shared.Unlock()
		_, ok := shared.tables[table]
		return ok
	}
	use := func(p weak.Pointer[process]) {
		shared.Lock()
		defer shared.Unlock()
		shared.tables[table] = p
	}
	p := &process{}
	use(weak.Make(p))
	if forget(table); !known() {
		t.Error("the state is removed while it is used")
	}
	runtime.KeepAlive(p)
	use(weak.Pointer[process]{})
	if forget(table); known() {
		t.Error("the state is not removed")
	}
}
