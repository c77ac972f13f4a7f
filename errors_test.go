package once_test

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/audit"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/health"
	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/journey"
	"github.com/watermill-once/once/mover"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/reconcile"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
	"github.com/watermill-once/once/status"
)

func TestErrorsBeginWithThePackage(t *testing.T) {
	t.Parallel()
	closed := testkit.SQLite(t).DB
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	sqlite, nop := schema.Config{Dialect: schema.SQLite}, watermill.NopLogger{}
	produced, err := outbox.New(outbox.Config{Schema: sqlite})
	if err != nil {
		t.Fatal(err)
	}

	// Each package is called with bad arguments, and then with a database that is closed.
	for _, test := range []struct {
		name    string
		refused func() (any, error)
		opened  func() (any, error) // nil if it needs a server
	}{
		{"audit", func() (any, error) { return audit.New(nil, audit.Config{}) }, func() (any, error) {
			return audit.New(closed, audit.Config{Schema: sqlite})
		}},
		{"console", func() (any, error) { return console.Handler(nil, console.Config{}) }, nil},
		{"deadletter", func() (any, error) { return deadletter.New(nil, deadletter.Config{}) }, func() (any, error) {
			return deadletter.New(closed, deadletter.Config{Schema: sqlite})
		}},
		{"deadletter", func() (any, error) { return deadletter.NewSentLog(nil, deadletter.Config{}) }, func() (any, error) {
			return deadletter.NewSentLog(closed, deadletter.Config{Schema: sqlite})
		}},
		{"dedup", func() (any, error) { return dedup.New(nil, dedup.Config{}) }, func() (any, error) {
			return dedup.New(closed, dedup.Config{Schema: sqlite, Consumer: "c", Logger: nop})
		}},
		{"durable", func() (any, error) { return durable.New(nil, durable.Config{}) }, func() (any, error) {
			return durable.New(closed, durable.Config{Schema: sqlite, Logger: nop})
		}},
		{"embedded", func() (any, error) { return embedded.New(nil, embedded.Config{}) }, func() (any, error) {
			return embedded.New(closed, embedded.Config{Schema: sqlite, Logger: nop})
		}},
		{"forwarder", func() (any, error) { return forwarder.New(nil, nil, forwarder.Config{}) }, nil},
		{"health", func() (any, error) { return health.New(nil, health.Config{}) }, nil},
		{"idempotency", func() (any, error) { return idempotency.New(nil, idempotency.Config{}) }, func() (any, error) {
			return idempotency.New(closed, idempotency.Config{Schema: sqlite, Client: idempotency.OneClient, Logger: nop})
		}},
		{"journey", func() (any, error) { return journey.New(nil, journey.Config{}) }, func() (any, error) {
			return journey.New(closed, journey.Config{Schema: sqlite})
		}},
		{"mover", func() (any, error) { return mover.New(nil, mover.Config{}) }, nil},
		{"once", func() (any, error) { return once.NewConsumer(nil, once.ConsumerConfig{}) }, nil},
		{"outbox", func() (any, error) { return outbox.New(outbox.Config{MaxPayload: -1}) }, func() (any, error) { return produced, nil }},
		{"parked", func() (any, error) { return parked.New(nil, parked.Config{}) }, func() (any, error) {
			return parked.New(closed, parked.Config{Schema: sqlite})
		}},
		{"pending", func() (any, error) { return pending.New(nil, pending.Config{}) }, func() (any, error) {
			return pending.New(closed, pending.Config{Schema: sqlite})
		}},
		{"poison", func() (any, error) { return poison.New(nil, poison.Config{}) }, func() (any, error) {
			return poison.New(closed, poison.Config{Schema: sqlite, Logger: nop})
		}},
		{"rabbit", func() (any, error) {
			return rabbit.NewPublisher(amqp.Config{}, rabbit.PublisherConfig{})
		}, nil},
		{"rabbit", func() (any, error) {
			return rabbit.NewSubscriber(amqp.Config{}, rabbit.SubscriberConfig{})
		}, nil},
		{"reconcile", func() (any, error) { return reconcile.NewSender(nil, reconcile.SenderConfig{}) }, func() (any, error) {
			return reconcile.NewSender(closed, reconcile.SenderConfig{Schema: sqlite, Topics: []string{"t"}})
		}},
		{"reconcile", func() (any, error) { return reconcile.NewReceiver(nil, reconcile.ReceiverConfig{}) }, func() (any, error) {
			return reconcile.NewReceiver(closed, reconcile.ReceiverConfig{Schema: sqlite, Consumers: []string{"c"}})
		}},
		{"retry", func() (any, error) { return retry.New(nil, retry.Config{}) }, func() (any, error) {
			return retry.New(closed, retry.Config{Schema: sqlite, Logger: nop})
		}},
		{"sequence", func() (any, error) { return sequence.New(sequence.Config{}) }, nil},
		{"sequence", func() (any, error) { return sequence.NewVersions(nil, sequence.VersionsConfig{}) }, func() (any, error) {
			return sequence.NewVersions(closed, sequence.VersionsConfig{Schema: sqlite})
		}},
		{"status", func() (any, error) { return status.New(nil, status.Config{}) }, func() (any, error) {
			return status.New(closed, status.Config{Schema: sqlite})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.refused()
			beginsWith(t, test.name, "New", err)
			if test.opened == nil {
				return
			}
			part, err := test.opened()
			if err != nil {
				t.Fatal(err)
			}
			value := reflect.ValueOf(part)
			for method := range value.Type().Methods() {
				if n := method.Type.NumOut(); n == 0 || method.Type.Out(n-1) != reflect.TypeFor[error]() {
					continue
				}
				if err := call(t, value.MethodByName(method.Name)); err != nil {
					beginsWith(t, test.name, method.Name, err)
				} else if !withoutDatabase[method.Name] {
					t.Errorf("%s: no error, although the database is closed", method.Name)
				}
			}
		})
	}
}

// withoutDatabase are the methods that need no database when they are called: Close
// has nothing to close, Run tries again until its context ends, Publish is given no
// messages, and Statements only checks messages.
var withoutDatabase = map[string]bool{"Close": true, "Run": true, "Publish": true, "Statements": true}

// call calls a method with valid arguments, and returns its error.
func call(t *testing.T, method reflect.Value) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		in := method.Type().In(i)
		switch {
		case method.Type().IsVariadic() && i == method.Type().NumIn()-1:
			if in.Elem().Kind() == reflect.Int64 {
				args = append(args, reflect.ValueOf(int64(1)))
			}
			continue
		case in == reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(ctx))
		case in == reflect.TypeFor[operate.Act]():
			args = append(args, reflect.ValueOf(operate.Act{Actor: "ann", Why: "test"}))
		case in == reflect.TypeFor[io.Writer]():
			args = append(args, reflect.ValueOf(io.Discard))
		case in == reflect.TypeFor[io.Reader]():
			args = append(args, reflect.ValueOf(strings.NewReader("{}")))
		case in == reflect.TypeFor[string]():
			args = append(args, reflect.ValueOf("text"))
		case in.Kind() == reflect.Int64:
			args = append(args, reflect.ValueOf(int64(1)).Convert(in))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	results := method.Call(args)
	err, _ := reflect.TypeAssert[error](results[len(results)-1])
	return err
}

func beginsWith(t *testing.T, name, function string, err error) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: no error", function)
	case !strings.HasPrefix(err.Error(), name+": "):
		t.Errorf("%s: the error does not begin with the package: %v", function, err)
	}
}
