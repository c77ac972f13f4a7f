package forwarding

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
)

// amqpIs reports whether a frame is the given method.
func amqpIs(frame []byte, class, method uint16) bool {
	c, m := amqpMethod(frame)
	return c == class && m == method
}

// Trap 05. The row of a message stays until its confirm has arrived. The test reads the
// table while the only confirm, or the message itself, is delayed. Then it drops the
// delayed message.
func TestNothingIsDeletedBeforeItsConfirm(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]func(m relayed) bool{
		"Publish": func(m relayed) bool { return m.toServer && amqpIs(m.bytes, 60, 40) },
		"Confirm": func(m relayed) bool { return !m.toServer && amqpIs(m.bytes, 60, 80) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlow(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
			address, p := through(t, f.url, func(server string) *proxy { return newProxy(t, server, amqpFrame) })
			f.forward(f.db, toQueues(address), quick(f.log))
			f.put(3)
			f.drained()
			held, release := make(chan struct{}), make(chan struct{})
			p.cut(func(m relayed) action {
				if !is(m) {
					return pass
				}
				close(held)
				<-release
				return cutBefore
			})
			f.put(1)
			<-held
			for range 10 {
				if n := f.count(`once_outbox`); n != 1 {
					t.Errorf("%d rows before the confirm", n)
				}
				<-time.After(20 * time.Millisecond)
			}
			close(release)
			copies := f.complete()
			if name == "Confirm" && copies != 1 {
				t.Errorf("%d copies", copies)
			}
		})
	}
}

