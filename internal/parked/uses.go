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
	p, name := s.process, usedName{consumer, topic}
	p.mu.Lock()
	defer p.mu.Unlock()
	for other := range p.uses[name] {
		if other.runs() && (!shared || !other.shared) {
			return nil, nil, &InUseError{consumer, topic, other.Handler()}
		}
	}
	use = &Use{shared: shared, over: over}
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

// Runs reports whether a subscription of this process runs under the name of
// the consumer on topic.
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
