package durable_test

import (
	"bytes"
	"database/sql"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

func TestTrap73MessagesStayUnackedWhileTableIsMissing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(durable.Config{BatchSize: 2}, fine)
		b.Exec(`ALTER TABLE once_parked RENAME TO elsewhere`)
		msgs := messages("m1", "m2", "m3", "m4")
		b.send(msgs...)
		b.Exec(`CREATE TABLE witness (id INTEGER)`) // takes longer than the first attempt to store the message
		b.unacked(msgs...)
		b.Exec(`ALTER TABLE elsewhere RENAME TO once_parked`)
		b.acked(msgs...)
		b.handles("m1", "m2", "m3", "m4")
	})
}

// While a full batch cannot be stored, no more messages are received from the
// transport.
func TestOutageStopsReceiving(t *testing.T) {
	b := newBench(t, kit.SQLite(t))
	b.run(durable.Config{BatchSize: 1}, fine)
	b.Exec(`ALTER TABLE once_parked RENAME TO elsewhere`)
	msgs := messages("m1", "m2", "m3", "m4")
	b.send(msgs[:3]...) // the first is refused and passed; the second is refused, so all must wait; the third is collected
	select {
	case b.transport.Messages <- msgs[3]:
		t.Error("a fourth message is received")
	case <-time.After(100 * time.Millisecond):
	}
	b.Exec(`ALTER TABLE elsewhere RENAME TO once_parked`)
	b.send(msgs[3])
	b.acked(msgs...)
}

// Trap 46. Messages are nacked after UnackedWait, because the broker closes the channel
// at its consumer timeout, which is longer. This also holds for messages that arrive
// during the outage.
func TestTrap46MessagesAreNackedAfterUnackedWait(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(durable.Config{BatchSize: 1, UnackedWait: 200 * time.Millisecond}, fine)
		b.Exec(`ALTER TABLE once_parked RENAME TO elsewhere`)
		msgs := messages("m1", "m2")
		b.send(msgs...)
		for _, msg := range msgs {
			select {
			case <-msg.Nacked():
			case <-msg.Acked():
				t.Fatal("acked without being stored")
			}
		}
		b.Exec(`ALTER TABLE elsewhere RENAME TO once_parked`)
	})
}

// Close does not wait for a database that cannot be reached. It nacks the messages.
func TestCloseNacksMessagesThatCannotBeStored(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(durable.Config{}, fine)
		b.Exec(`ALTER TABLE once_parked RENAME TO elsewhere`)
		msgs := messages("m1")
		b.send(msgs...)
		kit.Check(t, b.router.Close())
		select {
		case <-msgs[0].Nacked():
		default:
			t.Error("not nacked")
		}
		b.Exec(`ALTER TABLE elsewhere RENAME TO once_parked`)
	})
}

