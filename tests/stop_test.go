package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// kubernetes is the default time that a pod has to stop.
const kubernetes = 30 * time.Second

// A service with default settings stops within the time that Kubernetes gives a
// pod, even if a handler ignores its context and a broker does not answer.
// After the next start its unfinished messages are handled once.
//
// With -short the service has less time.
func TestServiceStopsWithinThirtySeconds(t *testing.T) {
	grace, says := time.Duration(0), "12.5s of the grace of 25s" // the default
	if testing.Short() {
		grace, says = 4*time.Second, "2s of the grace of 4s"
	}
	broker := testkit.PrivateRabbit(t)
	s := &stopped{newChain(t, testkit.Postgres(t).DB, broker.URL("/"))}
	inHand, release := make(chan struct{}, 1), make(chan struct{})
	stop, ended, parts := s.start(grace, func() {
		inHand <- struct{}{}
		<-release
	})
	s.publish(message.NewMessage("in hand", nil))
	<-inHand
	broker.Freeze()
	s.publish(message.NewMessage("on its way", nil))
	testkit.Eventually(t, time.Minute, "the outbox has it", func() bool { return s.number(`SELECT COUNT(*) FROM once_outbox`) == 1 })

	began := time.Now()
	stop()
	err := <-ended
	took := time.Since(began)
	t.Logf("it took %v: %v", took.Round(time.Millisecond), err)
	if took > kubernetes {
		t.Errorf("it took %v", took)
	}
	said := fmt.Sprint(err)
	if testing.Short() {
		said, _, _ = strings.Cut(said, "\n") // the other parts may need more than their share too
	}
	if said != "once: stop *message.Router: still running after "+says+": exit the process, its unfinished messages are handled again" {
		t.Errorf("Run says %v", err)
	}
	close(release) // in production the process would have ended by now
	broker.Thaw()
	for _, part := range parts {
		_ = part.Close()
	}

	stop, ended, _ = s.start(grace, func() {})
	testkit.Eventually(t, time.Minute, "all messages are handled", func() bool { return s.effects() >= 2 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := s.effects(); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
}

// stopped is a service that the test stops and starts again.
type stopped struct{ *chain }

// start runs all parts with their default settings. When the parts are stopped, they
// must end within the duration grace. At each call, the handler first calls the
// function before.
func (s *stopped) start(grace time.Duration, before func()) (stop func(), ended <-chan error, parts []once.Closer) {
	s.Helper()
	consumer, err1 := once.NewConsumer(s.db, once.ConsumerConfig{Logger: testkit.Logger(s.T)})
	router, err2 := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	sub, err3 := rabbit.NewSubscriber(s.config("payments"), rabbit.SubscriberConfig{Logger: testkit.Logger(s.T)})
	publisher, err4 := rabbit.NewPublisher(s.config("publisher"), rabbit.PublisherConfig{Logger: testkit.Logger(s.T)})
	fwd, err5 := forwarder.New(s.db, publisher, forwarder.Config{Logger: testkit.Logger(s.T), Schema: schema.Config{}})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		s.Fatal(err)
	}
	consumer.AddHandler(router, "payments", placed, sub,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			before()
			return record("payments")(ctx, tx, msg)
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	done := make(chan error, 1)
	go func() { done <- once.Run(ctx, grace, router, fwd, publisher) }()
	select {
	case <-fwd.Running():
	case err := <-done:
		s.Fatal(err)
	}
	return cancel, done, []once.Closer{router, fwd, publisher, sub}
}

func (s *stopped) effects() int { return s.number(`SELECT COUNT(*) FROM effects`) }

func (s *stopped) number(query string) (n int) {
	s.Helper()
	if err := s.db.QueryRowContext(s.Context(), query).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}
