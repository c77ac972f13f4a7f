package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/operate/trace"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// looks measures how long an operator waits for lists, groups and the status if the tables are
// large, and how much an operator slows down a forwarder and a consumer.
func (b *bench) looks(ctx context.Context) (_ []row, err error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return nil, err
	}
	defer closing(db, &err)
	if err := schema.Up(ctx, db.DB, schema.Config{}); err != nil {
		return nil, err
	}
	if err := fillEntries(ctx, db, b.entries); err != nil {
		return nil, err
	}
	few, err := newOperator(db)
	if err != nil {
		return nil, err
	}
	var (
		measurements []measurement
		all          []*series
	)
	for _, l := range append(few.looks, few.searches...) {
		s := &series{id: "look-" + l.id, what: fmt.Sprintf("%s, %d entries and dead letters", l.what, b.entries), unit: milliseconds}
		all = append(all, s)
		measurements = append(measurements, single(s, func(ctx context.Context) (float64, error) { return slowest(ctx, l.look) }))
	}
	if err := b.turns(ctx, measurements...); err != nil {
		return nil, err
	}
	var rows []row
	for _, s := range all {
		rows = append(rows, s.atMost(mostOfALook))
	}
	if err := fillOutbox(ctx, db, b.rows); err != nil {
		return nil, err
	}
	overview := series{id: "look-status", what: fmt.Sprintf("status.Read, %d rows in the outbox besides", b.rows), unit: milliseconds}
	full := []measurement{single(&overview, func(ctx context.Context) (float64, error) { return slowest(ctx, few.status) })}
	var traced []*series
	for _, l := range few.traces(b.entries) {
		s := &series{id: "look-" + l.id, what: l.what + ", with the same outbox", unit: milliseconds}
		traced = append(traced, s)
		full = append(full, single(s, func(ctx context.Context) (float64, error) { return slowest(ctx, l.look) }))
	}
	if err := b.turns(ctx, full...); err != nil {
		return nil, err
	}
	rows = append(rows, overview.atMost(mostOfStatus))
	for _, s := range traced {
		rows = append(rows, s.atMost(mostOfStatus))
	}
	if err := fillBacklogs(ctx, db, b.waiting); err != nil {
		return nil, err
	}
	many := series{
		id: "look-consumers-many", unit: milliseconds,
		what: fmt.Sprintf("the consumers, %d of them with %d waiting messages each", b.waiting, backlog),
	}
	if err := b.turns(ctx, single(&many, func(ctx context.Context) (float64, error) { return slowest(ctx, few.consumers) })); err != nil {
		return nil, err
	}
	rows = append(rows, many.atMost(mostOfALook))
	beside, err := b.beside(ctx)
	return append(rows, beside...), err
}

// The longest allowed durations, in milliseconds: of a call that lists or searches, and
// of a call for the status or a trace.
const (
	mostOfALook  = 100
	mostOfStatus = 200
)

// look is one call with which an operator reads the tables.
type look struct {
	id, what string
	look     func(ctx context.Context) error
}

// operator contains the calls of an operator.
type operator struct {
	looks     []look // calls of screens that are refreshed
	searches  []look // calls that find only a few of the rows
	status    func(ctx context.Context) error
	consumers func(ctx context.Context) error
	finder    *trace.Finder
}

func newOperator(db *database) (*operator, error) {
	entries, err1 := quarantine.New(db.DB, operate.Config{})
	letters, err2 := dead.New(db.DB, operate.Config{})
	sent, err7 := dead.NewSentLog(db.DB, operate.Config{})
	messages, err3 := parked.New(db.DB, operate.Config{})
	waiting, err4 := outbox.New(db.DB, operate.Config{})
	state, err5 := status.New(db.DB, schema.Config{})
	finder, err6 := trace.New(db.DB, schema.Config{})
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		return nil, err
	}
	consumers := func(ctx context.Context) error { _, err := messages.Consumers(ctx); return err }
	return &operator{
		status:    func(ctx context.Context) error { _, err := state.Read(ctx); return err },
		searches:  append(newSearches(entries, letters, sent), newWideSearches(entries, letters)...),
		consumers: consumers,
		finder:    finder,
		looks: []look{
			{"quarantine-groups", "groups of the quarantine", func(ctx context.Context) error {
				listed, err := entries.Groups(ctx, operate.Filter{})
				return expect(len(listed.Groups), failureGroups, err)
			}},
			{"quarantine-list", "the first page of the quarantine", func(ctx context.Context) error {
				listed, err := entries.List(ctx, operate.Filter{Limit: 100})
				return expect(len(listed.Rows), 100, err)
			}},
			{"dead-groups", "groups of the dead letters", func(ctx context.Context) error {
				listed, err := letters.Groups(ctx, operate.Filter{})
				return expect(len(listed.Groups), failureGroups+1, err)
			}},
			{"dead-list", "the first page of the dead letters", func(ctx context.Context) error {
				page, err := letters.List(ctx, operate.Filter{Limit: 100})
				return expect(len(page.Rows), 100, err)
			}},
			{"parked-list", "a page of the parked messages", func(ctx context.Context) error {
				_, err := messages.List(ctx, operate.Filter{State: parked.Quarantined})
				return err
			}},
			{"consumers", "the consumers with their backlogs", consumers},
			{"outbox-list", "a page of the outbox", func(ctx context.Context) error {
				_, err := waiting.List(ctx, operate.Filter{})
				return err
			}},
		},
	}, nil
}

