package universal

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// The suite passes with outbox, forwarder and the embedded transport, in one SQLite database.
func TestEmbeddedTransport(t *testing.T) {
	db := testkit.SQLite(t)
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	transport, err := embedded.New(db.DB, embedded.Config{Schema: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newService(t, db.DB, db.DB, transport, config)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		retrying := retry.Config{
			Schema: config, PollInterval: 200 * time.Millisecond, CloseTimeout: time.Second, Lease: 3 * time.Second, Policy: soon,
			ShareConsumer: true, // the subscribers of a group are instances of one service
		}
		if ordered {
			retrying.KeyOrder = retry.BlockWhileRetried
		}
		retries, err := retry.New(db.DB, retrying)
		if err != nil {
			t.Fatal(err)
		}
		return publisher{s, ordered}, &named{retries: retries, group: group, sub: transport.Subscriber()}
	})
}
