package forwarding

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
)

const password = "s3cret"

// eval evaluates Erlang expressions in the broker.
func eval(t *testing.T, broker *servers.Rabbit, expressions ...string) {
	t.Helper()
	for _, expression := range expressions {
		kit.OK(t, kit.Err(broker.Eval(t.Context(), expression)))
	}
}

// Erlang expressions that change the user shop, and an expression that closes all connections.
const (
	addUser = `ok = rabbit_auth_backend_internal:add_user(<<"shop">>, <<"` + password + `">>, <<"test">>), ` +
		`ok = rabbit_auth_backend_internal:set_permissions(<<"shop">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>)`
	deleteUser = `ok = rabbit_auth_backend_internal:delete_user(<<"shop">>, <<"test">>)`

	closeConnections = `[rabbit_networking:close_connection(P, "a test") || P <- rabbit_networking:connections()]`
)

func changePassword(to string) string {
	return `ok = rabbit_auth_backend_internal:change_password(<<"shop">>, <<"` + to + `">>, <<"test">>)`
}

type restarter interface {
	Restart(ctx context.Context) error
}

// restart starts a server again. It also works when the test is ending.
func restart(t *testing.T, server restarter) {
	t.Helper()
	kit.OK(t, server.Restart(context.WithoutCancel(t.Context())))
}

// The broker fails and recovers while messages are being forwarded. No message is lost,
// no attempt is counted, and the order of keys is kept. The outage is logged once, not
// at every attempt.
func TestOutageOfTheBrokerCostsOnlyTime(t *testing.T) {
	kit.Long(t) // in make test, TestCutConnectionOfTheBroker and the tests of package rabbit have outages
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	eval(t, broker, addUser)
	defer eval(t, broker, deleteUser)
	for _, outage := range []struct {
		name       string
		begin, end func(t *testing.T)
	}{
		{
			"MemoryAlarm",
			func(t *testing.T) { eval(t, broker, "vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1})") },
			func(t *testing.T) { eval(t, broker, "vm_memory_monitor:set_vm_memory_high_watermark(0.8)") },
		},
		{
			"DiskAlarm",
			func(t *testing.T) { eval(t, broker, `rabbit_disk_monitor:set_disk_free_limit("100000GB")`) },
			func(t *testing.T) { eval(t, broker, `rabbit_disk_monitor:set_disk_free_limit("1MB")`) },
		},
		{
			"Frozen",
			func(*testing.T) { broker.Freeze() },
			func(*testing.T) { broker.Thaw() },
		},
		{
			"Killed",
			func(t *testing.T) {
				kit.OK(t, broker.WriteDefinitions(t.Context()))
				broker.Kill()
			},
			func(t *testing.T) { restart(t, broker) },
		},
		{
			"Stopped",
			func(*testing.T) { broker.Stop() },
			func(t *testing.T) { restart(t, broker) },
		},
		{
			"PasswordChanged",
			func(t *testing.T) { eval(t, broker, changePassword("another"), closeConnections) },
			func(t *testing.T) { eval(t, broker, changePassword(password)) },
		},
		{
			"UserDeleted",
			func(t *testing.T) { eval(t, broker, deleteUser, closeConnections) },
			func(t *testing.T) { eval(t, broker, addUser) },
		},
	} {
		t.Run(outage.name, func(t *testing.T) {
			f := newFlow(t, kit.Postgres(t).DB, broker.URL("/"))
			f.forward(f.db, toQueues(strings.Replace(broker.URL("/"), "guest:guest", "shop:"+password, 1)), quick(f.log))
			f.put(10)
			f.drained()
			const failed, works = "Messages could not be published, trying again", "Messages could be published again"
			f.during(func() {
				outage.begin(t)
				f.eventually("the outage is logged", func() bool { return f.log.Count(failed) > 0 })
				<-time.After(time.Second) // so that the forwarder fails several times
			})
			if n := f.log.Count(failed); n != 1 {
				t.Errorf("the outage was logged %d times:\n%s", n, strings.Join(f.log.Lines(), "\n"))
			}
			waiting := f.count(`once_outbox`)
			if waiting == 0 {
				t.Error("all messages were forwarded, so there was no outage")
			}
			outage.end(t)
			f.put(10)
			copies := f.complete()
			t.Logf("%d messages, %d waited, %d copies", f.sent, waiting, copies)
			if began, ended := f.log.Count(failed), f.log.Count(works); began != ended {
				t.Errorf("%d outages were logged, and %d ends:\n%s", began, ended, strings.Join(f.log.Lines(), "\n"))
			}
			for _, line := range f.log.Lines() {
				if strings.Contains(line, password) {
					t.Errorf("the log contains the password: %s", line)
				}
			}
		})
	}
}

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
				kit.Long(t)
			}
			f := newFlow(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
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
				kit.Long(t)
			}
			database := kit.Postgres(t)
			f := newFlow(t, database.DB, kit.Rabbit(t).URL)
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