func TestRefusedMessageDoesNotStopNeighbours(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		if db.Dialect == "sqlite" {
			b.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON once_parked WHEN NEW.message_id = 'refused'
				BEGIN SELECT RAISE(ABORT, 'refused'); END`)
		} else {
			b.Exec(`ALTER TABLE once_parked ADD CONSTRAINT refuse CHECK (message_id <> 'refused')`)
		}
		b.run(durable.Config{BatchWait: 100 * time.Millisecond}, fine)
		msgs := messages("m1", "refused", "m2", "m3")
		b.send(msgs[:3]...)
		b.acked(msgs[0], msgs[2])
		b.send(msgs[3])
		b.acked(msgs[3]) // messages that arrive later are stored, too
		b.unacked(msgs[1])
		if db.Dialect == "sqlite" {
			b.Exec(`DROP TRIGGER refuse`)
		} else {
			b.Exec(`ALTER TABLE once_parked DROP CONSTRAINT refuse`)
		}
		b.acked(msgs...)
		b.handles("m1", "m2", "m3", "refused")
	})
}

func TestSeveralRefusedMessagesDelayNeighboursShortly(t *testing.T) {
	kit.Long(t)
	b := newBench(t, kit.Postgres(t))
	b.Exec(`ALTER TABLE once_parked ADD CONSTRAINT refuse CHECK (message_id NOT LIKE 'refused%')`)
	b.run(durable.Config{BatchSize: 1}, fine)
	msgs := messages("refused1", "refused2", "m1")
	began := time.Now()
	b.send(msgs...)
	b.acked(msgs[2])
	if took := time.Since(began); took > time.Minute {
		t.Errorf("later messages waited for %v", took)
	}
	b.unacked(msgs[:2]...)
	b.Exec(`ALTER TABLE once_parked DROP CONSTRAINT refuse`)
	b.acked(msgs...)
	b.handles("m1", "refused1", "refused2")
}

// If storing a batch takes longer than one attempt may take, the batch is split into
// smaller batches. The whole batch would never be stored.
func TestBatchIsSplitAfterTimeout(t *testing.T) {
	kit.Long(t)
	b := newBench(t, kit.Postgres(t))
	b.Exec(`CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$`)
	b.Exec(`CREATE TRIGGER slowly BEFORE INSERT ON once_parked FOR EACH ROW EXECUTE FUNCTION slowly()`)
	b.oneTry = time.Second
	b.run(durable.Config{BatchSize: 10, BatchWait: time.Minute, KeepHandled: time.Hour}, fine)
	ids := []string{"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"}
	msgs := messages(ids...)
	b.send(msgs...)
	b.acked(msgs...)
	b.handles(ids...)
	for i, e := range b.entries(parkedrows.Resolved) {
		if e.MessageID != ids[i] {
			t.Errorf("row %d is %s", i, e.MessageID)
		}
	}
}

func TestBatchIsSplitIfLocksRunOut(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	b.Exec(`CREATE FUNCTION exhaust() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT COUNT(*) FROM added) > 3 THEN RAISE 'out of shared memory' USING ERRCODE = 'out_of_memory'; END IF;
		RETURN NULL; END $$`)
	b.Exec(`CREATE TRIGGER exhaust AFTER INSERT ON once_parked REFERENCING NEW TABLE AS added
		FOR EACH STATEMENT EXECUTE FUNCTION exhaust()`)
	b.run(durable.Config{BatchSize: 10, BatchWait: time.Minute}, fine)
	ids := []string{"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"}
	msgs := messages(ids...)
	b.send(msgs...)
	b.acked(msgs...)
	b.handles(ids...)
}

// If the connection breaks while one part of a batch is being stored, no later part is
// stored before it.
func TestPartDoesNotOvertakePartWithoutAnswer(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	b.Exec(`CREATE SEQUENCE calls`)
	b.Exec(`CREATE FUNCTION obstruct() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		CASE nextval('calls')
		WHEN 1 THEN PERFORM pg_sleep(60); -- the batch: from then on it is two parts
		WHEN 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); -- the first one
		ELSE NULL;
		END CASE;
		RETURN NEW;
	END $$`)
	b.Exec(`CREATE TRIGGER obstruct BEFORE INSERT ON once_parked FOR EACH ROW EXECUTE FUNCTION obstruct()`)
	b.oneTry = time.Second
	b.run(durable.Config{BatchSize: 4, BatchWait: time.Minute, KeepHandled: time.Hour}, fine)
	ids := []string{"m0", "m1", "m2", "m3"}
	msgs := messages(ids...)
	b.send(msgs...)
	b.acked(msgs...)
	b.handles(ids...)
	var calls int
	if err := b.QueryRowContext(b.Context(), `SELECT last_value FROM calls`).Scan(&calls); err != nil || calls != 6 {
		t.Errorf("%d inserts were tried, %v", calls, err)
	}
	for i, e := range b.entries(parkedrows.Resolved) {
		if e.MessageID != ids[i] {
			t.Errorf("row %d is %s", i, e.MessageID)
		}
	}
}

// cutter opens connections that break when messages are committed.
type cutter struct {
	after bool // the connection breaks after the server's commit, before the client reads the result
	cuts  atomic.Int32
	acked func() // fails the test if a message was acked
}

func (c *cutter) dial(conn net.Conn) net.Conn { return &cutConn{Conn: conn, cutter: c} }

type cutConn struct {
	net.Conn

	cutter *cutter
	stored bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.stored = c.stored || bytes.Contains(b, []byte("AS received"))
	if !c.stored || !bytes.Contains(b, []byte("COMMIT")) || c.cutter.cuts.Add(-1) < 0 {
		return c.Conn.Write(b)
	}
	c.cutter.acked()
	if c.cutter.after {
		if _, err := c.Conn.Write(b); err != nil {
			return 0, err
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return 0, err
		}
	}
	_ = c.Close()
	return 0, errors.New("cut")
}

// Trap 04. No message is acked before its commit is confirmed. If the outcome of the
// commit is unknown, the batch is stored again, and each message still has only one
// row.
func TestTrap04UnknownCommitIsNotAcked(t *testing.T) {
	for name, after := range map[string]bool{"not committed": false, "committed": true} {
		t.Run(name, func(t *testing.T) {
			db := kit.Postgres(t)
			watching := newBench(t, db)
			msgs := messages("m1", "m2", "m3")
			connector, err := pq.NewConnector(db.DSN)
			kit.OK(t, err)
			var b *bench
			cut := &cutter{after: after, acked: func() { b.unacked(msgs...) }}
			cut.cuts.Store(2)
			connector.Dialer(kit.Dialer(cut.dial))
			db.DB = sql.OpenDB(connector)
			defer db.Close()
			b = &bench{Bench: &kit.Bench{T: t, Database: db, Config: watching.Config}, parked: watching.parked, transport: watching.transport}
			b.run(durable.Config{BatchSize: 3, BatchWait: time.Minute, KeepHandled: time.Hour}, fine)
			b.send(msgs...)
			b.acked(msgs...)
			if left := cut.cuts.Load(); left >= 0 && !after || left > 0 {
				t.Errorf("%d cuts are left", left)
			}
			b.handles("m1", "m2", "m3")
			if rows := b.entries(parkedrows.Resolved); len(rows) != 3 {
				t.Errorf("%d rows", len(rows))
			}
			kit.Check(t, b.router.Close())
		})
	}
}
