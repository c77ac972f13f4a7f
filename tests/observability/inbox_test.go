package observability

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// moveInbox lets a durable consumer store a message, skip its duplicate, and
// fail to store while its table is missing.
func moveInbox(w *watch, seen *seen) {
	db := w.database()
	storage, err := durable.New(db, durable.Config{KeepHandled: time.Hour, MeterProvider: w.meters})
	if err != nil {
		w.Fatal(err)
	}
	w.zero("once.durable.")
	retries, err := retry.New(db, retry.Config{PollInterval: 20 * time.Millisecond})
	if err != nil {
		w.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		w.Fatal(err)
	}
	in := &byHand{testkit.NewSubscriber()}
	router.AddMiddleware(retries.Middleware)
	router.AddConsumerHandler("handler", "t", retries.Subscriber("payments", storage.Subscriber(in)),
		func(*message.Message) error { return nil })
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(w.Context())) }()
	<-router.Running()

	in.deliver(message.NewMessage("1", nil))
	in.deliver(message.NewMessage("1", nil))
	testkit.Eventually(w, 20*time.Second, "the message is handled", func() bool { return w.value("once.durable.lag", "") == 1 })

	w.exec(db, `ALTER TABLE once_parked RENAME TO away`)
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		in.deliver(message.NewMessage("2", nil))
	}()
	testkit.Eventually(w, 20*time.Second, "storing fails", func() bool {
		return w.value("once.durable.store.duration", "once.outcome=failed") > 0
	})
	w.exec(db, `ALTER TABLE away RENAME TO once_parked`)
	<-stored
	for outcome, want := range map[string]float64{"stored": 2, "ignored": 1} {
		if got := w.value("once.durable.received", "once.outcome="+outcome); got != want {
			w.Errorf("%v messages were %s, want %v", got, outcome, want)
		}
	}
	if got := w.value("once.durable.store.duration", "once.outcome=ok"); got != 3 {
		w.Errorf("%v batches were stored, want 3", got)
	}
	seen.look(w)
	if err := router.Close(); err != nil {
		w.Error(err)
	}
	if err := <-ended; err != nil {
		w.Error(err)
	}
}
