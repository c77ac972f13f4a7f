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

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/parkedrows"
)

// fetcher claims the parked messages of one subscription and passes them to the handler. One
// goroutine claims rows and renews their leases, one resolves the rows of handled messages, and one
// for each message in flight passes messages to the handler and waits for their acks.
type fetcher struct {
	*Retries

	consumer string
	topic    string
	owner    string
	closing  <-chan struct{}
	wake     chan struct{}
	use      *parkedrows.Use
	pauses   *parkedrows.PauseWatch
	breaker  *breaker // nil without Config.Breaker
	limiter  *limiter

	awaitCall func() bool       // of the limiter
	begun     chan struct{}     // closed when the transport has been subscribed; nil if it is not waited for
	stored    parkedrows.Stored // settings of a transport that stores all its messages

	closeTimeout <-chan struct{} // closed when Config.CloseTimeout has passed
	unanswered   *atomic.Int64   // number of messages that were neither acked nor nacked when CloseTimeout had passed

	poll        *parkedrows.Poll
	turns       parkedrows.TenantTurns
	limit       backoff.Limit   // limits the number of rows of a claim
	due         *parkedrows.Due // latest result of findDue, if it may be reused
	dueAt       time.Time       // time at which findDue returned due
	buffer      buffer
	queue       *fairQueue
	gate        *isolationGate         // shared by all subscriptions of this process
	handled     chan *parkedrows.Claim // the channels handled and finished have room for all claims
	finished    chan *parkedrows.Claim
	unremoved   atomic.Int64  // number of handled messages whose rows are not removed yet
	freed       chan struct{} // signals that a message was handled, so that another one may be claimed
	concurrency int           // number of messages that are handled at the same time
	inFlight    map[*parkedrows.Claim]struct{}
	surplus     []*parkedrows.Claim // claims in flight that must not be passed to a handler
	unknown     []*parkedrows.Claim // claims whose commit had an unknown outcome; they must be released

	open        bool      // whether messages may be claimed
	probing     bool      // only one message may be claimed
	subscribed  bool      // the transport was subscribed
	moreDue     bool      // more due rows may exist than were claimed
	isolating   bool      // whether this subscription waits to handle a crashed message alone
	missedCrash time.Time // when a crashed message was due but could not be claimed
	failing     bool

	registered         bool   // whether the database contains the registration of this consumer
	registerFailed     bool   // whether a failed registration was logged
	loggedOtherHandler string // the latest handler that was logged because it uses the same consumer name; "" if none was
}

// headsAhead is how many messages with an ordering key are claimed in advance for each handler.
// Only one message of a key is due at a time. Without others in advance, a handler would be free
// until the next of the key is due, and each claim would take only this row.
const headsAhead = 4

// newFetcher returns the fetcher of a subscription. gathers is the number of messages in flight
// that full batches need, or 0 without batches.
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
		Retries:     s.retries,
		consumer:    s.consumer,
		topic:       topic,
		owner:       fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8]),
		closing:     closing,
		unanswered:  &s.unanswered,
		wake:        make(chan struct{}, 1),
		freed:       make(chan struct{}, 1),
		concurrency: concurrency,
		inFlight:    map[*parkedrows.Claim]struct{}{},
		stored:      parkedrows.Stored{Ahead: ahead},
		poll:        s.retries.store.Poll(),
		buffer:      buffer{limit: s.retries.config.BufferBytes},
		gate:        &processGate,
	}
}

// capacity is the largest number of claimed messages that are not handled yet.
func (f *fetcher) capacity() int { return f.concurrency + f.stored.Ahead }

// room returns how many more messages may be claimed. Handled messages do not count until one
// statement can remove them.
func (f *fetcher) room() int {
	return f.capacity() - len(f.inFlight) + min(int(f.unremoved.Load()), f.removedTogether())
}

func (f *fetcher) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fetcher) subscription() parkedrows.Subscription {
	return parkedrows.Subscription{
		Consumer: f.consumer,
		KeyOrder: f.config.KeyOrder != Unordered,
		Owner:    f.owner,
		Limit:    f.config.Limits.row(),
		Wake:     f.wakeUp,
		Store: func(stored parkedrows.Stored) {
			if !f.subscribed { // later subscriptions, after a pause, have the same settings
				f.stored = stored
			}
		},
	}
}

func (f *fetcher) delivery(claim *parkedrows.Claim) *parkedrows.Delivery {
	return &parkedrows.Delivery{
		Consumer: f.consumer, Topic: f.topic, Subscribed: true, Use: f.use, Claim: claim, Closing: f.closing, Wake: f.wakeUp,
		Pauses: f.pauses, AwaitCall: f.awaitCall,
	}
}

