package house

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/forwarder/hint"
	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// loggers has a case for each public struct with a Logger. The function run does
// something that must be logged, until ctx ends. The database up has tables. Every
// statement on the database down fails.
var loggers = map[string]struct {
	says string // a part of the line
	run  func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error
}{
	"once.ConsumerConfig": {"consumer has no handler", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		c, err := once.NewConsumer(b.up, once.ConsumerConfig{Schema: b.tables, DurableConsumers: []string{"mispelt"}, Logger: logger})
		if err != nil {
			return err
		}
		return b.route(ctx, func(router *message.Router) {
			c.AddHandler(router, "payments", "topic", b.channel(), inTransaction)
		})
	}},
	"once.Plugin": {"The connection pool is too small", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		postgres := kit.Postgres(b).DB
		postgres.SetMaxOpenConns(1)
		if err := schema.Up(ctx, postgres, schema.Config{}); err != nil {
			return err
		}
		retries, err := retry.New(postgres, retry.Config{Logger: logger})
		if err != nil {
			return err
		}
		return b.route(ctx, func(router *message.Router) {
			router.AddPlugin(once.Plugin(nil, retries))
			router.AddConsumerHandler("payments", "topic", retries.Subscriber("payments", b.channel()), nothing)
		})
	}},
	"forwarder.Config": {"trying again", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		f, err := forwarder.New(b.down, b.channel(), forwarder.Config{Logger: logger})
		if err != nil {
			return err
		}
		return f.Run(ctx)
	}},
	"mover.Config": {"Messages cannot be moved", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		m, err := mover.New(b.down, mover.Config{ConsumerGroup: "group", Logger: logger})
		if err != nil {
			return err
		}
		return m.Run(ctx)
	}},
	"dedup.Config": {"Sweep of the inbox failed", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		i, err := dedup.New(b.down, dedup.Config{Logger: logger})
		if err != nil {
			return err
		}
		return i.Run(ctx)
	}},
	"retry.Config": {"Paused consumers cannot be read", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		r, err := retry.New(b.down, retry.Config{Logger: logger})
		if err != nil {
			return err
		}
		return drain(ctx, r.Subscriber("payments", b.channel()))
	}},
	"poison.Config": {"Message stays unacked", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		q, err := poison.New(b.down, poison.Config{Logger: logger})
		if err != nil {
			return err
		}
		msg := message.NewMessage("1", nil)
		msg.SetContext(ctx)
		_, err = q.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no") })(msg)
		return err
	}},
	"durable.Config": {"store", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		i, err1 := durable.New(b.down, durable.Config{Logger: logger})
		r, err2 := retry.New(b.down, retry.Config{Logger: watermill.NopLogger{}})
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		c := b.channel()
		if err := c.Publish("topic", message.NewMessage("1", nil)); err != nil {
			return err
		}
		return drain(ctx, r.Subscriber("payments", i.Subscriber(c)))
	}},
	"sequence.Config": {"Messages wait for the first version", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		order := sequence.Config{Policy: sequence.HoldForGap, Window: 2 * time.Second}
		c, err := once.NewConsumer(b.up, once.ConsumerConfig{Schema: b.tables, Sequence: &order, Logger: logger})
		if err != nil {
			return err
		}
		channel, second := b.channel(), outbox.NewMessage(nil)
		outbox.SetAggregate(second, "account", "17", 2)
		if err := channel.Publish("topic", second); err != nil {
			return err
		}
		return b.route(ctx, func(router *message.Router) { c.AddHandler(router, "payments", "topic", channel, inTransaction) })
	}},
	"hint.Config": {"Host of a forwarder cannot be found", func(ctx context.Context, _ *logBench, logger watermill.LoggerAdapter) error {
		s, err := hint.NewSender([]string{"nowhere.invalid:7946"}, hint.Config{Logger: logger})
		if err != nil {
			return err
		}
		s.Hint()
		<-ctx.Done()
		return s.Close()
	}},
	"embedded.Config": {"Consumer is no longer registered", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		transport, err := embedded.New(b.up, embedded.Config{Schema: b.tables, Logger: logger})
		if err != nil {
			return err
		}
		_, err = transport.Forget(ctx, "payments", "topic")
		return err
	}},
	"idempotency.Config": {"an idempotency key failed", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		keys, err := idempotency.New(b.down, idempotency.Config{Client: idempotency.OneClient, Logger: logger})
		if err != nil {
			return err
		}
		b.request(ctx, keys.Handler(func(http.ResponseWriter, *http.Request, *sql.Tx) error { return nil }))
		return nil
	}},
	"console.Config": {"Console page failed", func(ctx context.Context, b *logBench, logger watermill.LoggerAdapter) error {
		pages, err := console.Handler(b.down, console.Config{Authorize: console.ReadOnly, Logger: logger})
		if err != nil {
			return err
		}
		b.request(ctx, pages)
		return pages.Close()
	}},
	"rabbit.PublisherConfig": {"127.0.0.1:1", func(ctx context.Context, _ *logBench, logger watermill.LoggerAdapter) error {
		p, err := rabbit.NewPublisher(nowhere, rabbit.PublisherConfig{Logger: logger})
		if err != nil {
			return err
		}
		<-ctx.Done()
		return p.Close()
	}},
	"rabbit.SubscriberConfig": {"127.0.0.1:1", func(ctx context.Context, _ *logBench, logger watermill.LoggerAdapter) error {
		s, err := rabbit.NewSubscriber(nowhere, rabbit.SubscriberConfig{Logger: logger})
		if err != nil {
			return err
		}
		return errors.Join(drain(ctx, s), s.Close())
	}},
}

