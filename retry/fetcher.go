package retry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/adaptive"
	"github.com/watermill-once/once/internal/parked"
)

// fetcher claims the parked messages of one subscription and passes them to the
// handler. One goroutine claims rows and renews their leases. Another one resolves the
// rows of handled messages. Other goroutines, as many as concurrency, pass messages to
// the handler and wait for their acks.
type fetcher struct {
	*Retries

	consumer string
	topic    string
	owner    string
	closing  <-chan struct{}
	wake     chan struct{}
	use      *parked.Use
	stored   parked.Stored // requirements of a transport that stores all its messages

	closeTimeout <-chan struct{} // closed when CloseTimeout has passed
	unanswered   *atomic.Int64   // number of messages without an ack or nack at that time

	turns       parked.TenantTurns
	limit       adaptive.Limit // limits the number of rows in one claim
	due         *parked.Due    // latest result of findDue, if it may be used again
	dueAt       time.Time      // time of that result
	buffer      buffer
	queue       *fairQueue
	handled     chan *parked.Claim // handled and finished have room for all claims
	finished    chan *parked.Claim
	concurrency int // number of messages that are handled at the same time
	inFlight    map[*parked.Claim]struct{}
	surplus     []*parked.Claim // in flight, but must not be passed to a handler any more
	unknown     []*parked.Claim // claims of commits with an unknown outcome, to be released

	moreDue     bool      // more rows may be due than were claimed
	isolating   bool      // this subscription waits to run a crashed message by itself
	missedCrash time.Time // when a crashed message was due but could not be claimed
	failing     bool

	registered         bool   // the database knows that the consumer runs
	registerFailed     bool   // registering failed, and the failure was logged
	loggedOtherHandler string // another handler with the same consumer name
}

// headsAhead is how many messages with an ordering key are claimed in advance for each
// handler. When a message is finished, the next one of its key becomes due. Without
// messages claimed in advance, every claim would fetch only a single row.
const headsAhead = 4

// newFetcher returns the fetcher of a subscription. gathers is the number of messages
// that the batches of the handler need, or 0.
func newFetcher(s *subscriber, topic string, closing <-chan struct{}, gathers int) *fetcher {
	host, _ := os.Hostname()
	concurrency := s.retries.config.Concurrency
	if s.retries.config.automatic {
		concurrency = max(concurrency, gathers)
	}
	ahead := 0
	if s.retries.config.KeyOrder != Unordered {
		ahead = headsAhead * concurrency
	}
	return &fetcher{
		Retries:      s.retries,
		consumer:     s.consumer,
		topic:        topic,
		owner:        fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8]),
		closing:      closing,
		closeTimeout: s.closeTimeout,
		unanswered:   &s.unanswered,
		wake:         make(chan struct{}, 1),
		concurrency:  concurrency,
		inFlight:     map[*parked.Claim]struct{}{},
		stored:       parked.Stored{Ahead: ahead},
		buffer:       buffer{limit: s.retries.config.BufferBytes},
	}
}

// capacity returns how many rows may be claimed at the same time.
func (f *fetcher) capacity() int { return f.concurrency + f.stored.Ahead }

func (f *fetcher) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fetcher) subscription() parked.Subscription {
	return parked.Subscription{
		Consumer: f.consumer,
		KeyOrder: f.config.KeyOrder != Unordered,
		Owner:    f.owner,
		Wake:     f.wakeUp,
		Store:    func(stored parked.Stored) { f.stored = stored },
	}
}

func (f *fetcher) delivery(claim *parked.Claim) *parked.Delivery {
	return &parked.Delivery{
		Consumer: f.consumer, Topic: f.topic, Subscribed: true, Use: f.use, Claim: claim, Closing: f.closing, Wake: f.wakeUp,
	}
}