// run returns after a shutdown, when the handlers have finished the messages that they have
// received.
func (f *fetcher) run(ctx context.Context, out chan<- *message.Message) {
	// A shutdown ends fetching, but not the handlers.
	ctx = context.WithoutCancel(ctx)
	register := time.NewTimer(0)
	defer register.Stop()
	defer f.leave(ctx)
	if !f.awaitTransport(ctx, register) {
		return
	}
	defer f.startHandingOut(ctx, out)()
	poll := time.NewTicker(f.config.PollInterval)
	defer poll.Stop()
	tidy := time.NewTicker(f.config.Lease)
	defer tidy.Stop()
	renew := time.NewTicker(f.config.Lease / 3)
	defer renew.Stop()
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
		intake, changed := f.pauses.Intake(parkedrows.FromRows)
		open := intake.Starts()
		f.probing = intake == parkedrows.IntakeProbe
		if closing != nil && open != f.open {
			f.open = open
			f.openOrPause(ctx)
			again = open
		}
		if again && closing != nil && open {
			failing := f.failing
			again = f.fetch(ctx)
			if f.failing != failing {
				poll.Reset(f.pollInterval())
			}
			if again {
				continue
			}
		}
		if len(f.inFlight) == len(f.surplus) { // no handler runs
			f.releaseSurplus(ctx)
		}
		select {
		case <-closing: // the next iteration stops
		case <-changed: // the next iteration opens or pauses
		case claim := <-f.finished:
			again = f.removeFinished(claim) || f.moreDue
		case <-f.freed:
			again = f.moreDue
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
}

// awaitTransport waits until the transport is subscribed, which says how many rows to claim. This
// takes long only if the consumer is paused at the start; it is registered in the meantime, because
// it runs. It returns false if the consumer shuts down.
func (f *fetcher) awaitTransport(ctx context.Context, register *time.Timer) (subscribed bool) {
	for f.begun != nil {
		select {
		case <-f.begun:
			return true
		default:
		}
		select {
		case <-f.begun:
			return true
		case <-f.closing:
			return false
		case <-register.C:
			register.Reset(f.register(ctx))
		}
	}
	return true
}

// openOrPause is called when a pause begins or ends. At the beginning, it gives back claimed
// messages that no handler has received; with SQLite only when the running handlers have ended,
// because a handler uses the only writer.
func (f *fetcher) openOrPause(ctx context.Context) {
	f.due = nil
	if f.open {
		f.releaseSurplus(ctx)
		return
	}
	f.requestIsolation(false)
	f.stop(ctx)
}

// failedFetchInterval is the maximum PollInterval after a failed fetch: no other event would cause
// a new fetch.
const failedFetchInterval = time.Second

func (f *fetcher) pollInterval() time.Duration {
	if f.failing {
		return min(f.config.PollInterval, failedFetchInterval)
	}
	return f.config.PollInterval
}

// removeFinished removes a finished claim, and all others that have finished by now, so that one
// fetch replaces them all. It returns true if one had an ordering key, because the next message of
// the key may be due.
func (f *fetcher) removeFinished(claim *parkedrows.Claim) (successor bool) {
	for {
		successor = successor || claim.Key != parkedrows.Key{}
		f.remove(claim)
		select {
		case claim = <-f.finished:
		default:
			return successor
		}
	}
}

func (f *fetcher) remove(claim *parkedrows.Claim) {
	delete(f.inFlight, claim)
	f.buffer.bytes -= claim.Size
	f.gate.leave(1)
}

// withLeaseTimeout limits a database operation to a lease. A longer one would be useless, and would
// delay Close.
func (f *fetcher) withLeaseTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, f.config.Lease)
}

func (f *fetcher) renew(ctx context.Context) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	claims := make([]*parkedrows.Claim, 0, len(f.inFlight))
	for claim := range f.inFlight {
		claims = append(claims, claim)
	}
	if err := f.store.Extend(ctx, f.config.Lease, claims); err != nil {
		f.report(ctx, err)
	}
}

// tidy releases messages that wait for an earlier message of their key that no longer exists.
func (f *fetcher) tidy(ctx context.Context) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	released, err := f.store.RepairKeys(ctx, f.consumer, f.topic, parkedrows.KeyOrder(f.config.KeyOrder))
	if err != nil {
		f.report(ctx, err)
	}
	if released > 0 {
		f.config.Logger.Info("Messages behind a missing predecessor are released",
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "keys": released})
		f.wakeUp()
	}
}

// report logs the first of several failed fetches, and later the first successful one. If ctx was
// canceled, drivers return various errors.
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

const registerAgain = 5 * time.Second

// register records that the consumer runs, and returns when to call it again.
func (f *fetcher) register(ctx context.Context) (next time.Duration) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	own := parkedrows.Consumer{
		Consumer: f.consumer, Topic: f.topic, KeyOrder: f.config.KeyOrder != Unordered, Handler: f.use.Handler(), Owner: f.owner,
		Limit: f.config.Limits.row(),
	}
	before, err := f.store.Register(ctx, own)
	if err == nil {
		f.logOtherHandler(own.OtherHandler(before))
		f.registered, f.registerFailed = true, false
		return f.registerEvery
	}
	if !f.registerFailed && !errors.Is(ctx.Err(), context.Canceled) {
		f.registerFailed = true
		f.config.Logger.Error("Consumer cannot be registered as running, retrying", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
	return registerAgain
}

// leavePatience limits the time for which the end of a subscription waits for leave.
const leavePatience = time.Second

// leave records that this instance has ended. If it fails, the instance counts as running for
// parkedrows.AbsentAfter.
func (f *fetcher) leave(ctx context.Context) {
	if !f.registered {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	if err := f.store.Leave(ctx, f.consumer, f.topic, f.owner); err != nil {
		f.config.Logger.Debug("End of the consumer's instance cannot be recorded",
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "error": err.Error()})
	}
}

func (f *fetcher) logOtherHandler(other string) {
	if !f.registered || other == "" || other == f.loggedOtherHandler {
		return
	}
	f.loggedOtherHandler = other
	f.config.Logger.Error("Consumer name is used by two handlers, each skips messages that the other has handled",
		fmt.Errorf("consumer %q on topic %q is also run by %s: give each handler its own consumer name, "+
			"unless a deploy is just renaming this one", f.consumer, f.topic, other),
		watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
}
