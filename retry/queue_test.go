package retry_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
)

// queue is the queue of a broker. A subscription takes several messages at once. When it
// ends, the messages without an ack return to the queue.
type queue struct {
	prefetch int
	key      string // ordering key of the messages
	nameless bool   // the messages have no ids

	mu    sync.Mutex
	ready []string
	wake  chan struct{}

	open       atomic.Int32 // number of open subscriptions
	subscribed atomic.Int32 // number of calls of Subscribe
	returned   atomic.Int32 // messages that returned to the queue
	closing    chan struct{}
	close      func()
}

func newQueue(prefetch int) *queue {
	q := &queue{prefetch: prefetch, wake: make(chan struct{}, 1), closing: make(chan struct{})}
	q.close = sync.OnceFunc(func() { close(q.closing) })
	return q
}

func (q *queue) publish(ids ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ready = append(q.ready, ids...)
	if q.key != "" { // a message that returns has its place again
		slices.Sort(q.ready)
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready)
}

func (q *queue) take() (id string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ready) == 0 {
		return "", false
	}
	id = q.ready[0]
	q.ready = q.ready[1:]
	return id, true
}

func (q *queue) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	q.open.Add(1)
	q.subscribed.Add(1)
	go func() {
		defer close(out)
		defer q.open.Add(-1)
		var unacked sync.WaitGroup
		defer unacked.Wait()
		free := make(chan struct{}, q.prefetch)
		for {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
				return
			case <-q.closing:
				return
			}
			id, ok := q.take()
			if !ok {
				<-free
				select {
				case <-q.wake:
				case <-ctx.Done():
					return
				case <-q.closing:
					return
				}
				continue
			}
			msg := message.NewMessage(id, []byte("body of "+id))
			if q.nameless {
				msg.UUID = ""
			}
			if q.key != "" {
				msg.Metadata.Set(meta.OrderingKey, q.key)
			}
			msg.SetContext(ctx)
			select {
			case out <- msg:
			case <-ctx.Done():
				q.returned.Add(1)
				q.publish(id)
				return
			case <-q.closing:
				q.publish(id)
				return
			}
			unacked.Go(func() {
				defer func() { <-free }()
				select {
				case <-msg.Acked():
				case <-msg.Nacked():
					q.returned.Add(1)
					q.publish(id)
				}
			})
		}
	}()
	return out, nil
}

func (q *queue) Close() error {
	q.close()
	return nil
}

func (b *bench) runQueue(q *queue, h message.NoPublishHandlerFunc) {
	b.Helper()
	quarantine, err := poison.New(b.DB, poison.Config{Schema: b.Config, Logger: kit.Logger(b.T)})
	kit.OK(b, err)
	b.startWith(q, consumer, topic, h, quarantine.Middleware, b.retries.Middleware)
}

func (b *bench) pause() {
	b.Helper()
	b.Exec(fmt.Sprintf(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why) VALUES ('%s', '%s', 'ann', 'the provider is down')`,
		topic, consumer))
}

func (b *bench) resume() {
	b.Helper()
	b.Exec(`DELETE FROM once_consumer_pauses`)
}

// calls counts the calls of a handler, by message. It reports calls that begin while the
// consumer is paused.
type calls struct {
	t      *testing.T
	paused atomic.Bool

	mu  sync.Mutex
	ids map[string]int
}

func newCalls(t *testing.T) *calls { return &calls{t: t, ids: map[string]int{}} }

func (c *calls) handle(msg *message.Message) error {
	if c.paused.Load() {
		c.t.Errorf("the handler was called with %s while its consumer was paused", msg.UUID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[msg.UUID]++
	return nil
}

func (c *calls) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[id]
}

func (c *calls) each(ids ...string) bool {
	for _, id := range ids {
		if c.of(id) == 0 {
			return false
		}
	}
	return true
}

// otherConsumerPolls waits until another consumer of the process has handled several
// parked messages, one after the other. In this time the paused consumer could have
// claimed its own messages.
func (b *bench) otherConsumerPolls() {
	b.Helper()
	for n := range 3 {
		id := fmt.Sprint("other", n)
		kit.OK(b, b.parked.Deliver(b.Context(), "other.topic", []string{"other"}, message.NewMessage(id, nil)))
		b.Eventually("the other consumer has handled "+id, func() bool { return b.Count(`once_parked WHERE consumer = 'other'`) == 0 })
	}
}
