package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/journey"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/status"
)

// looks measures how long an operator waits for lists, groups and the status if the
// tables are large, and what a forwarder and a consumer notice of an operator who looks.
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
	overview := series{id: "look-status", what: fmt.Sprintf("status.Read, %d rows in the outbox besides", b.rows), unit: milliseconds}
	traced := series{id: "look-trace", what: "a trace of a message in quarantine, with the same outbox", unit: milliseconds}
	if err := fillOutbox(ctx, db, b.rows); err != nil {
		return nil, err
	}
	err = b.turns(
		ctx,
		single(&overview, func(ctx context.Context) (float64, error) { return slowest(ctx, few.status) }),
		single(&traced, func(ctx context.Context) (float64, error) { return slowest(ctx, few.trace) }),
	)
	if err != nil {
		return nil, err
	}
	beside, err := b.beside(ctx)
	return append(append(rows, overview.atMost(mostOfStatus), traced.atMost(mostOfStatus)), beside...), err
}

// The longest times of a look, and of the status or a trace, in milliseconds.
const (
	mostOfALook  = 100
	mostOfStatus = 200
)

// look is one call of an operator.
type look struct {
	id, what string
	look     func(ctx context.Context) error
}

// operator makes the calls of an operator.
type operator struct {
	looks    []look // of screens that show new rows again and again
	searches []look // for few of the rows
	status   func(ctx context.Context) error
	trace    func(ctx context.Context) error
}

func newOperator(db *database) (*operator, error) {
	quarantine, err1 := poison.New(db.DB, poison.Config{})
	letters, err2 := deadletter.New(db.DB, deadletter.Config{})
	messages, err3 := parked.New(db.DB, parked.Config{})
	waiting, err4 := pending.New(db.DB, pending.Config{})
	state, err5 := status.New(db.DB, status.Config{})
	journeys, err6 := journey.New(db.DB, journey.Config{})
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return nil, err
	}
	return &operator{
		status:   func(ctx context.Context) error { _, err := state.Read(ctx); return err },
		searches: newSearches(quarantine, letters),
		trace: func(ctx context.Context) error {
			found, err := journeys.Find(ctx, journey.Query{MessageID: mark})
			if err != nil {
				return err
			}
			return expect(len(found.Messages[0].Consumers), 1, nil)
		},
		looks: []look{
			{"quarantine-groups", "groups of the quarantine", func(ctx context.Context) error {
				groups, err := quarantine.Groups(ctx, poison.Filter{})
				return expect(len(groups), failureGroups, err)
			}},
			{"quarantine-list", "the first page of the quarantine", func(ctx context.Context) error {
				entries, err := quarantine.List(ctx, poison.Filter{Limit: 100})
				return expect(len(entries), 100, err)
			}},
			{"dead-groups", "groups of the dead letters", func(ctx context.Context) error {
				groups, err := letters.Groups(ctx, deadletter.Filter{})
				return expect(len(groups), failureGroups+1, err)
			}},
			{"dead-list", "the first page of the dead letters", func(ctx context.Context) error {
				page, err := letters.List(ctx, deadletter.Filter{Limit: 100})
				return expect(len(page), 100, err)
			}},
			{"parked-list", "a page of the parked messages", func(ctx context.Context) error {
				_, err := messages.List(ctx, parked.Filter{State: parked.Quarantined})
				return err
			}},
			{"consumers", "the consumers with their backlogs", func(ctx context.Context) error {
				_, err := messages.Consumers(ctx)
				return err
			}},
			{"outbox-list", "a page of the outbox", func(ctx context.Context) error {
				_, err := waiting.List(ctx, pending.Filter{})
				return err
			}},
		},
	}, nil
}

// newSearches returns searches for the few rows that fillEntries marks.
func newSearches(quarantine *poison.Quarantine, letters *deadletter.Letters) []look {
	entries := func(f poison.Filter) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := quarantine.List(ctx, f)
			return expect(len(found), marked, err)
		}
	}
	dead := func(f deadletter.Filter) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := letters.List(ctx, f)
			return expect(len(found), marked, err)
		}
	}
	future := time.Now().Add(aYear / 2)
	return []look{
		{"quarantine-tenant", "the entries of a tenant with few of them", entries(poison.Filter{Tenant: mark})},
		{"quarantine-event", "the entries of an event type with few of them", entries(poison.Filter{EventType: mark})},
		{"quarantine-time", "the entries that failed after a time, with few of them", entries(poison.Filter{FailedAfter: future})},
		{"quarantine-tenant-groups", "the groups of that tenant", func(ctx context.Context) error {
			groups, err := quarantine.Groups(ctx, poison.Filter{Tenant: mark})
			return expect(len(groups), 3, err)
		}},
		{"dead-tenant", "the dead letters of a tenant with few of them", dead(deadletter.Filter{Tenant: mark})},
		{"dead-group", "the dead letters of a group with few of them", dead(deadletter.Filter{Fingerprint: "exhausted: " + mark})},
		{"dead-time", "the dead letters of a time with few of them", dead(deadletter.Filter{FailedAfter: future})},
	}
}

