package parked

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Use is a subscription of this process that runs under a consumer's name.
type Use struct {
	shared  bool
	over    <-chan struct{} // closed when it takes no more messages
	handler atomic.Pointer[string]
}

// Handler returns the name of the handler that has the messages, or "" before the
// first one.
func (u *Use) Handler() string {
	if u == nil {
		return ""
	}
	if name := u.handler.Load(); name != nil {
		return *name
	}
	return ""
}

// By notes which handler has the messages, from the context of one of them.
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

// InUseError says that a subscription of this process runs under the name of a
// consumer.
type InUseError struct{ Consumer, Topic, Handler string }

func (e *InUseError) Error() string {
	handler := "another handler of this process"
	if e.Handler != "" {
		handler = fmt.Sprintf("handler %q", e.Handler)
	}
	return fmt.Sprintf("consumer %q is already used by %s on topic %q", e.Consumer, handler, e.Topic)
}

type usedName struct{ consumer, topic string }

// Use takes the name of a consumer for a subscription to topic, which runs until
// over is closed; drop is to be called after that. It is an [InUseError] if
// another one through the same *sql.DB runs under that name, unless both are
// shared.
func (s *Store) Use(consumer, topic string, shared bool, over <-chan struct{}) (use *Use, drop func(), err error) {
	a, name := s.arrivals, usedName{consumer, topic}
	a.mu.Lock()
	defer a.mu.Unlock()
	for other := range a.uses[name] {
		if other.runs() && (!shared || !other.shared) {
			return nil, nil, &InUseError{consumer, topic, other.Handler()}
		}
	}
	use = &Use{shared: shared, over: over}
	if a.uses == nil {
		a.uses = map[usedName]map[*Use]struct{}{}
	}
	if a.uses[name] == nil {
		a.uses[name] = map[*Use]struct{}{}
	}
	a.uses[name][use] = struct{}{}
	return use, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.uses[name], use)
		if len(a.uses[name]) == 0 {
			delete(a.uses, name)
		}
	}, nil
}

// used says whether a subscription of this process runs under the name.
func (a *arrivals) used(consumer, topic string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for use := range a.uses[usedName{consumer, topic}] {
		if use.runs() {
			return true
		}
	}
	return false
}
