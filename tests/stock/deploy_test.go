package stock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stockforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// stockBatch is the maximum number of messages that Watermill's own forwarder sends
// before it acks them.
const stockBatch = 10

const placed = "orders.placed"

// ids counts message ids.
type ids struct {
	mu  sync.Mutex
	all map[string]int
}

func (i *ids) add(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.all == nil {
		i.all = map[string]int{}
	}
	i.all[id]++
}

func (i *ids) copy() map[string]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.all)
}

// deploy is a service that changes from Watermill's forwarder to ours.
type deploy struct {
	*testing.T

	stock      generation
	db         *sql.DB
	url        string
	committed  ids
	rolledBack ids
	byStock    ids // delivered by Watermill's own forwarder
}

func newDeploy(t *testing.T, stock generation) *deploy {
	t.Helper()
	d := &deploy{T: t, stock: stock, db: kit.Postgres(t).DB, url: kit.Rabbit(t).URL}
	d.must(schema.Up(t.Context(), d.db, schema.Config{}))
	d.channel(func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclare(placed, true, false, false, false, nil)
		if err == nil {
			_, err = channel.QueuePurge(placed, false)
		}
		return err
	})
	d.must(d.subscriber().SubscribeInitialize("forwarder_topic"))
	return d
}

func (d *deploy) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *deploy) eventually(what string, cond func() bool) {
	d.Helper()
	kit.Eventually(d.T, time.Minute, what, cond)
}

func (d *deploy) channel(work func(*amqp.Channel) error) {
	d.Helper()
	conn, err := amqp.Dial(d.url)
	d.must(err)
	defer conn.Close()
	channel, err := conn.Channel()
	d.must(err)
	d.must(work(channel))
}

// run runs the function work in the background until stop is called.
func (d *deploy) run(what string, work func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.Context()))
	ended := kit.Go(func() error { return work(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			d.Errorf("%s: %v", what, err)
		}
	})
	d.Cleanup(stop)
	return stop
}

// writer publishes in transactions. It rolls back every fifth transaction.
func (d *deploy) writer(name string, publisher func(tx *sql.Tx) (message.Publisher, error)) (stop func()) {
	tick := time.NewTicker(time.Millisecond)
	d.Cleanup(tick.Stop)
	return d.run(name, func(ctx context.Context) error {
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			written := []string{fmt.Sprintf("%s-%d-a", name, n), fmt.Sprintf("%s-%d-b", name, n)}
			if err := d.write(n%5 == 4, publisher, written); err != nil {
				return err
			}
		}
	})
}

