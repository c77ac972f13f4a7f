package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// ErrClosed means that Run was called after Close.
var ErrClosed = errors.New("forwarder: closed")

var errRunTwice = errors.New("forwarder: Run was called before")

// Forwarder sends the messages in the outbox of one database through one publisher.
type Forwarder struct {
	config Config
	store  *store
	sender *sender

	instruments *instruments

	running chan struct{}
	hints   chan struct{}

	mu      sync.Mutex
	started bool
	closing chan struct{}
	ended   chan struct{}
	left    error // the error that Close returns; it is set before the channel ended is closed
}

// New returns a Forwarder that sends the messages of the outbox in db through publisher, and closes
// neither. If config is invalid, the returned error lists every invalid field. The tables must
// exist when the Forwarder runs, see schema.Up.
func New(db *sql.DB, publisher message.Publisher, config Config) (*Forwarder, error) {
	config = config.withDefaults()
	var errs []error
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	if publisher == nil {
		errs = append(errs, errors.New("publisher is nil"))
	}
	destination, err := destinationOf(config.Destination, publisher)
	if err := errors.Join(append(errs, err, config.validate())...); err != nil {
		return nil, usercode.Refused("forwarder", err)
	}
	if _, async := publisher.(AsyncPublisher); !async {
		config.Window = min(config.Window, config.Workers)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}
	s := newStore(db, d)
	s.keepSent, s.destination = config.KeepSent > 0, destination
	return &Forwarder{
		config:  config,
		store:   s,
		sender:  newSender(publisher, config.Window),
		running: make(chan struct{}),
		hints:   make(chan struct{}, 1),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),

		instruments: newInstruments(config),
	}, nil
}

// Run forwards messages until ctx ends or Close is called, and then returns nil. When
// ctx ends, Run still waits for the confirms of messages in flight, see
// [Forwarder.Close].
//
// Run returns an error immediately
//   - if the tables are missing or have another version, or the database is of another
//     kind: schema.ErrMissing, ErrAmbiguous, ErrOutdated, ErrNewer,
//     ErrRowSecurity, ErrSequence, ErrDialect or ErrEncoding,
//   - if the broker refuses the publisher, for example because of a wrong password.
//     This check needs a publisher with a method Ping(context.Context) error, as in
//     package rabbit,
//   - if it is called a second time, or after Close.
//
// If the database or the broker cannot be reached, Run waits for it.
//
// If another instance forwards the same outbox to another destination, Run returns
// ErrOtherDestination within half of Config.Lease, see Config.Destination. The other
// instance continues.
func (f *Forwarder) Run(ctx context.Context) error {
	if err := f.start(); err != nil {
		return err
	}
	defer close(f.ended)
	defer f.observe()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.closing:
			cancel()
		case <-ctx.Done():
		}
	}()

	if err := f.check(ctx); err != nil {
		return err
	}
	if err := f.ping(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	if f.instruments.tracer.Enabled() {
		f.sender.tracer = &f.instruments.tracer
	}
	f.sender.start(f.config.Workers)
	defer close(f.sender.orders)
	if f.store.destination == "" {
		f.config.Logger.Info("The publisher does not name its destination, so a forwarder to another broker is not noticed; "+
			"set forwarder.Config.Destination", nil)
	}
	l := newLoop(f)
	f.left = l.run(ctx)
	return l.refusal
}

func (f *Forwarder) start() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closing:
		return ErrClosed
	default:
	}
	if f.started {
		return errRunTwice
	}
	f.started = true
	return nil
}

func (f *Forwarder) check(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := schema.Check(ctx, f.store.db, f.config.Schema)
		// ErrLayout is about the inbox, which a forwarder does not use, or the sent log, whose
		// layout it reads from the database.
		if err == nil || errors.Is(err, schema.ErrLayout) {
			f.store.dialect.LogDurability(ctx, f.store.db, f.config.Logger)
			return nil
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // Run was told to end, which is not an error of the tables
		}
		for _, final := range []error{
			schema.ErrMissing, schema.ErrAmbiguous, schema.ErrOutdated, schema.ErrNewer, schema.ErrRowSecurity,
			schema.ErrSequence, schema.ErrDialect, schema.ErrEncoding,
		} {
			if errors.Is(err, final) {
				return fmt.Errorf("forwarder: %w", err)
			}
		}
		if attempt == 1 {
			f.config.Logger.Error("The outbox's tables cannot be read, trying again", err, nil)
		}
		select {
		case <-ctx.Done():
		case <-time.After(jitter(pauses(attempt))):
		}
	}
}

// Running returns a channel that is closed when Run has reached the database. From then on, the
// forwarder sends messages, or waits for its share of the slots.
func (f *Forwarder) Running() <-chan struct{} { return f.running }

// Hint tells the forwarder that the outbox may contain new messages. It never blocks. Call it after
// each commit to send messages sooner than the next poll, which comes within Config.PollMax.
func (f *Forwarder) Hint() {
	select {
	case f.hints <- struct{}{}:
	default:
	}
}

// Close makes Run return, and waits for it. The forwarder stops reading and publishing, waits at
// most Config.CloseTimeout for the confirms of messages in flight, and deletes the confirmed
// messages. Messages without an outcome stay in the outbox, and the next instance, which can take
// over at once, sends them again.
//
// If confirmed messages could not be deleted in time, they are sent again, too, and Close returns
// an error. You can call Close more than once.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	started := f.started
	select {
	case <-f.closing:
	default:
		close(f.closing)
	}
	f.mu.Unlock()
	if !started {
		return nil
	}
	<-f.ended
	return f.left
}

// ping returns an error only if the broker refuses the publisher. If it cannot be reached, the
// forwarder waits for it later.
func (f *Forwarder) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usercode.Patience)
	defer cancel()
	err := usercode.Ping(ctx, f.sender.publisher)
	if err == nil || dialect.MayPass(err) {
		return nil
	}
	return fmt.Errorf("forwarder: the broker refuses the publisher: %w", err)
}