func expect(got, want int, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("%d rows, want %d", got, want)
	}
	return err
}

// slowest returns the longest of five calls, in milliseconds. A first call, which reads
// the rows into memory, is not counted.
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

// failureGroups is the number of causes. One of them has half of the entries.
const failureGroups = 20

// mark is the tenant, the event type and the error of the marked rows, which are the
// last. Their times are a year ahead.
const (
	mark   = "marked"
	marked = 5
	aYear  = 365 * 24 * time.Hour
)

// fillEntries puts entries into the quarantine and as many into the dead letters.
func fillEntries(ctx context.Context, db *database, entries int) error {
	cause := fmt.Sprintf(`CASE WHEN n %% 2 = 0 THEN 0 ELSE n / 2 %% %d + 1 END`, failureGroups-1)
	for _, query := range []string{
		`INSERT INTO once_parked (consumer, topic, message_id, tenant, event_type, digest, envelope, state, due_at, attempts, reason, error,
			error_type, fingerprint, first_failed_at, last_failed_at)
		 SELECT 'other', 'others', 'old-' || n, 'tenant-' || n % 1000, 'event-' || n % 10, '', convert_to(repeat('x', 300), 'UTF8'),
			'quarantined', now(), 3, 'exhausted', 'cause ' || ` + cause + `, '*errors.errorString', md5((` + cause + `)::text), now(), now()
		 FROM generate_series(1, $1::bigint) AS n`,
		`UPDATE once_parked SET message_id = CASE WHEN id = $1 THEN '` + mark + `' ELSE message_id END,
			tenant = '` + mark + `', event_type = '` + mark + `',
			last_failed_at = now() + interval '1 year' WHERE id > $1 - 5`,
		`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown, tenant)
		 SELECT n, 'dead-' || n, 'others', convert_to(repeat('x', 300), 'UTF8'), '{}', now(), 20, 'cause ' || ` + cause + `, 'exhausted', false,
			'tenant-' || n % 1000
		 FROM generate_series(1, $1::bigint) AS n`,
		`UPDATE once_outbox_dead SET tenant = '` + mark + `', last_error = '` + mark + `', died_at = now() + interval '1 year' WHERE id > $1 - 5`,
	} {
		if _, err := db.ExecContext(ctx, query, entries); err != nil {
			return err
		}
	}
	return vacuum(ctx, db, "once_parked", "once_outbox_dead")
}

// fillOutbox adds waiting messages.
func fillOutbox(ctx context.Context, db *database, messages int) error {
	_, err := db.ExecContext(ctx, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
		SELECT 'm' || n, 'others', n % 64, '', '{}' FROM generate_series(1, $1::bigint) AS n`, messages)
	return errors.Join(err, vacuum(ctx, db, "once_outbox"))
}

func vacuum(ctx context.Context, db *database, tables ...string) error {
	for _, table := range tables {
		if _, err := db.ExecContext(ctx, `VACUUM ANALYZE `+table); err != nil {
			return err
		}
	}
	_, err := db.ExecContext(ctx, `CHECKPOINT`)
	return err
}

// every is the pause of an operator's screen, as of once status --watch.
const every = 2 * time.Second

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
	forward := func(look bool) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (_ float64, err error) {
			if err := errors.Join(sender.add(ctx, b.messages, 0), sender.settle(ctx)); err != nil {
				return 0, err
			}
			defer watch(ctx, sender.db, look, &err)()
			return sender.drain(ctx, b.messages)
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
		what: fmt.Sprintf("the same beside an operator: all of these calls every %v", every),
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

// watch makes all calls again and again until stop is called, which adds their error
// to err.
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
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for _, call := range append([]look{{look: o.status}}, o.looks...) {
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