func expect(got, want int, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("%d rows, want %d", got, want)
	}
	return err
}

// slowest returns the duration of the longest of five calls, in milliseconds. A first
// call, which reads the rows into memory, is not counted.
func slowest(ctx context.Context, call func(ctx context.Context) error) (longest float64, err error) {
	for n := range 6 {
		began := time.Now()
		if err := call(ctx); err != nil {
			return 0, err
		}
		if n > 0 {
			longest = max(longest, float64(time.Since(began))/float64(time.Millisecond))
		}
	}
	return longest, nil
}

// refreshPeriod is the time between two refreshes of an operator's screen, as in once status --watch.
const refreshPeriod = 2 * time.Second

// beside measures a forwarder and a consumer, alone and beside an operator.
func (b *bench) beside(ctx context.Context) (_ []row, err error) {
	sender, err := b.newScene(ctx, b.kinds[0])
	if err != nil {
		return nil, err
	}
	defer closing(sender, &err)
	receiver, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return nil, err
	}
	defer closing(receiver, &err)
	err = errors.Join(fillEntries(ctx, sender.db, b.entries), fillEntries(ctx, receiver.db, b.entries), sender.prepare(ctx))
	if err != nil {
		return nil, err
	}
	messages := 5 * b.messages // the operator looks several times while they are forwarded
	forward := func(look bool) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (_ float64, err error) {
			if err := errors.Join(sender.add(ctx, messages, 0), sender.settle(ctx)); err != nil {
				return 0, err
			}
			defer watch(ctx, sender.db, look, &err)()
			return sender.drain(ctx, messages)
		}
	}
	consume := func(look bool) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (_ float64, err error) {
			defer watch(ctx, receiver.db, look, &err)()
			took, err := receiver.consume(ctx, newMessages(b.consume), chain(rabbit.SubscriberConfig{}))
			return rate(b.consume, took), err
		}
	}
	forwarded := series{
		id: "look-forwarder-alone", unit: perSecond,
		what: fmt.Sprintf("forwarder with %d entries and dead letters", b.entries),
	}
	watched := series{
		id: "look-forwarder", unit: perSecond,
		what: fmt.Sprintf("the same beside an operator: the status and a list every %v", refreshPeriod),
	}
	consumed := series{id: "look-consumer-alone", what: "once.Consumer as it comes with the same entries", unit: perSecond}
	seen := series{id: "look-consumer", what: "the same beside an operator", unit: perSecond}
	err = b.turns(
		ctx,
		single(&forwarded, forward(false)), single(&watched, forward(true)),
		single(&consumed, consume(false)), single(&seen, consume(true)),
	)
	if err != nil {
		return nil, err
	}
	return []row{forwarded.row(), watched.against(forwarded, 0.95), consumed.row(), seen.against(consumed, 0.95)}, nil
}

// watch simulates one operator until the returned function stop is called. Every two
// seconds the operator reads the status and one of the lists. The function stop adds an
// error of these calls to err. If look is false, watch does nothing.
func watch(ctx context.Context, db *database, look bool, err *error) (stop func()) {
	if !look {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- watching(ctx, db) }()
	return func() {
		cancel()
		*err = errors.Join(*err, <-ended)
	}
}

func watching(ctx context.Context, db *database) error {
	o, err := newOperator(db)
	if err != nil {
		return err
	}
	tick := time.NewTicker(refreshPeriod)
	defer tick.Stop()
	for n := 0; ; n++ {
		for _, call := range []look{{look: o.status}, o.looks[n%len(o.looks)]} {
			if err := call.look(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
