package parkedrows

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Use is a subscription of this process that has reserved the name of its consumer.
type Use struct {
	shared  bool
	over    <-chan struct{} // closed when the subscription ends
	handler atomic.Pointer[string]
}

// Handler returns the name of the subscription's handler, or "" before the first message.
func (u *Use) Handler() string {
	if u == nil {
		return ""
	}
	if name := u.handler.Load(); name != nil {
		return *name
	}
	return ""
}

// By takes the name of the handler from ctx, the context of the first message.
func (u *Use) By(ctx context.Context) {
	if u == nil || u.handler.Load() != nil {
		return
	}
	if name := message.HandlerNameFromCtx(ctx); name != "" {
		u.handler.Store(&name)
	}
}

func (u *Use) runs() bool {
	select {
	case <-u.over:
		return false
	default:
		return true
	}
}

// InUseError means that another subscription of this process already uses the
// consumer's name.
type InUseError struct{ Consumer, Topic, Handler string }

func (e *InUseError) Error() string {
	handler := "another handler of this process"
	if e.Handler != "" {
		handler = fmt.Sprintf("handler %q", e.Handler)
	}
	return fmt.Sprintf("consumer %q is already used by %s on topic %q", e.Consumer, handler, e.Topic)
}

type usedName struct{ consumer, topic string }

// Use reserves the name of a consumer for a subscription to topic, until ended is closed. Call drop
// then to delete the reservation. Use returns an [InUseError] if another subscription through the
// same *sql.DB has reserved the name, unless both have passed true as shared.
func (s *Store) Use(consumer, topic string, shared bool, ended <-chan struct{}) (use *Use, drop func(), err error) {
	p, name := s.process, usedName{consumer, topic}
	p.mu.Lock()
	defer p.mu.Unlock()
	for other := range p.uses[name] {
		if other.runs() && (!shared || !other.shared) {
			return nil, nil, &InUseError{consumer, topic, other.Handler()}
		}
	}
	use = &Use{shared: shared, over: ended}
	if p.uses == nil {
		p.uses = map[usedName]map[*Use]struct{}{}
	}
	if p.uses[name] == nil {
		p.uses[name] = map[*Use]struct{}{}
	}
	p.uses[name][use] = struct{}{}
	return use, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.uses[name], use)
		if len(p.uses[name]) == 0 {
			delete(p.uses, name)
		}
	}, nil
}

// Runs reports whether this process has a running subscription of consumer to topic.
func (s *Store) Runs(consumer, topic string) bool {
	p := s.process
	p.mu.Lock()
	defer p.mu.Unlock()
	for use := range p.uses[usedName{consumer, topic}] {
		if use.runs() {
			return true
		}
	}
	return false
}

type process struct {
	mu   sync.Mutex
	uses map[usedName]map[*Use]struct{}

	pauses pauseReader
}

type tableOf struct {
	db   weak.Pointer[sql.DB]
	name string
}

// shared contains the state of each table in this process, for the Stores of each retry.Retries and
// poison.Store.
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

// forget removes the state of a table, unless a new Store uses it.
func forget(table tableOf) {
	shared.Lock()
	defer shared.Unlock()
	if shared.tables[table].Value() == nil {
		delete(shared.tables, table)
	}
}
