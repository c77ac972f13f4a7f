package once_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// limited is a subscriber with a limited number of messages in flight.
type limited struct {
	message.Subscriber

	inFlight  int
	automatic bool
}

func (l limited) InFlight() (limit int, automatic bool) { return l.inFlight, l.automatic }

func inBatches(context.Context, *sql.Tx, []*message.Message) ([]*message.Message, error) {
	return nil, nil
}

// One error names all mistakes, in the order of the handlers.
func TestStartChecksTheHandlers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 256)
	const order = `: the order is AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)`
	for _, c := range []struct {
		name  string
		build func(b *startBench)
		says  []string
	}{
		{"the right way", func(b *startBench) {
			b.router.AddMiddleware(b.quarantine.Middleware, b.retries.Middleware, b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("payments", b.in), nothing)
			b.router.AddConsumerHandler("b", "t", b.retries.Subscriber("mail", b.in), nothing)
		}, nil},
		{"the right way around a handler", func(b *startBench) {
			b.router.AddHandler("a", "t", b.retries.Subscriber("payments", b.in), "", nil,
				b.quarantine.Middleware(b.retries.Middleware(b.inbox.Middleware(pass))))
		}, nil},
		{"a subscriber around retry's", func(b *startBench) {
			sub, err := message.MessageTransformSubscriberDecorator(func(*message.Message) {})(b.retries.Subscriber("payments", b.in))
			b.must(err)
			b.router.AddConsumerHandler("a", "t", sub, nothing).AddMiddleware(b.retries.Middleware, b.inbox.BatchMiddleware)
		}, nil},
		{"dedup alone", func(b *startBench) {
			b.router.AddConsumerHandler("a", "t", b.in, nothing).AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("b", "t", b.in, nothing)
		}, nil},
		{"dedup outside of retry", func(b *startBench) {
			b.router.AddMiddleware(b.quarantine.Middleware, b.inbox.Middleware, b.retries.Middleware)
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("payments", b.in), nothing)
		}, []string{`handler "a" has the middleware of retry inside of dedup's` + order}},
		{"poison inside of retry, around the handler", func(b *startBench) {
			b.router.AddHandler("a", "t", b.retries.Subscriber("payments", b.in), "", nil, b.quarantine.Middleware(pass)).
				AddMiddleware(b.retries.Middleware)
		}, []string{`handler "a" has the middleware of poison inside of retry's` + order}},
		{"the batches of dedup outside of poison", func(b *startBench) {
			b.router.AddHandler("a", "t", b.in, "", nil, b.inbox.BatchMiddleware(pass))
			b.router.AddConsumerHandler("b", "t", b.in, nothing).AddMiddleware(b.inbox.BatchMiddleware, b.quarantine.Middleware)
		}, []string{`handler "b" has the middleware of poison inside of dedup's` + order}},
		{"a sequence outside of dedup", func(b *startBench) {
			versions, err := sequence.New(sequence.Config{Schema: b.tables, Tx: dedup.TxFromContext})
			b.must(err)
			b.router.AddConsumerHandler("a", "t", b.in, nothing).AddMiddleware(versions.Middleware, b.inbox.Middleware)
		}, []string{`handler "a" has the middleware of dedup inside of sequence's` + order}},
		{"twice", func(b *startBench) {
			b.router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.in, nothing).AddMiddleware(b.inbox.Middleware)
		}, []string{`handler "a" has the middleware of dedup twice: add it once`}},
		{"a Consumer's router with the single ones", func(b *startBench) {
			b.router.AddMiddleware(b.retries.Middleware, b.inbox.Middleware)
			b.consumer(once.ConsumerConfig{}, "payments")
		}, []string{`handler "payments" was added by Consumer.AddHandler, which adds the whole chain: ` +
			`do not add the middleware of retry, dedup to its router as well`}},
		{"handlers that other code adds to a Consumer's router", func(b *startBench) {
			c, err := once.NewConsumer(b.db, once.ConsumerConfig{Schema: b.tables})
			b.must(err)
			b.router.AddConsumerHandler("a", "t", c.Subscriber(b.router, "a", b.in), nothing)
			shared := c.Subscriber(b.router, "mail", b.in)
			b.router.AddConsumerHandler("b", "u", shared, nothing)
			b.router.AddConsumerHandler("mail", "t", shared, nothing)
			c.Subscriber(b.router, "payments", b.in)
		}, []string{
			`handler "b" has the subscriber that Consumer.Subscriber returned for handler "mail": ` +
				`call Consumer.Subscriber once for each handler, with the name of the handler or of the group`,
			`Consumer.Subscriber was called for handler "payments", and the router has no handler with this name: ` +
				`call Consumer.Subscriber once for each handler, with the name of the handler or of the group`,
		}},
		{"retry without its Subscriber", func(b *startBench) {
			b.router.AddMiddleware(b.retries.Middleware, b.inbox.Middleware)
			b.router.AddConsumerHandler("mail", "t", b.in, nothing)
		}, []string{`handler "mail" has the middleware of retry, but not its subscriber: a failed message would be retried at once ` +
			`and never later; add the handler with retries.Subscriber("mail", subscriber)`}},
		{"names", func(b *startBench) {
			b.router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("", b.in), nothing)
			b.router.AddConsumerHandler("b", "t", b.retries.Subscriber("mail", b.in), nothing)
			wrapped, err := message.MessageTransformSubscriberDecorator(func(*message.Message) {})(b.retries.Subscriber("mail", b.in))
			b.must(err)
			b.router.AddConsumerHandler("c", "t", wrapped, nothing)
			b.router.AddConsumerHandler("d", "u", b.retries.Subscriber("mail\x00", b.in), nothing)
			b.router.AddConsumerHandler(long, "t", b.in, nothing)
		}, []string{
			`handler "a" has no consumer name, under which messages are remembered: retries.Subscriber has an empty name; ` +
				`choose a name that never changes`,
			`handler "d" has an invalid consumer name from retries.Subscriber: "mail\x00" is longer than 255 bytes, or no text`,
			`handler "` + long + `" has an invalid consumer name from the router: "` + long[:40] + `" is longer than 255 bytes, or no text`,
			`consumer "mail" is used by the handlers "b" and "c" on topic "t", which would skip each other's messages; ` +
				`give each handler its own consumer name; to add one handler more than once, set retry.Config.ShareConsumer`,
		}},
		{"one name on purpose", func(b *startBench) {
			b.parts(dedup.Config{}, retry.Config{ShareConsumer: true})
			b.plugin().router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("b", "t", b.retries.Subscriber("mail", b.in), nothing)
			b.router.AddConsumerHandler("c", "t", b.retries.Subscriber("mail", b.in), nothing)
		}, nil},
		{"one inbox with a name for several", func(b *startBench) {
			b.parts(dedup.Config{Consumer: "payments"}, retry.Config{})
			b.plugin().router.AddMiddleware(b.inbox.Middleware)
			b.router.AddConsumerHandler("a", "t", b.in, nothing)
			b.router.AddConsumerHandler("b", "t", b.in, nothing)
			b.router.AddConsumerHandler("c", "t", b.retries.Subscriber("mail", b.in), nothing)
		}, []string{
			`handler "c" has the consumer name "mail" from retries.Subscriber, and "payments" from dedup.Config.Consumer: ` +
				`leave dedup.Config.Consumer empty`,
			`consumer "payments" is used by the handlers "a" and "b" on topic "t", which would skip each other's messages; ` +
				`give each handler its own consumer name`,
		}},
		{"no outbox", func(b *startBench) {
			b.router.AddMiddleware(b.inbox.Middleware)
			b.router.AddHandler("a", "t", b.in, "payments.captured", nil, pass)
		}, []string{`handler "a" publishes to topic "payments.captured", but dedup has no outbox: messages published after the commit ` +
			`could be lost; set dedup.Config.Outbox to outbox.Publisher`}},
		{"an outbox", func(b *startBench) {
			b.parts(dedup.Config{Outbox: outbox.Publisher}, retry.Config{})
			b.plugin().router.AddMiddleware(b.inbox.Middleware)
			b.router.AddHandler("a", "t", b.in, "payments.captured", nil, pass)
		}, nil},
		{"retries that outlast the inbox", func(b *startBench) {
			b.parts(dedup.Config{}, retry.Config{Policy: retry.Policy{Delayed: 40, Base: 24 * time.Hour, Max: 24 * time.Hour}})
			b.plugin()
			b.router.AddConsumerHandler("a", "t", b.retries.Subscriber("payments", b.in), nothing)
		}, []string{`dedup.Config.Retention is 720h0m0s, and retry retries for up to 960h0m0s: a late duplicate would be handled again; ` +
			`raise Retention, or lower Policy.Delayed or Policy.Max`}},
		{"batches that cannot be full", func(b *startBench) {
			b.parts(dedup.Config{Batch: dedup.Batch{Size: 20}}, retry.Config{})
			b.plugin()
			consumer, err := once.NewConsumer(b.db, once.ConsumerConfig{Schema: b.tables, DurableConsumers: []string{"mail"}})
			b.must(err)
			consumer.AddHandlerInBatches(b.router, "a", "t", limited{b.in, 8, true}, inTransaction)
			consumer.AddHandlerInBatches(b.router, "b", "t", limited{b.in, 99, false}, inTransaction)
			consumer.AddBatchHandler(b.router, "c", "t", limited{b.in, 100, false}, inBatches)
			consumer.AddHandlerInBatches(b.router, "mail", "t", limited{b.in, 8, false}, inTransaction)
			b.router.AddConsumerHandler("d", "t", limited{b.in, 8, true}, nothing).AddMiddleware(b.inbox.BatchMiddleware)
			b.router.AddConsumerHandler("e", "t", limited{b.in, 20, false}, nothing).AddMiddleware(b.inbox.BatchMiddleware)
		}, []string{
			`handler "b" collects batches of 100 messages, but its subscriber has at most 99 in flight: a batch can never be full; ` +
				`do not set InFlight, or set InFlight to 200, or dedup.Config.Batch.Size to 49 or less`,
			`handler "d" collects batches of 20 messages, but its subscriber has at most 8 in flight: a batch can never be full; ` +
				`set InFlight to 40, or dedup.Config.Batch.Size to 4 or less`,
		}},
		{"tables of their own", func(b *startBench) {
			other, err := dedup.New(b.db, dedup.Config{Schema: b.tables, Retention: 31 * 24 * time.Hour})
			b.must(err)
			tables := b.tables
			b.tables.Prefix = "mine_"
			b.parts(dedup.Config{}, retry.Config{})
			b.tables = tables
			b.router.AddPlugin(once.Plugin(other, b.retries))
			b.router.AddConsumerHandler("a", "t", b.in, nothing)
		}, []string{`dedup.Config.Schema is {Dialect:sqlite Schema: Prefix:once_ Inbox:plain Sent:} and ` +
			`retry.Config.Schema is {Dialect:sqlite Schema: Prefix:mine_ Inbox:plain Sent:}: the parts share their tables, set the same in all`}},
		{"no parts", func(b *startBench) { b.router.AddPlugin(once.Plugin()) }, []string{
			`Plugin was called without parts: pass the parts that the handlers use, as Plugin(quarantine, retries, inbox)`,
		}},
		{"several at once, with the tables", func(b *startBench) {
			_, err := b.db.ExecContext(b.Context(), `DROP TABLE once_migrations`)
			b.must(err)
			b.router.AddMiddleware(b.retries.Middleware, b.inbox.Middleware)
			b.router.AddHandler("a", "t", b.in, "payments.captured", nil, pass)
		}, []string{
			`handler "a" has the middleware of retry, but not its subscriber: a failed message would be retried at once ` +
				`and never later; add the handler with retries.Subscriber("a", subscriber)`,
			`handler "a" publishes to topic "payments.captured", but dedup has no outbox: messages published after the commit ` +
				`could be lost; set dedup.Config.Outbox to outbox.Publisher`,
			`schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newStartBench(t, kit.SQLite(t)).up()
			b.plugin()
			c.build(b)
			if len(b.router.Handlers()) == 0 { // Run would wait for a handler
				b.router.AddConsumerHandler("a", "t", b.in, nothing)
			}
			b.says(c.says...)
		})
	}
}
