package forwarding

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// A shop writes orders, each with an event for payments in the same database and one for mailing in
// another one. Events of the key "stuck" fail until patience ends, and their successors wait. Events
// whose id begins with "hopeless" go to quarantine.
type shop struct {
	*testing.T

	topics  []string // of payments and mailing
	mailing *sql.DB
	log     *kit.Logs
	n       atomic.Int64
}

const shopTables = `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY);
	CREATE TABLE IF NOT EXISTS effects (message_id text, at timestamptz DEFAULT clock_timestamp())`

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{T: t, mailing: kit.Postgres(t).DB, log: &kit.Logs{}}
	s.tables(s.mailing)
	for _, topic := range []string{"payments", "mailing"} {
		s.topics = append(s.topics, kit.Broker{}.Name(topic))
	}
	return s
}

func (s *shop) tables(db *sql.DB) {
	s.Helper()
	kit.OK(s, schema.Up(s.Context(), db, schema.Config{}))
	kit.Exec(s, db, shopTables)
}

// order writes an order with its events.
func (s *shop) order(db *sql.DB) error {
	n := s.n.Add(1)
	id, key := fmt.Sprintf("%06d", n), fmt.Sprint("key", n%keys)
	switch {
	case n%40 == 0:
		id, key = "hopeless"+id, ""
	case n%10 == 0:
		key = "stuck"
	}
	return outbox.InTx(context.WithoutCancel(s.Context()), db, func(tx *sql.Tx, events message.Publisher) error {
		if _, err := tx.Exec(`INSERT INTO orders VALUES ($1)`, id); err != nil {
			return err
		}
		for i, topic := range s.topics {
			msg := message.NewMessage(fmt.Sprint(id, "abc"[i:i+1]), []byte("{}"))
			if key != "" {
				outbox.SetOrderingKey(msg, key)
			}
			if err := events.Publish(topic, msg); err != nil {
				return err
			}
		}
		return nil
	})
}

// write writes orders until the returned function is called.
func (s *shop) write(db *sql.DB) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	ended := kit.Go(func() error {
		for ctx.Err() == nil {
			if err := s.order(db); err != nil {
				return err
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return nil
	})
	return func() { cancel(); kit.OK(s, <-ended) }
}

// consume runs both consumers until the returned function is called.
func (s *shop) consume(db *sql.DB, url string, patient bool) (stop func()) {
	s.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(s, err)
	for i, topic := range s.topics {
		consumer, err := once.NewConsumer([]*sql.DB{db, s.mailing}[i], once.ConsumerConfig{
			Logger: s.log,
			Retry: retry.Config{
				Policy:       retry.Policy{Immediate: -1, Delayed: 10_000, Base: 100 * time.Millisecond, Factor: 1},
				PollInterval: 50 * time.Millisecond,
				KeyOrder:     retry.BlockWhileRetried,
			},
		})
		kit.OK(s, err)
		subscriber, err := wamqp.NewSubscriber(toQueues(url), watermill.NopLogger{})
		kit.OK(s, err)
		kit.OK(s, subscriber.SubscribeInitialize(topic))
		consumer.AddHandler(router, []string{"payments", "mailing"}[i], topic, subscriber,
			func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				switch {
				case strings.HasPrefix(msg.UUID, "hopeless"):
					return nil, retry.Permanent(errors.New("no"))
				case patient && msg.Metadata.Get(outbox.OrderingKey) == "stuck":
					return nil, errors.New("not yet")
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, msg.UUID)
				return nil, err
			})
	}
	ended := kit.Go(func() error { return router.Run(context.WithoutCancel(s.Context())) })
	select {
	case <-router.Running():
	case err := <-ended:
		s.Fatalf("the router: %v", err)
	}
	return func() { kit.OK(s, router.Close()); kit.OK(s, <-ended) }
}

