package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// If a middleware of Watermill around ours would lose messages, the router does not start. Other
// middlewares are allowed.
func TestStartRefusesMiddlewareThatLosesMessages(t *testing.T) {
	db, tables := kit.SQLite(t).DB, schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db, tables))
	poisonQueue, err := middleware.PoisonQueue(gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}), "poison")
	kit.OK(t, err)
	for _, c := range []struct {
		name  string
		stock []message.HandlerMiddleware
		says  string
	}{
		{
			"InstantAck",
			[]message.HandlerMiddleware{middleware.Recoverer, middleware.InstantAck},
			`handler "payments" has Watermill's middleware InstantAck: it acks before the message is handled, ` +
				`so a message that fails is lost; remove it`,
		},
		{
			"Deduplicator",
			[]message.HandlerMiddleware{(&middleware.Deduplicator{}).Middleware},
			`handler "payments" has Watermill's middleware Deduplicator: it remembers a message before it is handled, ` +
				`so a message that failed is skipped when it is delivered again; remove it`,
		},
		{
			"PoisonQueue",
			[]message.HandlerMiddleware{middleware.Recoverer, poisonQueue},
			`handler "payments" has Watermill's middleware PoisonQueue: it takes messages away from their consumer ` +
				`during an outage of the database, and when the process stops; remove it`,
		},
		{"others", []message.HandlerMiddleware{middleware.Recoverer, middleware.CorrelationID}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables, Logger: watermill.NopLogger{}})
			kit.OK(t, err)
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
			kit.OK(t, err)
			router.AddMiddleware(c.stock...)
			consumer.AddHandler(router, "payments", "orders.placed", gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
				func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				select {
				case <-router.Running():
					cancel()
				case <-ctx.Done():
				}
			}()
			err = router.Run(ctx)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.HasSuffix(err.Error(), ": once: "+c.says)) {
				t.Errorf("Run says %v", err)
			}
		})
	}
}

// kubernetes is the default time that a pod has to stop.
const kubernetes = 30 * time.Second

// A service with default settings stops within the time that Kubernetes gives a
// pod, even if a handler ignores its context and a broker does not answer.
// After the next start its unfinished messages are handled once.
func TestServiceStopsWithinThirtySeconds(t *testing.T) {
	kit.Long(t) // not needed in make test, because the tests of once.Run stop parts that hang
	broker := kit.PrivateRabbit(t)
	s := &stopped{newChain(t, kit.Postgres(t).DB, broker.URL("/"))}
	inHand, release := make(chan struct{}, 1), make(chan struct{})
	stop, ended, parts := s.start(func() {
		inHand <- struct{}{}
		<-release
	})
	s.publish(message.NewMessage("in hand", nil))
	<-inHand
	broker.Freeze()
	s.publish(message.NewMessage("on its way", nil))
	kit.Eventually(t, time.Minute, "the outbox has it", func() bool { return s.number(`SELECT COUNT(*) FROM once_outbox`) == 1 })

	began := time.Now()
	stop()
	err := <-ended
	took := time.Since(began)
	t.Logf("it took %v: %v", took.Round(time.Millisecond), err)
	if took > kubernetes {
		t.Errorf("it took %v", took)
	}
	const says = "once: stop *message.Router: still running after 12.5s of the grace of 25s: " +
		"exit the process, its unfinished messages are handled again"
	if fmt.Sprint(err) != says {
		t.Errorf("Run says %v", err)
	}
	close(release) // in production the process would have ended by now
	broker.Thaw()
	for _, part := range parts {
		_ = part.Close()
	}

	stop, ended, _ = s.start(func() {})
	kit.Eventually(t, time.Minute, "all messages are handled", func() bool { return s.effects() >= 2 })
	stop()
	kit.Check(t, <-ended)
	if n := s.effects(); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
}

// stopped is a service that the test stops and starts again.
type stopped struct{ *chain }

// start runs all parts with their default settings. At each call, the handler first
// calls the function before.
func (s *stopped) start(before func()) (stop func(), ended <-chan error, parts []io.Closer) {
	s.Helper()
	consumer, err1 := once.NewConsumer(s.db, once.ConsumerConfig{Logger: kit.Logger(s.T)})
	router, err2 := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	sub, err3 := rabbit.NewSubscriber(s.config("payments"), rabbit.SubscriberConfig{Logger: kit.Logger(s.T)})
	publisher, err4 := rabbit.NewPublisher(s.config("publisher"), rabbit.PublisherConfig{Logger: kit.Logger(s.T)})
	fwd, err5 := forwarder.New(s.db, publisher, forwarder.Config{Logger: kit.Logger(s.T), Schema: schema.Config{}})
	kit.OK(s, errors.Join(err1, err2, err3, err4, err5))
	consumer.AddHandler(router, "payments", placed, sub,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			before()
			return record("payments")(ctx, tx, msg)
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	done := kit.Go(func() error { return once.Run(ctx, 0, router, fwd, publisher) })
	select {
	case <-fwd.Running():
	case err := <-done:
		s.Fatal(err)
	}
	return cancel, done, []io.Closer{router, fwd, publisher, sub}
}

func (s *stopped) effects() int { return s.number(`SELECT COUNT(*) FROM effects`) }

func (s *stopped) number(query string) (n int) {
	s.Helper()
	kit.OK(s, s.db.QueryRowContext(s.Context(), query).Scan(&n))
	return n
}
