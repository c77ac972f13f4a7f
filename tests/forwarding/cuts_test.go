package forwarding

import (
	"bytes"
	"net"
	"net/url"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// through starts a proxy to the server in address. It returns the address with the host of the
// proxy, and the proxy.
func through(t *testing.T, address string, newProxy func(server string) *proxy) (string, *proxy) {
	t.Helper()
	parsed, err := url.Parse(address)
	must(t, err)
	if parsed.Port() == "" {
		parsed.Host += map[string]string{"amqp": ":5672", "postgres": ":5432"}[parsed.Scheme]
	}
	p := newProxy(parsed.Host)
	parsed.Host = p.address
	return parsed.String(), p
}

// The connection to the broker is lost before a publish arrives, before its confirm arrives, or
// immediately after its confirm. Only messages with an unknown outcome are sent again, and no
// attempt is counted.
func TestCutConnectionOfTheBroker(t *testing.T) {
	t.Parallel()
	const isPublish, isAck = 40, 80
	for _, c := range []struct {
		name   string
		cut    func() func(m relayed) action
		copies bool // the test requires duplicates
	}{
		{"BeforeThePublishArrives", func() func(relayed) action {
			publishes := 0
			return func(m relayed) action {
				if class, method := amqpMethod(m.bytes); m.toServer && class == 60 && method == isPublish {
					if publishes++; publishes == 30 {
						return cutBefore
					}
				}
				return pass
			}
		}, false},
		{"BeforeTheConfirmArrives", func() func(relayed) action {
			return func(m relayed) action {
				if class, method := amqpMethod(m.bytes); !m.toServer && class == 60 && method == isAck {
					return cutBefore // the message was stored, and its confirm is lost
				}
				return pass
			}
		}, true},
		{"AfterTheConfirm", func() func(relayed) action {
			return func(m relayed) action {
				if class, method := amqpMethod(m.bytes); !m.toServer && class == 60 && method == isAck {
					return cutAfter
				}
				return pass
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "BeforeTheConfirmArrives" {
				testkit.Long(t)
			}
			f := newFlow(t, testkit.Postgres(t).DB, testkit.Rabbit(t).URL)
			address, p := through(t, f.url, func(server string) *proxy { return newProxy(t, server, amqpFrame) })
			f.forward(f.db, toQueues(address), quick(f.log))
			f.put(10)
			f.drained()
			for cuts := 1; cuts <= 5; cuts++ {
				p.cut(c.cut())
				f.put(100)
				f.eventually("the connection is cut", func() bool { return p.made() == cuts })
				f.drained()
			}
			copies := f.complete()
			if c.copies && copies < 5 {
				t.Errorf("only %d duplicates: the confirms were not lost", copies)
			}
			t.Logf("%d copies", copies)
		})
	}
}

// The connection to the database is lost at the DELETE of a confirmed message: before
// the statement arrives, before its reply arrives, or around the COMMIT. The message is
// deleted later, and is not sent again.
func TestConfirmedMessageThatCannotBeDeletedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	deletes := []byte("DELETE FROM \"once_outbox\"")
	for _, c := range []struct {
		name  string
		watch func() func(m relayed) action
	}{
		{"BeforeTheDelete", func() func(relayed) action {
			return func(m relayed) action {
				if m.toServer && bytes.Contains(m.bytes, deletes) {
					return cutBefore
				}
				return pass
			}
		}},
		{"BeforeItsAnswer", func() func(relayed) action {
			return afterThat(deletes, func(m relayed) bool { return completes(m, "DELETE ") })
		}},
		{"BeforeTheCommit", func() func(relayed) action {
			return afterThat(deletes, func(m relayed) bool {
				return m.toServer && bytes.HasPrefix(bytes.ToUpper(m.bytes[5:]), []byte("COMMIT"))
			})
		}},
		{"BeforeTheCommitsAnswer", func() func(relayed) action {
			return afterThat(deletes, func(m relayed) bool { return completes(m, "COMMIT") })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "BeforeTheCommitsAnswer" {
				testkit.Long(t)
			}
			database := testkit.Postgres(t)
			f := newFlow(t, database.DB, testkit.Rabbit(t).URL)
			address, p := through(t, database.DSN, func(server string) *proxy { return newProxy(t, server, postgresMessage) })
			f.forward(openDB(t, address), toQueues(f.url), quick(f.log))
			f.put(10)
			f.drained()
			for cuts := 1; cuts <= 5; cuts++ {
				p.cut(c.watch())
				f.put(100)
				f.eventually("the connection is cut", func() bool { return p.made() == cuts })
				f.drained()
				f.eventually("the recovery is logged", func() bool { return f.log.Count("could be recorded") == cuts })
			}
			if copies := f.complete(); copies != 0 {
				t.Errorf("%d duplicates of confirmed messages", copies)
			}
			if n := f.log.Count("could not be recorded"); n != p.made() {
				t.Errorf("it was logged %d times that outcomes could not be recorded, want %d", n, p.made())
			}
		})
	}
}

// afterThat returns a function for proxy.cut. This function waits until a statement that contains
// text was sent on a connection. It then cuts this connection before the first message for which
// the function certain returns true.
func afterThat(text []byte, certain func(m relayed) bool) func(m relayed) action {
	var sent net.Conn
	return func(m relayed) action {
		if m.toServer && bytes.Contains(m.bytes, text) {
			sent = m.conn
		}
		if m.conn == sent && certain(m) {
			return cutBefore
		}
		return pass
	}
}

// completes reports whether m is the server's message that a command has completed. tag
// is the beginning of the command tag.
func completes(m relayed, tag string) bool {
	return !m.toServer && m.bytes[0] == 'C' && bytes.HasPrefix(m.bytes[5:], []byte(tag))
}
