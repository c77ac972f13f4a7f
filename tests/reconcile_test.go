package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// fanout publishes to each of several transports.
type fanout []message.Publisher

func (f fanout) Publish(topic string, msgs ...*message.Message) error {
	for _, p := range f {
		for _, m := range msgs {
			if err := p.Publish(topic, m.Copy()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f fanout) Close() error { return nil }

// Direct, durable and embedded consumers are compared in the same way. Messages that
// they have handled or parked are not missing.
func TestReconcileComparesEveryKindOfConsumer(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		tables := kit.Tables(t, db)
		consumers := []string{"direct", "stored", "within"}
		serveThreeKinds(t, db.DB, tables)

		// Two hours pass.
		past := func(column string, by time.Duration) string {
			if tables.Dialect == schema.SQLite {
				return fmt.Sprintf(`%[1]s = %[1]s - %[2]d`, column, by.Milliseconds())
			}
			return fmt.Sprintf(`%[1]s = %[1]s - interval '%[2]d milliseconds'`, column, by.Milliseconds())
		}
		for _, query := range []string{
			`UPDATE once_outbox_sent SET ` + past(`sent_at`, 2*time.Hour),
			`UPDATE once_inbox SET ` + past(`processed_at`, 2*time.Hour),
			`UPDATE once_parked SET ` + past(`created_at`, 2*time.Hour),
			`UPDATE once_consumers SET ` + past(`registered_at`, 48*time.Hour),
			`UPDATE once_outbox_sent SET ` + past(`sent_at`, time.Hour) + ` WHERE message_id = 'first'`,
			`UPDATE once_inbox SET ` + past(`processed_at`, time.Hour) + ` WHERE message_id = 'first'`,
		} {
			kit.Exec(t, db, query)
		}

		compare := func() []reconcile.Report {
			s, err := reconcile.NewSender(db.DB, reconcile.SenderConfig{Schema: tables, Topics: []string{"orders"}})
			kit.OK(t, err)
			r, err := reconcile.NewReceiver(db.DB, reconcile.ReceiverConfig{Schema: tables, Consumers: consumers})
			kit.OK(t, err)
			reports, err := reconcile.Compare(t.Context(), s, r)
			kit.OK(t, err)
			if len(reports) != len(consumers) {
				t.Fatalf("%d reports, want %d: %+v", len(reports), len(consumers), reports)
			}
			return reports
		}
		for _, r := range compare() {
			if r.Found() {
				t.Fatalf("r.Found returned true: %+v", r)
			}
			if len(r.Parked) != 1 || r.Parked[0].State != "quarantined" || r.Parked[0].N != 1 {
				t.Fatalf("r.Parked is %+v, want one message in quarantine", r.Parked)
			}
			if r.Sent != 20 { // the first message is the beginning of the log, and is not compared
				t.Fatalf("r.Sent is %d, want 20", r.Sent)
			}
		}
		kit.Exec(t, db, `DELETE FROM once_inbox WHERE message_id = 'order-3'`)
		kit.Exec(t, db, `DELETE FROM once_parked WHERE message_id IN ('order-3', 'order-9')`)
		for _, r := range compare() {
			if len(r.Missing) != 2 {
				t.Fatalf("len(r.Missing) is %d, want 2: %+v", len(r.Missing), r)
			}
			missing := []string{r.Missing[0].MessageID, r.Missing[1].MessageID}
			slices.Sort(missing)
			if want := []string{"order-3", "order-9"}; !slices.Equal(missing, want) {
				t.Fatalf("missing are %q, want %q", missing, want)
			}
			if len(r.Phantoms) != 0 {
				t.Fatalf("r.Phantoms are %+v, want none", r.Phantoms)
			}
		}
	})
}

// serveThreeKinds publishes messages through the outbox, and ends when three consumers
// have handled them or put them into quarantine.
func serveThreeKinds(t *testing.T, db *sql.DB, tables schema.Config) {
	t.Helper()
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	inside, err := embedded.New(db, embedded.Config{Schema: tables, Logger: kit.Logger(t)})
	kit.OK(t, err)
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema: tables, DurableConsumers: []string{"stored"}, Logger: kit.Logger(t),
	})
	kit.OK(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	kit.OK(t, err)
	handle := func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "order-9" {
			return nil, retry.Permanent(errors.New("no such customer"))
		}
		return nil, nil
	}
	consumer.AddHandler(router, "direct", "orders", channel, handle)
	consumer.AddHandler(router, "stored", "orders", channel, handle)
	consumer.AddHandler(router, "within", "orders", inside.Subscriber(), handle)
	fwd, err := forwarder.New(db, fanout{channel, inside}, forwarder.Config{
		Schema: tables, KeepSent: 24 * time.Hour, PollMax: 20 * time.Millisecond, Logger: kit.Logger(t),
	})
	kit.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := kit.Go(func() error { return once.Run(ctx, 25*time.Second, router, fwd, inside, channel) })
	<-router.Running()

	box, err := outbox.New(outbox.Config{Schema: tables})
	kit.OK(t, err)
	publish := func(topic string, ids ...string) {
		kit.OK(t, box.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			for _, id := range ids {
				if err := events.Publish(topic, message.NewMessage(id, nil)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	count := func(query string) (n int) {
		kit.OK(t, db.QueryRowContext(t.Context(), query).Scan(&n))
		return n
	}
	publish("orders", "first")
	kit.Eventually(t, time.Minute, "the first message is in the sent log", func() bool {
		return count(`SELECT COUNT(*) FROM once_outbox_sent`) == 1
	})
	for n := range 20 {
		publish("orders", fmt.Sprint("order-", n))
	}
	publish("elsewhere", "of another topic")
	kit.Eventually(t, time.Minute, "all messages are handled or in quarantine", func() bool {
		return count(`SELECT COUNT(*) FROM once_inbox`) == 3*20 && count(`SELECT COUNT(*) FROM once_outbox WHERE topic = 'orders'`) == 0 &&
			count(`SELECT COUNT(*) FROM once_parked WHERE state = 'quarantined'`) == 3
	})
	cancel()
	kit.OK(t, <-ended)
}