func (s *shop) forward(db *sql.DB, url string) (stop func()) {
	s.Helper()
	publisher, err := rabbit.NewPublisher(toQueues(url), impatient(s.log))
	kit.OK(s, err)
	cfg := quick(s.log)
	cfg.KeepSent = time.Hour
	forward, err := forwarder.New(db, publisher, cfg)
	kit.OK(s, err)
	ended := kit.Go(func() error { return forward.Run(context.WithoutCancel(s.Context())) })
	return func() { kit.OK(s, forward.Close()); kit.OK(s, <-ended); kit.OK(s, publisher.Close()) }
}

func (s *shop) eventually(what string, cond func() bool) {
	s.Helper()
	failed := s.Failed()
	defer func() {
		if s.Failed() && !failed {
			s.Logf("the log:\n%s", strings.Join(s.log.Lines(), "\n"))
		}
	}()
	kit.Eventually(s, 3*time.Minute, what, cond)
}

func (s *shop) reaches(db *sql.DB, n int, what string) {
	s.Helper()
	s.eventually(fmt.Sprintf("at least %d %s", n, what), func() bool { return kit.One[int](s, db, `SELECT count(*) FROM `+what) >= n })
}

// waiting returns the messages that wait in the queues. They stay there.
func (s *shop) waiting(url string) (all []amqp.Delivery) {
	s.Helper()
	conn, err := amqp.Dial(url)
	kit.OK(s, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(s, err)
	for _, topic := range s.topics {
		for {
			delivery, ok, err := channel.Get(topic, false)
			kit.OK(s, err)
			if !ok {
				break
			}
			all = append(all, delivery)
		}
	}
	return all
}

func (s *shop) empty(channel *amqp.Channel) bool {
	s.Helper()
	for _, topic := range s.topics {
		queue, err := channel.QueueDeclarePassive(topic, true, false, false, false, nil)
		kit.OK(s, err)
		if queue.Messages > 0 {
			return false
		}
	}
	return true
}

// broker returns a new virtual host whose queues contain the deliveries.
func (s *shop) broker(t *testing.T, deliveries []amqp.Delivery) (url string) {
	t.Helper()
	url = kit.Rabbit(t).URL
	conn, err := amqp.Dial(url)
	kit.OK(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(t, err)
	kit.OK(t, channel.Confirm(false))
	for _, topic := range s.topics {
		kit.OK(t, kit.Err(channel.QueueDeclare(topic, true, false, false, false, nil)))
	}
	for _, d := range deliveries {
		confirm, err := channel.PublishWithDeferredConfirm("", d.RoutingKey, true, false, amqp.Publishing{
			Headers: d.Headers, ContentType: d.ContentType, DeliveryMode: d.DeliveryMode, MessageId: d.MessageId, Body: d.Body,
		})
		kit.OK(t, err)
		confirm.Wait()
	}
	return url
}

// without returns the orders that have neither an effect of the consumer nor an entry in its quarantine.
func (s *shop) without(orders, db *sql.DB, suffix string) (missing []string) {
	s.Helper()
	done := kit.Lines(s, db, `SELECT message_id FROM effects UNION ALL SELECT message_id FROM once_parked WHERE state = 'quarantined'`)
	slices.Sort(done)
	for _, id := range kit.Lines(s, orders, `SELECT id FROM orders ORDER BY id`) {
		if _, found := slices.BinarySearch(done, id+suffix); !found {
			missing = append(missing, id+suffix)
		}
	}
	return missing
}

// inTurn fails the test if an effect is doubled, or if the events of a key took effect in another order
// than their orders.
func (s *shop) inTurn(db *sql.DB) {
	s.Helper()
	if doubled := kit.Lines(s, db, `SELECT message_id FROM effects GROUP BY message_id HAVING count(*) > 1`); len(doubled) > 0 {
		s.Errorf("took effect more than once: %q", doubled)
	}
	last := map[string]string{}
	for _, id := range kit.Lines(s, db, `SELECT message_id FROM effects ORDER BY at`) {
		n, err := strconv.Atoi(id[:6])
		kit.OK(s, err)
		key := fmt.Sprint("key", n%keys)
		if n%10 == 0 {
			key = "stuck"
		}
		if id < last[key] {
			s.Errorf("%s took effect after %s of the same key", id, last[key])
		}
		last[key] = id
	}
}

// goesOn runs the shop with a database that was moved, and with the messages that wait in the broker.
// All orders must take effect once and in the order of their keys.
func (s *shop) goesOn(t *testing.T, db *sql.DB, queued []amqp.Delivery) {
	t.Helper()
	kit.OK(t, schema.Check(t.Context(), db, schema.Config{}))
	if n := kit.One[int](t, db, `SELECT count(*) FROM once_outbox`); n < 20 {
		t.Errorf("the outbox has %d rows", n)
	}
	if n := kit.One[int](t, db, `SELECT count(*) FROM once_parked WHERE state IN ('waiting', 'held')`); n < 3 {
		t.Errorf("%d messages are parked", n)
	}
	highest := kit.One[int64](t, db, `SELECT GREATEST((SELECT max(position) FROM once_outbox), (SELECT max(position) FROM once_outbox_sent))`)
	url := s.broker(t, queued)
	kit.OK(t, s.order(db))
	if next := kit.One[int64](t, db, `SELECT max(position) FROM once_outbox`); next <= highest {
		t.Errorf("the next position is %d, and %d was given out before", next, highest)
	}
	stopConsumers, stopForwarder := s.consume(db, url, false), s.forward(db, url)
	for range 30 {
		kit.OK(t, s.order(db))
	}
	s.eventually("all orders have their effects", func() bool {
		return kit.One[int](t, db, `SELECT count(*) FROM once_outbox`) == 0 && len(s.without(db, db, "a")) == 0
	})
	stopConsumers()
	stopForwarder()
	s.inTurn(db)
}

// A database moves while the outbox has rows, messages are parked, and messages wait in the broker.
// docs/failover.md says what to do afterwards.
func TestMovedDatabase(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	s := newShop(t)
	blue := kit.PrivatePostgres(t, "wal_level=logical", "wal_keep_size=1GB")
	green := kit.PrivatePostgres(t,
		"wal_retrieve_retry_interval=100ms", "max_sync_workers_per_subscription=4", "max_logical_replication_workers=8")
	restored := kit.PrivatePostgres(t)
	db, replica := openDB(t, blue.DSN("postgres")), openDB(t, green.DSN("postgres"))
	s.tables(db)
	url := s.broker(t, nil)

	stopWriter, stopForwarder, stopConsumers := s.write(db), s.forward(db, url), s.consume(db, url, true)
	s.reaches(db, 100, "effects")
	s.reaches(db, 3, "once_parked WHERE state IN ('waiting', 'held')")
	s.reaches(db, 1, "once_parked WHERE state = 'quarantined'")

	// Logical replication and a base backup copy the tables while they change.
	kit.OK(t, green.Run(t.Context(), "pg_dump", "--schema-only", "-f", "tables.sql", "-d", blue.DSN("postgres")))
	kit.OK(t, green.Run(t.Context(), "psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", "tables.sql", "-d", green.DSN("postgres")))
	kit.Exec(t, db, `CREATE PUBLICATION moved FOR ALL TABLES`)
	kit.Exec(t, replica, fmt.Sprintf(`CREATE SUBSCRIPTION moved CONNECTION '%s' PUBLICATION moved`, blue.DSN("postgres")))
	past := kit.Backup(t, blue)

	// At the moment of the restore point, messages wait in the queues and in the outbox.
	pause := func() {
		stopConsumers()
		s.reaches(db, kit.One[int](t, db, `SELECT count(*) FROM once_outbox_sent`)+30, "once_outbox_sent")
		stopForwarder()
		s.reaches(db, 30, "once_outbox")
	}
	pause()
	kit.Exec(t, db, `SELECT pg_create_restore_point('past')`)
	kit.Exec(t, db, `SELECT pg_switch_wal()`)
	stopForwarder, stopConsumers = s.forward(db, url), s.consume(db, url, true)
	s.reaches(db, kit.One[int](t, db, `SELECT count(*) FROM effects`)+100, "effects")
	pause()
	kit.OK(t, restored.Run(t.Context(), "pg_dump", "-Fc", "--no-publications", "-f", "all.dump", "-d", blue.DSN("postgres")))
	stopWriter()
	queued := s.waiting(url)
	end := kit.One[string](t, db, `SELECT pg_current_wal_lsn()::text`)
	s.eventually("the replica has everything", func() bool {
		return kit.One[int](t, replica, `SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`) == 0 &&
			kit.One[bool](t, db, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = 'moved'`, end)
	})
	kit.Exec(t, replica, `DROP SUBSCRIPTION moved`)

	t.Run("pg_dump", func(t *testing.T) {
		kit.OK(t, restored.Run(t.Context(), "pg_restore", "-e", "-d", restored.DSN("postgres"), "all.dump"))
		s.goesOn(t, openDB(t, restored.DSN("postgres")), queued)
	})
	t.Run("logical replication", func(t *testing.T) { s.repairSequences(t, replica); s.goesOn(t, replica, queued) })
	t.Run("point in time", func(t *testing.T) {
		kit.OK(t, past.Recover(t.Context(), blue, "past"))
		s.returnsToThePast(t, openDB(t, past.DSN("postgres")), db, queued)
	})
	t.Run("pg_upgrade", func(t *testing.T) {
		s.goesOn(t, openDB(t, kit.Upgraded(t, blue, "18", "17").DSN("postgres")), queued)
	})
	if doubled := kit.Lines(t, s.mailing, `SELECT message_id FROM effects GROUP BY message_id HAVING count(*) > 1`); len(doubled) > 0 {
		t.Errorf("mailing, whose database was never moved, has handled copies: %q", doubled)
	}
}

// Trap 118. repairSequences checks that nothing runs until the sequences are repaired, with the SQL of
// the error. Some events were stored before, at positions below those of older events.
func (s *shop) repairSequences(t *testing.T, db *sql.DB) {
	t.Helper()
	for range 10 {
		kit.OK(t, s.order(db))
	}
	err := schema.Check(t.Context(), db, schema.Config{})
	if !errors.Is(err, schema.ErrSequence) {
		t.Fatalf("schema.Check: %v", err)
	}
	for _, sequence := range []string{"once_outbox_position", "once_outbox_sent_id_seq", "once_parked_id_seq"} {
		if !strings.Contains(err.Error(), sequence+" is at ") {
			t.Errorf("schema.Check does not name %s: %v", sequence, err)
		}
	}
	forward, errNew := forwarder.New(db, nowhere{}, forwarder.Config{Logger: s.log})
	kit.OK(t, errNew)
	if err := forward.Run(t.Context()); !errors.Is(err, schema.ErrSequence) {
		t.Errorf("the forwarder runs: %v", err)
	}
	router, errNew := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	kit.OK(t, errNew)
	consumer, errNew := once.NewConsumer(db, once.ConsumerConfig{Logger: s.log})
	kit.OK(t, errNew)
	consumer.AddHandler(router, "payments", "topic", kit.NewSubscriber(),
		func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil })
	if err := router.Run(t.Context()); !errors.Is(err, schema.ErrSequence) {
		t.Errorf("the consumer runs: %v", err)
	}
	_, repair, _ := strings.Cut(err.Error(), ": run ")
	kit.Exec(t, db, repair)
}

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return errors.New("nowhere") }
func (nowhere) Close() error                              { return nil }

// returnsToThePast runs the shop with a database that was restored to an earlier moment, while the
// broker has messages from later ones. No event takes effect twice. Events that waited in the queues at
// that moment, and were handled since, are missing. Reconciliation finds them, and also the events whose
// orders no longer exist. A replay of the sent log brings the missing ones.
func (s *shop) returnsToThePast(t *testing.T, db, before *sql.DB, queued []amqp.Delivery) {
	t.Helper()
	kit.OK(t, schema.Check(t.Context(), db, schema.Config{}))
	url := s.broker(t, queued)
	conn, err := amqp.Dial(url)
	kit.OK(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(t, err)
	flow := func() {
		stopConsumers, stopForwarder := s.consume(db, url, false), s.forward(db, url)
		s.eventually("everything was handled", func() bool {
			return kit.One[int](t, db, `SELECT count(*) FROM once_outbox`) == 0 && s.empty(channel) &&
				kit.One[int](t, db, `SELECT count(*) FROM once_parked WHERE state IN ('waiting', 'held')`) == 0
		})
		stopConsumers()
		stopForwarder()
	}
	again := kit.Lines(t, db, `SELECT message_id FROM once_outbox WHERE topic = $1`, s.topics[0])
	flow()

	missing := s.without(db, db, "a")
	if len(missing) < 5 {
		t.Errorf("%d events are missing, want those that waited in the queue", len(missing))
	}
	since := kit.Lines(t, before, `SELECT message_id FROM effects UNION ALL SELECT message_id FROM once_parked`)
	for _, id := range missing {
		if slices.Contains(again, id) || !slices.Contains(since, id) {
			t.Errorf("%s is missing", id)
		}
	}
	phantoms := kit.Lines(t, db, `SELECT message_id FROM (SELECT message_id FROM effects
		UNION SELECT message_id FROM once_parked WHERE state = 'quarantined') AS e
		WHERE message_id NOT IN (SELECT id || 'a' FROM orders) ORDER BY message_id`)
	if len(phantoms) < 5 {
		t.Errorf("%d events of lost orders took effect, want those that waited in the queue", len(phantoms))
	}
	gotMissing, gotPhantoms := s.reconcile(t, db)
	if !slices.Equal(gotMissing, missing) {
		t.Errorf("reconciliation finds that %q are missing, want %q", gotMissing, missing)
	}
	if !slices.Equal(gotPhantoms, phantoms) {
		t.Errorf("reconciliation finds that %q were never sent, want %q", gotPhantoms, phantoms)
	}

	sent, err := dead.NewSentLog(db, operate.Config{})
	kit.OK(t, err)
	kit.OK(t, kit.Err(sent.ReplayMatching(t.Context(), operate.Act{Actor: "test", Why: "restore"}, operate.Filter{All: true}, operate.Plan{})))
	flow()
	if missing := s.without(db, db, "a"); len(missing) > 0 {
		t.Errorf("still missing after the replay: %q", missing)
	}
	if doubled := kit.Lines(t, db, `SELECT message_id FROM effects GROUP BY message_id HAVING count(*) > 1`); len(doubled) > 0 {
		t.Errorf("took effect more than once: %q", doubled)
	}
}

// reconcile makes all rows hours older, and returns the sent events that payments has not handled, and
// the handled ones that were never sent.
func (s *shop) reconcile(t *testing.T, db *sql.DB) (missing, phantoms []string) {
	t.Helper()
	for _, update := range []string{
		`once_outbox_sent SET sent_at = sent_at - interval '2 hours'`,
		`once_inbox SET processed_at = processed_at - interval '2 hours'`,
		`once_parked SET created_at = created_at - interval '2 hours'`,
		`once_consumers SET registered_at = registered_at - interval '2 days'`,
	} {
		kit.Exec(t, db, `UPDATE `+update)
	}
	// Reconciliation leaves out the first minute of the log and of the inbox.
	kit.Exec(t, db, `UPDATE once_outbox_sent SET sent_at = sent_at - interval '1 hour' WHERE id = (SELECT min(id) FROM once_outbox_sent)`)
	kit.Exec(t, db, `UPDATE once_inbox SET processed_at = processed_at - interval '1 hour' WHERE message_id = '000001a'`)
	sender, err := reconcile.NewSender(db, reconcile.SenderConfig{Topics: s.topics[:1], LongestDelay: time.Millisecond})
	kit.OK(t, err)
	receiver, err := reconcile.NewReceiver(db, reconcile.ReceiverConfig{Consumers: []string{"payments"}})
	kit.OK(t, err)
	reports, err := reconcile.Compare(t.Context(), sender, receiver)
	kit.OK(t, err)
	for _, m := range reports[0].Missing {
		missing = append(missing, m.MessageID)
	}
	for _, p := range reports[0].Phantoms {
		phantoms = append(phantoms, p.MessageID)
	}
	slices.Sort(missing)
	slices.Sort(phantoms)
	return missing, phantoms
}
