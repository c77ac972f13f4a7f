package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/reconcile"
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

// Direct, durable and embedded consumers are compared in the same way. What they
// have handled or parked is not missing.
func TestReconcileComparesEveryKindOfConsumer(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		tables := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, tables))
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
			_, err := db.ExecContext(t.Context(), query)
			require.NoError(t, err)
		}

		compare := func() []reconcile.Report {
			s, err := reconcile.NewSender(db.DB, reconcile.SenderConfig{Schema: tables, Topics: []string{"orders"}})
			require.NoError(t, err)
			r, err := reconcile.NewReceiver(db.DB, reconcile.ReceiverConfig{Schema: tables, Consumers: consumers})
			require.NoError(t, err)
			reports, err := reconcile.Compare(t.Context(), s, r)
			require.NoError(t, err)
			require.Len(t, reports, len(consumers))
			return reports
		}
		for _, r := range compare() {
			require.False(t, r.Found(), "%+v", r)
			require.Equal(t, 1, r.Quarantined(), "%+v", r)
			require.Equal(t, 20, r.Sent) // the first begins the log
		}
		_, err := db.ExecContext(t.Context(), `DELETE FROM once_inbox WHERE message_id = 'order-3'`)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), `DELETE FROM once_parked WHERE message_id IN ('order-3', 'order-9')`)
		require.NoError(t, err)
		for _, r := range compare() {
			require.Len(t, r.Missing, 2, "%+v", r)
			require.ElementsMatch(t, []string{"order-3", "order-9"}, []string{r.Missing[0].MessageID, r.Missing[1].MessageID})
			require.Empty(t, r.Phantoms)
		}
	})
}

// serveThreeKinds publishes messages through the outbox, and ends when three consumers
// have handled them or put them into quarantine.
func serveThreeKinds(t *testing.T, db *sql.DB, tables schema.Config) {
	t.Helper()
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	inside, err := embedded.New(db, embedded.Config{Schema: tables, Logger: testkit.Logger(t)})
	require.NoError(t, err)
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema: tables, DurableConsumers: []string{"stored"}, Logger: testkit.Logger(t),
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
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
		Schema: tables, KeepSent: 24 * time.Hour, PollMax: 20 * time.Millisecond, Logger: testkit.Logger(t),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- once.Run(ctx, 25*time.Second, router, fwd, inside, channel) }()
	<-router.Running()

	box, err := outbox.New(outbox.Config{Schema: tables})
	require.NoError(t, err)
	publish := func(topic string, ids ...string) {
		require.NoError(t, box.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			for _, id := range ids {
				if err := events.Publish(topic, message.NewMessage(id, nil)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	count := func(query string) (n int) {
		require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
		return n
	}
	publish("orders", "first")
	require.Eventually(t, func() bool { return count(`SELECT COUNT(*) FROM once_outbox_sent`) == 1 }, time.Minute, 20*time.Millisecond)
	for n := range 20 {
		publish("orders", fmt.Sprint("order-", n))
	}
	publish("elsewhere", "of another topic")
	require.Eventually(t, func() bool {
		return count(`SELECT COUNT(*) FROM once_inbox`) == 3*20 && count(`SELECT COUNT(*) FROM once_outbox WHERE topic = 'orders'`) == 0 &&
			count(`SELECT COUNT(*) FROM once_parked WHERE state = 'quarantined'`) == 3
	}, time.Minute, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}
