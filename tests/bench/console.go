package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/rabbit"
)

// consoleEvery is how often an open overview loads new numbers.
const consoleEvery = 3 * time.Second

// consoles measures how long the overview takes with large tables, and whether an open
// overview slows down forwarder and consumer.
func (b *bench) consoles(ctx context.Context) (_ []row, err error) {
	large, err := b.newInbox(ctx, b.remembered, inOrder)
	if err != nil {
		return nil, err
	}
	defer closing(large, &err)
	if err := large.fillFailures(ctx, b.remembered/10); err != nil {
		return nil, err
	}
	consumed := func(ctx context.Context) (float64, error) {
		took, err := large.scene.consume(ctx, large.messages(b.consume), chain(rabbit.SubscriberConfig{}))
		return rate(b.consume, took), err
	}
	var (
		page = series{
			id: "console-overview", what: fmt.Sprintf("overview of the console, %d ids, a tenth as many failures of each kind", b.remembered),
			unit: milliseconds,
		}
		drain   = series{id: "console-drain-without", what: "forwarder with rabbit.Publisher, " + b.kinds[0], unit: perSecond}
		drained = series{id: "console-drain", what: "the same with an open overview", unit: perSecond}
		alone   = series{id: "console-consume-without", what: "once.Consumer as it comes, with the tables of the overview", unit: perSecond}
		watched = series{id: "console-consume", what: "the same with an open overview", unit: perSecond}
	)
	err = b.turns(
		ctx,
		single(&page, func(ctx context.Context) (float64, error) { return large.firstOverview(ctx) }),
		single(&drain, func(ctx context.Context) (float64, error) { return b.drainBeside(ctx, (*scene).unwatched) }),
		single(&drained, func(ctx context.Context) (float64, error) { return b.drainBeside(ctx, (*scene).watched) }),
		single(&alone, func(ctx context.Context) (float64, error) { return large.unwatched(ctx, consumed) }),
		single(&watched, func(ctx context.Context) (float64, error) { return large.watched(ctx, consumed) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{page.atMost(100), drain.row(), drained.against(drain, 0.98), alone.row(), watched.against(alone, 0.98)}, nil
}

// fillFailures inserts dead letters, entries of the quarantine and sent messages.
func (i *filledInbox) fillFailures(ctx context.Context, n int) error {
	for _, query := range []string{
		`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, reason, error, fingerprint,
			                      first_failed_at, last_failed_at)
			SELECT 'failing', 'orders', 'q' || n, '', sha256(n::text::bytea), 'quarantined', now(), 'exhausted', 'down', 'f' || n % 30,
			       now() - n * interval '1 second', now() - n * interval '1 second' FROM generate_series(1, $1::bigint) AS n`,
		`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
			SELECT n, 'd' || n, 'orders', sha256(n::text::bytea), '{}', now(), 20, 'no queue ' || n % 30, 'exhausted', false
			FROM generate_series(1, $1::bigint) AS n`,
		`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
			SELECT n, 's' || n, 'orders', sha256(n::text::bytea), '{}', now() FROM generate_series(1, $1::bigint) AS n`,
	} {
		if _, err := i.db.ExecContext(ctx, query, n); err != nil {
			return err
		}
	}
	return i.exec(ctx, `VACUUM ANALYZE`, `CHECKPOINT`)
}

func (s *scene) console() (*console.Console, error) {
	return console.Handler(s.db.DB, console.Config{Authorize: console.ReadOnly, Logger: watermill.NopLogger{}})
}

// loadPage loads a page and returns its text.
func loadPage(ctx context.Context, c *console.Console, page string) (string, error) {
	answer := httptest.NewRecorder()
	c.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/"+page, nil))
	if answer.Code != http.StatusOK {
		return "", fmt.Errorf("the page %q of the console: status %d", page, answer.Code)
	}
	return answer.Body.String(), nil
}

// firstOverview returns the milliseconds that the first look takes. Nothing is sent
// before the page is complete, so this is the time to the first byte.
func (s *scene) firstOverview(ctx context.Context) (_ float64, err error) {
	c, err := s.console()
	if err != nil {
		return 0, err
	}
	defer closing(c, &err)
	start := time.Now()
	_, err = loadPage(ctx, c, "")
	return float64(time.Since(start).Microseconds()) / 1000, err
}

// watched calls measure while an overview is open.
func (s *scene) watched(ctx context.Context, measure func(ctx context.Context) (float64, error)) (_ float64, err error) {
	c, err := s.console()
	if err != nil {
		return 0, err
	}
	defer closing(c, &err)
	if err := countDays(ctx, c); err != nil {
		return 0, err
	}
	looking, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- lookAgain(looking, c) }()
	value, err := measure(ctx)
	stop()
	return value, errors.Join(err, <-ended)
}

// unwatched calls measure after a console has counted the days, as it has in watched: that
// reads so many rows that others leave the memory of the database.
func (s *scene) unwatched(ctx context.Context, measure func(ctx context.Context) (float64, error)) (float64, error) {
	c, err := s.console()
	if err != nil {
		return 0, err
	}
	if err := errors.Join(countDays(ctx, c), c.Close()); err != nil {
		return 0, err
	}
	return measure(ctx)
}

// countDays waits until the days are counted, which happens once.
func countDays(ctx context.Context, c *console.Console) error {
	if _, err := loadPage(ctx, c, ""); err != nil {
		return err
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		text, err := loadPage(ctx, c, "days")
		if err != nil || strings.Contains(text, "<td") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}

// lookAgain loads the overview until ctx ends.
func lookAgain(ctx context.Context, c *console.Console) error {
	tick := time.NewTicker(consoleEvery)
	defer tick.Stop()
	for {
		if _, err := loadPage(context.WithoutCancel(ctx), c, ""); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// drainBeside is drainFilled within beside, which is watched or unwatched.
func (b *bench) drainBeside(
	ctx context.Context, beside func(s *scene, ctx context.Context, measure func(ctx context.Context) (float64, error)) (float64, error),
) (_ float64, err error) {
	s, err := b.newScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fill(ctx, b.messages, 0); err != nil {
		return 0, err
	}
	return beside(s, ctx, func(ctx context.Context) (float64, error) { return s.drain(ctx, b.messages) })
}