var nowhere = amqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:1/")

// logBench has the databases that the parts need.
type logBench struct {
	*testing.T

	up, down *sql.DB
	tables   schema.Config // of up
}

func newLogBench(t *testing.T) *logBench {
	t.Helper()
	b := &logBench{T: t, up: kit.SQLite(t).DB, down: kit.SQLite(t).DB, tables: schema.Config{Dialect: schema.SQLite}}
	kit.OK(t, errors.Join(schema.Up(t.Context(), b.up, b.tables), b.down.Close()))
	return b
}

func (b *logBench) channel() *gochannel.GoChannel {
	c := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// route runs a router that logs nothing itself.
func (b *logBench) route(ctx context.Context, add func(router *message.Router)) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	add(router)
	return router.Run(ctx)
}

func (b *logBench) request(ctx context.Context, handler http.Handler) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.Header.Set(idempotency.Header, "17")
	handler.ServeHTTP(httptest.NewRecorder(), r)
}

// A part without a Logger must not hide that its database or broker cannot be reached,
// or that a setting has no effect. A part with a Logger, such as watermill.NopLogger,
// must not use another logger.
func TestPartsLogToSlogsDefaultUnlessTheyHaveALogger(t *testing.T) {
	for name, part := range loggers {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/own=%t", name, own), func(t *testing.T) {
				var slogs kit.Buffer
				before := slog.Default()
				slog.SetDefault(slog.New(slog.NewTextHandler(&slogs, nil)))
				defer slog.SetDefault(before)

				var logs kit.Logs
				said := func() bool { return strings.Contains(slogs.String(), part.says) }
				var logger watermill.LoggerAdapter
				if own {
					logger = &logs
					said = func() bool { return logs.Has(part.says) }
				}
				b := newLogBench(t)
				ctx, cancel := context.WithCancel(t.Context())
				ended := kit.Go(func() error { return part.run(ctx, b, logger) })
				kit.Eventually(t, time.Minute, "a log line", said)
				cancel()
				if err := <-ended; err != nil && !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), sql.ErrConnDone.Error()) &&
					!strings.Contains(err.Error(), "database is closed") && err.Error() != "no" {
					t.Error(err)
				}
				if own && slogs.String() != "" {
					t.Error("it also logs to slog's default logger")
				}
				if t.Failed() {
					t.Logf("%s%s", slogs.String(), strings.Join(logs.Lines(), "\n"))
				}
			})
		}
	}
}

// A new struct with a Logger needs a case in the variable loggers.
func TestAllPartsWithALoggerAreTested(t *testing.T) {
	t.Parallel()
	found := []string{"once.Plugin"} // uses the Logger of a part
	kit.OK(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"internal", "tests", "examples", "cmd", "tools", "testdata", "deploy"}, path):
			return fs.SkipDir
		case entry.IsDir(), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			declared, ok := n.(*ast.TypeSpec)
			if !ok || !declared.Name.IsExported() {
				return true
			}
			if fields, ok := declared.Type.(*ast.StructType); ok {
				for _, field := range fields.Fields.List {
					if len(field.Names) == 1 && field.Names[0].Name == "Logger" {
						found = append(found, file.Name.Name+"."+declared.Name.Name)
					}
				}
			}
			return true
		})
		return nil
	}))
	slices.Sort(found)
	if tested := slices.Sorted(maps.Keys(loggers)); !slices.Equal(found, tested) {
		t.Errorf("tested are %q, and the parts with a Logger are %q", tested, found)
	}
}

// drain receives the messages of sub without an ack until ctx ends.
func drain(ctx context.Context, sub message.Subscriber) error {
	messages, err := sub.Subscribe(ctx, "topic")
	if err != nil {
		return err
	}
	<-ctx.Done()
	for range messages { // the messages are delivered again later
	}
	return nil
}

func inTransaction(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
	return nil, nil
}

func nothing(*message.Message) error { return nil }
