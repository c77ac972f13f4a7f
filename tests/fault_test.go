package tests

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"

	"github.com/watermill-once/once/internal/servers"
	"github.com/watermill-once/once/internal/testkit"
)

// flood returns the number of events that flow during a fault. With -short it is just
// large enough that a fault in the middle comes before the end.
func flood() int { return testkit.Sized(800, 2000) }

// publishFlood commits many events while consumers and forwarder run.
func (c *chain) publishFlood() {
	c.Helper()
	for n := 0; n < flood(); n += 100 {
		batch := make([]*message.Message, 100)
		for i := range batch {
			batch[i] = message.NewMessage(fmt.Sprintf("order-%d", n+i), []byte("body"))
		}
		c.publish(batch...)
	}
}

// midway waits until some effects exist. It fails the test if all effects exist already.
func (c *chain) midway() {
	c.Helper()
	c.eventually("some effects exist", func() bool { return c.count(`effects`) > 50 })
	if n := c.count(`effects`); n >= 2*flood() {
		c.Fatalf("%d effects already: the fault comes too late to prove anything", n)
	}
}

// The broker is killed while the forwarder and consumers use it, and starts again. Each
// event takes effect once at each consumer.
func TestBrokerIsKilledWhileMessagesFlow(t *testing.T) {
	broker := testkit.PrivateRabbit(t)
	c := newChain(t, testkit.Postgres(t).DB, broker.URL("/"))
	// If RabbitMQ 3.10 is killed in the first seconds of a quorum queue, the
	// queue sometimes never gets a leader again.
	c.queues = "classic"
	c.window = 4 // slow enough to kill the broker before all messages are sent
	c.handle("payments", placed, record("payments"))
	c.handle("inventory", placed, record("inventory"))
	c.startRouter()
	if err := broker.WriteDefinitions(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.publishFlood()
	c.startForwarder()
	c.midway()
	broker.Kill()
	if c.count(`once_outbox`) == 0 {
		t.Fatal("all messages were forwarded before the broker was killed, so the test proves nothing")
	}
	if err := broker.Restart(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	c.settle(2 * flood())
	c.nothingWasCharged()
}

// The database is killed while the forwarder and consumers use it, and starts again.
// Each event takes effect once at each consumer.
func TestDatabaseIsKilledWhileMessagesFlow(t *testing.T) {
	server := testkit.PrivatePostgres(t)
	c := newChain(t, open(t, server), testkit.Rabbit(t).URL)
	c.handle("payments", placed, record("payments"))
	c.handle("inventory", placed, record("inventory"))
	c.publishFlood()
	c.start()
	for range testkit.Sized(1, 3) {
		c.midway()
		server.Kill()
		if err := server.Restart(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	c.settle(2 * flood())
	c.nothingWasCharged()
}

// nothingWasCharged checks that the outage has put no message into the quarantine or the dead
// letters.
func (c *chain) nothingWasCharged() {
	c.Helper()
	for _, what := range []string{`once_outbox_dead`, `once_parked WHERE state = 'quarantined'`} {
		if n := c.count(what); n != 0 {
			c.Errorf("%d rows in %s", n, what)
		}
	}
}

func open(t *testing.T, server *servers.Postgres) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}