// run fetches messages until the consumer shuts down. Then it waits until the handlers
// have finished the messages that they got.
func (f *fetcher) run(ctx context.Context, out chan<- *message.Message) {
	// A shutdown ends fetching, but not the handlers.
	ctx = context.WithoutCancel(ctx)
	defer f.startHandingOut(ctx, out)()
	poll := time.NewTicker(f.config.PollInterval)
	defer poll.Stop()
	tidy := time.NewTicker(f.config.Lease)
	defer tidy.Stop()
	renew := time.NewTicker(f.config.Lease / 3)
	defer renew.Stop()
	register := time.NewTimer(0)
	defer register.Stop()
	defer f.requestIsolation(false)

	closing := f.closing
	again := true
	for closing != nil || len(f.inFlight) > len(f.surplus) {
		select { // check before fetching: a message released by the shutdown must not be claimed again
		case <-closing:
			closing = nil
			f.stop(ctx)
		default:
		}
		if again && closing != nil {
			failing := f.failing
			again = f.fetch(ctx)
			if f.failing != failing {
				poll.Reset(f.pollInterval())
			}
			if again {
				continue
			}
		}
		select {
		case <-closing: // the next round stops
		case claim := <-f.finished:
			again = f.removeFinished(claim) || f.moreDue
		case <-f.wake:
			f.due, again = nil, true
		case <-poll.C:
			f.due, again = nil, true
		case <-renew.C:
			f.renew(ctx)
		case <-tidy.C:
			f.tidy(ctx)
		case <-register.C:
			register.Reset(f.register(ctx))
		}
	}
	f.releaseSurplus(ctx)
	f.leave(ctx)
}

// failedFetchInterval limits PollInterval after a failed fetch. The fetch must be
// repeated soon, because nothing else would cause a new fetch for a message that was
// already due.
const failedFetchInterval = time.Second

func (f *fetcher) pollInterval() time.Duration {
	if f.failing {
		return min(f.config.PollInterval, failedFetchInterval)
	}
	return f.config.PollInterval
}

// removeFinished removes a finished claim, and all others that are finished by now,
// because the next fetch costs the same for all of them. It returns true if one of the
// messages had an ordering key, because the next message of that key may now be due.
func (f *fetcher) removeFinished(claim *parked.Claim) (successor bool) {
	for {
		successor = successor || claim.Key != parked.Key{}
		f.remove(claim)
		select {
		case claim = <-f.finished:
		default:
			return successor
		}
	}
}

func (f *fetcher) remove(claim *parked.Claim) {
	delete(f.inFlight, claim)
	f.buffer.bytes -= claim.Size
	processGate.leave(1)
}

// withLeaseTimeout limits a database operation to the length of a lease: a later result
// would be useless, and Close waits for the operation.
func (f *fetcher) withLeaseTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, f.config.Lease)
}

func (f *fetcher) renew(ctx context.Context) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	claims := make([]*parked.Claim, 0, len(f.inFlight))
	for claim := range f.inFlight {
		claims = append(claims, claim)
	}
	if err := f.store.Extend(ctx, f.config.Lease, claims); err != nil {
		f.report(ctx, err)
	}
}

// tidy releases messages that wait for an earlier message which does not exist any
// more.
func (f *fetcher) tidy(ctx context.Context) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	released, err := f.store.RepairKeys(ctx, f.consumer, f.topic, parked.KeyOrder(f.config.KeyOrder))
	if err != nil {
		f.report(ctx, err)
	}
	if released > 0 {
		f.config.Logger.Info("Messages behind a missing predecessor are released",
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "keys": released})
		f.wakeUp()
	}
}

// report logs the first of several failed fetches, and later that fetching works again.
// If ctx was canceled, it ignores the error, whatever error the driver returns in this
// case.
func (f *fetcher) report(ctx context.Context, err error) {
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic}
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
	case err != nil && !f.failing:
		f.failing = true
		f.config.Logger.Error("Parked messages cannot be fetched, retrying", err, fields)
	case err == nil && f.failing:
		f.failing = false
		f.config.Logger.Info("Parked messages are fetched again", fields)
	}
}
