package house

import (
	"context"
	"database/sql"
	"io"
	"iter"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/archive"
	"github.com/watermill-once/once/operate/audit"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/health"
	"github.com/watermill-once/once/operate/mover"
	outboxops "github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/operate/trace"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

func TestErrorsBeginWithThePackage(t *testing.T) {
	t.Parallel()
	closed := kit.SQLite(t).DB
	kit.OK(t, closed.Close())
	for _, test := range parts() {
		t.Run(test.name, func(t *testing.T) {
			name := path.Base(test.name)
			_, err := test.refused()
			beginsWith(t, name, "New", err)
			if test.opened == nil {
				return
			}
			part, err := test.opened(closed, schema.Config{Dialect: schema.SQLite})
			kit.OK(t, err)
			for method, err := range methods(t, part) {
				if err != nil {
					beginsWith(t, name, method, err)
				} else if !withoutDatabase[method] {
					t.Errorf("%s: no error, although the database is closed", method)
				}
			}
		})
	}
}

// part is a type with methods that use the database.
type part struct {
	name    string
	refused func() (any, error)                                 // its constructor, with bad arguments
	opened  func(db *sql.DB, tables schema.Config) (any, error) // nil if it needs a server
}

func parts() []part {
	nop := watermill.NopLogger{}
	return []part{
		{"audit", func() (any, error) { return audit.New(nil, schema.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return audit.New(db, tables)
		}},
		{"console", func() (any, error) { return console.Handler(nil, console.Config{}) }, nil},
		{"dead", func() (any, error) {
			return dead.New(nil, operate.Config{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return dead.New(db, operate.Config{Schema: tables})
		}},
		{"dead", func() (any, error) {
			return dead.NewSentLog(nil, operate.Config{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return dead.NewSentLog(db, operate.Config{Schema: tables})
		}},
		{"dedup", func() (any, error) { return dedup.New(nil, dedup.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return dedup.New(db, dedup.Config{Schema: tables, Consumer: "c", Logger: nop})
		}},
		{"durable", func() (any, error) { return durable.New(nil, durable.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return durable.New(db, durable.Config{Schema: tables, Logger: nop})
		}},
		{"embedded", func() (any, error) {
			return embedded.New(nil, embedded.Config{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return embedded.New(db, embedded.Config{Schema: tables, Logger: nop})
		}},
		{"forwarder", func() (any, error) { return forwarder.New(nil, nil, forwarder.Config{}) }, nil},
		{"archive", func() (any, error) { return archive.New(nil, schema.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return archive.New(db, tables)
		}},
		{"health", func() (any, error) { return health.New(nil, health.Config{}) }, nil},
		{"idempotency", func() (any, error) {
			return idempotency.New(nil, idempotency.Config{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return idempotency.New(db, idempotency.Config{Schema: tables, Client: idempotency.OneClient, Logger: nop})
		}},
		{"trace", func() (any, error) { return trace.New(nil, schema.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return trace.New(db, tables)
		}},
		{"mover", func() (any, error) { return mover.New(nil, mover.Config{}) }, nil},
		{"once", func() (any, error) { return once.NewConsumer(nil, once.ConsumerConfig{}) }, nil},
		{"outbox", func() (any, error) {
			return outbox.New(outbox.Config{MaxPayload: -1})
		}, func(_ *sql.DB, tables schema.Config) (any, error) {
			return outbox.New(outbox.Config{Schema: tables})
		}},
		{"parked", func() (any, error) { return parked.New(nil, operate.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return parked.New(db, operate.Config{Schema: tables})
		}},
		{"operate/outbox", func() (any, error) {
			return outboxops.New(nil, operate.Config{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return outboxops.New(db, operate.Config{Schema: tables})
		}},
		{"poison", func() (any, error) { return poison.New(nil, poison.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return poison.New(db, poison.Config{Schema: tables, Logger: nop})
		}},
		{"quarantine", func() (any, error) { return quarantine.New(nil, operate.Config{}) }, func(db *sql.DB,
			tables schema.Config,
		) (any, error) {
			return quarantine.New(db, operate.Config{Schema: tables})
		}},
		{"rabbit", func() (any, error) {
			return rabbit.NewPublisher(amqp.Config{}, rabbit.PublisherConfig{})
		}, nil},
		{"rabbit", func() (any, error) {
			return rabbit.NewSubscriber(amqp.Config{}, rabbit.SubscriberConfig{})
		}, nil},
		{"reconcile", func() (any, error) {
			return reconcile.NewSender(nil, reconcile.SenderConfig{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return reconcile.NewSender(db, reconcile.SenderConfig{Schema: tables, Topics: []string{"t"}})
		}},
		{"reconcile", func() (any, error) {
			return reconcile.NewReceiver(nil, reconcile.ReceiverConfig{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return reconcile.NewReceiver(db, reconcile.ReceiverConfig{Schema: tables, Consumers: []string{"c"}})
		}},
		{"reconcile", func() (any, error) {
			return reconcile.NewArchive(nil, schema.Config{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return reconcile.NewArchive(db, tables)
		}},
		{"retry", func() (any, error) { return retry.New(nil, retry.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return retry.New(db, retry.Config{Schema: tables, Logger: nop})
		}},
		{"sequence", func() (any, error) { return sequence.New(sequence.Config{}) }, nil},
		{"sequence", func() (any, error) {
			return sequence.NewVersions(nil, sequence.VersionsConfig{})
		}, func(db *sql.DB, tables schema.Config) (any, error) {
			return sequence.NewVersions(db, sequence.VersionsConfig{Schema: tables})
		}},
		{"status", func() (any, error) { return status.New(nil, schema.Config{}) }, func(db *sql.DB, tables schema.Config) (any, error) {
			return status.New(db, tables)
		}},
	}
}

// withoutDatabase are the methods that need no database when they are called: Close
// has nothing to close, Run tries again until its context ends, Publish is given no
// messages, and Statements only checks messages.
var withoutDatabase = map[string]bool{"Close": true, "Run": true, "Publish": true, "Statements": true}

// methods calls each method of a part that returns an error.
func methods(t *testing.T, part any) iter.Seq2[string, error] {
	value := reflect.ValueOf(part)
	return func(yield func(string, error) bool) {
		for method := range value.Type().Methods() {
			if n := method.Type.NumOut(); n == 0 || method.Type.Out(n-1) != reflect.TypeFor[error]() {
				continue
			}
			if !yield(method.Name, call(t, method.Name, value.MethodByName(method.Name))) {
				return
			}
		}
	}
}

// call calls a method with valid arguments, and returns its error.
func call(t *testing.T, name string, method reflect.Value) error {
	t.Helper()
	patience := time.Minute
	if name == "Run" {
		patience = 100 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
		case in == reflect.TypeFor[parked.Action]():
			args = append(args, reflect.ValueOf(parked.RunNow))
		case in == reflect.TypeFor[string]():
			args = append(args, reflect.ValueOf("text"))
		case in == reflect.TypeFor[time.Time]():
			args = append(args, reflect.ValueOf(time.Now()))
		case in == reflect.TypeFor[time.Duration]():
			args = append(args, reflect.ValueOf(time.Hour))
		case in.Kind() == reflect.Int64:
			args = append(args, reflect.ValueOf(int64(1)).Convert(in))
		case in.Kind() == reflect.Func:
			args = append(args, reflect.MakeFunc(in, func([]reflect.Value) (results []reflect.Value) {
				for out := range in.Outs() {
					results = append(results, reflect.Zero(out))
				}
				return results
			}))
		case in.Kind() == reflect.Struct:
			args = append(args, filled(in))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	results := method.Call(args)
	err, _ := reflect.TypeAssert[error](results[len(results)-1])
	return err
}

// filled returns a filter, a scope or a query whose only required field is set.
func filled(of reflect.Type) reflect.Value {
	value := reflect.New(of).Elem()
	for _, name := range []string{"All", "MessageID", "Topic"} {
		field := value.FieldByName(name)
		if field.Kind() == reflect.Bool {
			field.SetBool(true)
			return value
		}
		if field.Kind() == reflect.String {
			field.SetString("text")
			return value
		}
	}
	return value
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
