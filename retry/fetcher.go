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
// handler. One goroutine claims rows and renews their leases. Another goroutine
// resolves the rows of handled messages. In addition, it has one goroutine for each
// message that can be handled at the same time. This goroutine passes messages to the
// handler and waits for their acks.
type fetcher struct {
	*Retries

	consumer string
	topic    string
	owner    string
	closing  <-chan struct{}
	wake     chan struct{}
	use      *parked.Use
	stored   parked.Stored // settings of a transport that stores all its messages

	closeTimeout <-chan struct{} // closed when Config.CloseTimeout has passed
	unanswered   *atomic.Int64   // number of messages that were neither acked nor nacked when CloseTimeout had passed

	poll        *parked.Poll
	turns       parked.TenantTurns
	limit       adaptive.Limit // limits the number of rows of a claim
	due         *parked.Due    // latest result of findDue, if it may be reused
	dueAt       time.Time      // time at which findDue returned due
	buffer      buffer
	queue       *fairQueue
	gate        *isolationGate     // shared by all subscriptions of this process
	handled     chan *parked.Claim // the channels handled and finished have room for all claims
	finished    chan *parked.Claim
	concurrency int // number of messages that are handled at the same time
	inFlight    map[*parked.Claim]struct{}
	surplus     []*parked.Claim // claims in flight that must not be passed to a handler
	unknown     []*parked.Claim // claims whose commit had an unknown outcome; they must be released

	moreDue     bool      // more due rows may exist than were claimed
	isolating   bool      // whether this subscription waits to handle a crashed message alone
	missedCrash time.Time // when a crashed message was due but could not be claimed
	failing     bool

	registered         bool   // whether the database contains the registration of this consumer
	registerFailed     bool   // whether a failed registration was logged
	loggedOtherHandler string // the latest handler that was logged because it uses the same consumer name; "" if none was
}

// headsAhead is how many messages with an ordering key are claimed in advance for each
// handler. At most one message of a key is due at a time. When it is finished, the next
// message of the key becomes due. Without messages claimed in advance, a handler would
// be free then, and each claim would take only this single row.
const headsAhead = 4

// newFetcher returns the fetcher of a subscription. If the handler handles messages in
// batches, the parameter gathers is the number of messages in flight that full batches
// need. Otherwise it is 0.
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
		poll:         s.retries.store.Poll(),
		buffer:       buffer{limit: s.retries.config.BufferBytes},
		gate:         &processGate,
	}
}

// capacity returns the maximum number of rows that may be claimed at the same time.
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

// run fetches messages until the consumer shuts down. It then waits until the handlers
// have finished the messages that they have received.
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
		case <-closing: // the next iteration stops
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

// failedFetchInterval is the maximum PollInterval after a failed fetch. If a message
// was due before the failure, no other event would cause a new fetch, so the fetch must
// be repeated soon.
const failedFetchInterval = time.Second

func (f *fetcher) pollInterval() time.Duration {
	if f.failing {
		return min(f.config.PollInterval, failedFetchInterval)
	}
	return f.config.PollInterval
}

// removeFinished removes a finished claim. It also removes all other claims that have
// finished by now, so that one fetch can replace all of them. It returns true if one of
// the messages had an ordering key, because the next message of that key may now be
// due.
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
	f.gate.leave(1)
}

// withLeaseTimeout limits a database operation to the length of a lease. A longer
// operation would be useless, because its leases would have ended. It would also delay
// Close, which waits for the operation.
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

// tidy releases the messages that wait for an earlier message of their key if that
// earlier message no longer exists.
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

// report logs the first of several failed fetches, and later the first successful
// fetch. If ctx was canceled, report ignores err, because drivers then return various
// errors.
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
