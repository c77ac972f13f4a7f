package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// If deleting all confirmed messages takes longer than the timeout of one transaction,
// they must be deleted in smaller batches.
func TestWhatCannotBeRecordedAtOnce(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	slow(t, db, "once_outbox")
	msgs := make([]*message.Message, 1000)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint(i), "")
	}
	put(t, db, schema.Config{}, "t", msgs...)
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	start(t, db, &pipelined{broker: newBroker()}, cfg)
	drained(t, db)
}

// slow makes deleting from a table slow.
func slow(t *testing.T, db *sql.DB, table string) {
	t.Helper()
	exec(t, db, `CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN OLD; END $$`)
	exec(t, db, `CREATE TRIGGER slowly BEFORE DELETE ON `+table+` FOR EACH ROW EXECUTE FUNCTION slowly()`)
}

func TestWhatCannotBeForgottenAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	db := postgres(t)
	slow(t, db, "once_outbox_sent")
	exec(t, db, `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		SELECT i, i, 't', 'payload', '{}', now(), now() - interval '1 hour' FROM generate_series(1, 1000) AS i`)
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	cfg.KeepSent = time.Minute
	start(t, db, &pipelined{broker: newBroker()}, cfg)
	eventually(t, "it is forgotten", func() bool { return count(t, db, `SELECT COUNT(*) FROM once_outbox_sent`) == 0 })
}

// If reading a batch takes longer than the timeout of one transaction, because the
// network is slow, the forwarder must read smaller batches.
func TestWhatCannotBeReadAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	db := testkit.Postgres(t)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		m := msg(fmt.Sprint(i), "")
		m.Payload = make([]byte, 256<<10)
		put(t, db.DB, schema.Config{}, "t", m)
	}
	dsn, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn.Host = narrow(t, dsn.Host)
	far, err := sql.Open(db.Dialect, dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	start(t, far, &pipelined{broker: newBroker()}, cfg)
	drained(t, db.DB)
}

// narrow starts a proxy for an address and returns the proxy's address. The proxy
// passes on at most 1 MiB per second of the server's data.
func narrow(t *testing.T, to string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() {
				defer far.Close()
				_, _ = io.Copy(far, near)
			}()
			go func() {
				defer near.Close()
				for {
					if _, err := io.CopyN(near, far, 32<<10); err != nil {
						return
					}
					takeTime(time.Second / 32)
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// If the broker refuses all messages in flight, and recording the attempts takes longer
// than the timeout of one transaction, they must be recorded in smaller batches.
func TestWhatCannotBeChargedAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	db := postgres(t)
	exec(t, db, `CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN NEW; END $$`)
	exec(t, db, `CREATE TRIGGER slowly BEFORE UPDATE ON once_outbox FOR EACH ROW EXECUTE FUNCTION slowly()`)
	msgs := make([]*message.Message, 1000)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint(i), "")
	}
	put(t, db, schema.Config{}, "t", msgs...)
	b := newBroker().answering(func(d delivery) error {
		if d.attempt == 1 {
			return refusal{errors.New("not yet")}
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	start(t, db, &pipelined{broker: b}, cfg)
	drained(t, db)
}