func (d *deploy) write(rollBack bool, publisher func(tx *sql.Tx) (message.Publisher, error), written []string) error {
	tx, err := d.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	events, err := publisher(tx)
	if err != nil {
		return err
	}
	for _, id := range written {
		if err := events.Publish(placed, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}
	ledger := &d.committed
	end := tx.Commit
	if rollBack {
		ledger, end = &d.rolledBack, tx.Rollback
	}
	if err := end(); err != nil {
		return err
	}
	for _, id := range written {
		ledger.add(id)
	}
	return nil
}

func (d *deploy) stockWriter(name string) (stop func()) {
	return d.writer(name, func(tx *sql.Tx) (message.Publisher, error) {
		stored, err := d.stock.writer(tx)
		return stockforwarder.NewPublisher(stored, stockforwarder.PublisherConfig{}), err
	})
}

func (d *deploy) newWriter(name string) (stop func()) {
	return d.writer(name, d.stock.newWriter)
}

func (d *deploy) subscriber() stockSubscriber { //nolint:ireturn // the generations have different types
	d.Helper()
	sub, err := d.stock.subscriber(d.db)
	d.must(err)
	return sub
}

// noting is a publisher that records the messages that it has published.
type noting struct {
	message.Publisher

	published *ids
}

func (n noting) Publish(topic string, messages ...*message.Message) error {
	if err := n.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	for _, msg := range messages {
		n.published.add(msg.UUID)
	}
	return nil
}

func (d *deploy) stockForwarder() (stop func()) {
	d.Helper()
	publisher, err := d.stock.publisher(d.url)
	d.must(err)
	fwd, err := stockforwarder.NewForwarder(d.subscriber(), noting{publisher, &d.byStock}, watermill.NopLogger{}, stockforwarder.Config{})
	d.must(err)
	ended := kit.Go(func() error { return fwd.Run(context.WithoutCancel(d.Context())) })
	stop = sync.OnceFunc(func() {
		if err := errors.Join(fwd.Close(), <-ended, publisher.Close()); err != nil {
			d.Errorf("stock forwarder: %v", err)
		}
	})
	d.Cleanup(stop)
	return stop
}

func (d *deploy) mover() (m *mover.Mover, stop func()) {
	d.Helper()
	m, err := mover.New(d.db, mover.Config{Logger: kit.Logger(d.T), BatchSize: 20, PollInterval: 20 * time.Millisecond})
	d.must(err)
	return m, d.run("mover", m.Run)
}

func (d *deploy) forwarder() {
	d.Helper()
	publisher, err := d.stock.newPublisher(d.url, rabbit.PublisherConfig{Logger: kit.Logger(d.T)})
	d.must(err)
	d.Cleanup(func() { _ = publisher.Close() })
	fwd, err := forwarder.New(d.db, publisher, forwarder.Config{Logger: kit.Logger(d.T)})
	d.must(err)
	d.run("forwarder", fwd.Run)
}

// drain empties the queue and returns how often each message was in it.
func (d *deploy) drain() map[string]int {
	d.Helper()
	var found ids
	d.channel(func(channel *amqp.Channel) error {
		for {
			delivery, ok, err := channel.Get(placed, true)
			if err != nil || !ok {
				return err
			}
			msg, err := rabbit.Marshaler{}.Unmarshal(delivery)
			if err != nil {
				return err
			}
			if string(msg.Payload) != msg.UUID {
				d.Errorf("the payload of %q is %q", msg.UUID, msg.Payload)
			}
			found.add(msg.UUID)
		}
	})
	return found.copy()
}

// Trap 29. A service changes from Watermill's own forwarder to ours. Old and new parts run at the
// same time, and the old parts are stopped one by one. No committed message is lost, and only the
// messages that Watermill's forwarder had in flight may arrive twice. Watermill's parts and ours
// have the same versions of watermill-amqp and watermill-sql.
func TestMigrationFromTheStockForwarder(t *testing.T) {
	for name, stock := range generations {
		t.Run(name, func(t *testing.T) { migrate(t, newDeploy(t, stock)) })
	}
}

func migrate(t *testing.T, d *deploy) {
	t.Helper()
	progress := func(what string, reached func() int) {
		t.Helper()
		before := reached()
		d.eventually(what, func() bool { return reached() > before+50 })
	}
	sentByStock := func() int { return len(d.byStock.copy()) }
	written := func() int { return len(d.committed.copy()) }

	stopOld1, stopOld2 := d.stockWriter("old1"), d.stockWriter("old2")
	stopStock := d.stockForwarder()
	progress("stock sends", sentByStock)

	d.forwarder()
	m, stopMover := d.mover()
	_, stopMover2 := d.mover()
	progress("stock and movers work side by side", sentByStock)
	stopNew := d.newWriter("new")
	progress("old and new writers write", written)
	stopOld1()
	stopStock()
	delivered := d.byStock.copy()
	progress("the movers have the last old writer to themselves", written)
	stopOld2()

	d.eventually("nothing is left to move", func() bool {
		messages, writers, err := m.Left(t.Context())
		d.must(err)
		return messages == 0 && writers == 0
	})
	stopMover()
	stopMover2()
	progress("the new parts are alone", written)
	stopNew()
	d.eventually("the outbox is empty", func() bool {
		var n int
		d.must(d.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_outbox`).Scan(&n))
		return n == 0
	})

	found := d.drain()
	doubled, moved := 0, 0
	for id := range d.committed.copy() {
		switch n := found[id]; {
		case n == 0:
			t.Errorf("%s was committed, and is lost", id)
		case n > 1 && delivered[id] == 0:
			t.Errorf("%s arrived %d times, and the stock forwarder is not the cause", id, n)
		case n > 1:
			doubled += n - 1
		}
		if delivered[id] == 0 {
			moved++
		}
		delete(found, id)
	}
	for id := range found {
		t.Errorf("%s was never committed: %v", id, d.rolledBack.copy()[id] > 0)
	}
	if doubled > stockBatch {
		t.Errorf("%d messages were sent twice, but the stock forwarder had at most %d in flight", doubled, stockBatch)
	}
	t.Logf("%d committed, %d sent by stock, %d by ours, %d doubled", written(), len(delivered), moved, doubled)
	var dead int
	d.must(d.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_outbox_dead`).Scan(&dead))
	if dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
}