// Trap 17. The connection is lost, and is lost again each time the channel is opened.
// The forwarder continues afterwards.
func TestForwarderSurvivesFailuresToOpenAChannel(t *testing.T) {
	t.Parallel()
	const times = 4
	f := newFlow(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	address, p := through(t, f.url, func(server string) *proxy { return newProxy(t, server, amqpFrame) })
	f.forward(f.db, toQueues(address), quick(f.log))
	f.put(10)
	f.drained()
	var reopen func(m relayed) action
	reopened := 0
	reopen = func(m relayed) action {
		if !m.toServer || !amqpIs(m.bytes, 20, 10) {
			return pass
		}
		if reopened++; reopened < times {
			p.watch = reopen
		}
		return cutBefore
	}
	p.cut(func(m relayed) action {
		if !m.toServer || !amqpIs(m.bytes, 60, 40) {
			return pass
		}
		p.watch = reopen
		return cutBefore
	})
	f.during(func() {
		f.eventually("opening a channel has failed often enough", func() bool { return p.made() == 1+times })
	})
	f.complete()
}

// overheard contains all statements that an outbox, a forwarder and a consumer have
// sent, and their arguments.
type overheard struct {
	statements []string
	arguments  []string
}

func listen(t *testing.T) (*flow, overheard) {
	t.Helper()
	database := kit.Postgres(t)
	f := newFlow(t, database.DB, kit.Rabbit(t).URL)
	address, p := through(t, database.DSN, func(server string) *proxy { return newProxy(t, server, postgresMessage) })
	var o overheard
	p.cut(func(m relayed) action {
		switch {
		case !m.toServer:
		case m.bytes[0] == 'P' || m.bytes[0] == 'Q':
			o.statements = append(o.statements, string(m.bytes[5:]))
		case m.bytes[0] == 'B':
			o.arguments = append(o.arguments, string(m.bytes[5:]))
		}
		return pass
	})
	f.db = openDB(t, address)
	forward := f.forward(f.db, toQueues(f.url), quick(f.log))
	topic, _ := f.consume(f.db)
	f.publish(topic, message.NewMessage("fine", nil), message.NewMessage("hopeless", nil))
	f.publish("no such queue", keyed("refused", "key"))
	f.exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('dead', repeat('x', 300), 0, '', '{}')`)
	f.eventually("all messages have reached their final state", func() bool {
		return f.count(`effects`) == 1 && f.count(`once_parked WHERE state = 'quarantined'`) == 1 &&
			f.count(`charged`) > 2 && f.count(`once_outbox_dead`) == 1
	})
	must(t, forward.Close())
	p.cut(nil)
	// The names of the queue and of the virtual host contain the time when the test started.
	withoutNames := strings.NewReplacer(topic, "", path.Base(f.url), "")
	for i, sent := range o.statements {
		o.statements[i] = withoutNames.Replace(sent)
	}
	for i, sent := range o.arguments {
		o.arguments[i] = withoutNames.Replace(sent)
	}
	if len(o.statements) < 20 || len(o.arguments) < 20 {
		t.Fatalf("%d statements were overheard", len(o.statements))
	}
	return f, o
}

// Trap 25. The forwarder does not use NOTIFY, because NOTIFY serializes commits, and
// notifications can be lost.
func TestForwarderUsesNoNotifications(t *testing.T) {
	t.Parallel()
	f, o := listen(t)
	notification := regexp.MustCompile(`(?i)\b(notify|pg_notify|listen)\b`)
	for _, statement := range o.statements {
		if notification.MatchString(statement) {
			t.Error(statement)
		}
	}
	if n := f.count(`pg_trigger WHERE NOT tgisinternal AND tgname <> 'note_charge'`); n != 0 {
		t.Errorf("%d triggers", n)
	}
}

// Trap 28. No statement contains a time of the host, because the clocks of hosts
// differ. A statement contains its values in its text, or has arguments.
func TestNoTimeOfTheHostIsSent(t *testing.T) {
	t.Parallel()
	_, o := listen(t)
	now := time.Now()
	// Dates, and numbers of seconds or milliseconds since 1970. The first six digits of
	// the numbers change every eleven days.
	times := []string{now.UTC().Format("2006-01-"), strconv.FormatInt(now.Unix(), 10)[:6]}
	for _, sent := range slices.Concat(o.statements, o.arguments) {
		for _, some := range times {
			if strings.Contains(sent, some) {
				t.Errorf("%q in a statement or among its arguments: %q", some, sent)
			}
		}
	}
}

// Trap 28. If the clock of the database is an hour wrong, back-off and leases still
// take their normal time.
func TestClockOfTheDatabaseMayDiffer(t *testing.T) {
	kit.Long(t)
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(found) == 0 {
		kit.Without(t, errors.New("libfaketime is not installed"))
	}
	for _, skew := range []string{"-1h", "+1h"} {
		t.Run(skew, func(t *testing.T) {
			t.Setenv("LD_PRELOAD", found[0])
			t.Setenv("FAKETIME", skew)
			t.Setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
			server := kit.PrivatePostgres(t)
			must(t, os.Unsetenv("LD_PRELOAD"))
			f := newFlow(t, openDB(t, server.DSN("postgres")), kit.Rabbit(t).URL)
			var off float64
			must(t, f.db.QueryRowContext(t.Context(), `SELECT abs(extract(epoch FROM now()) - $1)`, time.Now().Unix()).Scan(&off))
			if off < 3000 {
				t.Fatalf("the database's clock is only %v s off", off)
			}
			cfg := quick(f.log)
			cfg.Lease = time.Second
			cfg.CloseTimeout = 100 * time.Millisecond
			doomed := openDB(t, server.DSN("postgres"))
			f.forward(doomed, toQueues(f.url), cfg)
			f.publish("no such queue", message.NewMessage("refused", nil))
			f.eventually("the message is tried again", func() bool { return f.count(`charged`) >= 3 })
			if n := f.count(`once_outbox WHERE due_at > now() + interval '10 seconds'`); n != 0 {
				t.Error("the message backs off for more than 10 seconds")
			}
			must(t, doomed.Close())
			var until string // the lease is not renewed any more
			must(t, f.db.QueryRowContext(t.Context(), `SELECT MAX(lease_until) FROM once_slots`).Scan(&until))
			f.forward(openDB(t, server.DSN("postgres")), toQueues(f.url), cfg)
			f.put(10)
			f.eventually("another instance takes over", func() bool { return f.count(`once_outbox`) == 1 })
			if n := f.count(`once_slots WHERE now() < '` + until + `'`); n != 0 {
				t.Error("another instance took over before the lease ended")
			}
		})
	}
}

// Trap 29. The tables change while a forwarder is running, as in the migration of the
// next version. Messages contain metadata that only that version knows. The forwarder
// continues to work.
func TestForwarderWorksWithNewerTables(t *testing.T) {
	t.Parallel()
	f := newFlow(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	cfg := unhurried(f.log)
	cfg.MaxAttempts = 2
	f.forward(f.db, toQueues(f.url), cfg)
	f.put(12)
	f.drained()
	for _, table := range []string{
		"once_outbox", "once_outbox_dead", "once_outbox_sent", "once_blocked_keys", "once_slots", "once_forwarders",
	} {
		f.exec(`ALTER TABLE ` + table + ` ADD COLUMN newer text DEFAULT 'something' NOT NULL`)
	}
	f.exec(`INSERT INTO once_migrations (version, compatible_from) VALUES (1000, 1000)`)

	newer := f.next() // it has no ordering key
	newer.Metadata["once_newer"] = "something that has no meaning yet"
	f.exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
		VALUES ('` + newer.UUID + `', '` + f.queue + `', 0, '', '{"once_newer": "something that has no meaning yet"}')`)
	f.publish("no such queue", keyed("dead", "key"))
	f.put(10)
	f.eventually("the hopeless message is a dead letter", func() bool { return f.count(`once_outbox_dead WHERE newer = 'something'`) == 1 })
	f.drained()
	f.nothingCharged("dead")
	channel := f.admin()
	var ids []string
	for {
		delivery, ok, err := channel.Get(f.queue, true)
		must(t, err)
		if !ok {
			break
		}
		ids = append(ids, delivery.MessageId)
		if delivery.MessageId == newer.UUID && delivery.Headers["once_newer"] != newer.Metadata["once_newer"] {
			t.Errorf("headers %v", delivery.Headers)
		}
	}
	f.inOrder(ids)
	f.silent()
}
