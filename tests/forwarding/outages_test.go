package forwarding

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/servers"
	"github.com/watermill-once/once/internal/testkit"
)

const password = "s3cret"

// eval evaluates Erlang expressions in the broker.
func eval(t *testing.T, broker *servers.Rabbit, expressions ...string) {
	t.Helper()
	for _, expression := range expressions {
		if _, err := broker.Eval(t.Context(), expression); err != nil {
			t.Fatal(err)
		}
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
	if err := server.Restart(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// The broker fails and recovers while messages are being forwarded. No message is lost,
// no attempt is counted, and the order of keys is kept. The outage is logged once, not
// at every attempt.
func TestOutageOfTheBrokerCostsOnlyTime(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateRabbitInTurn(t)
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
				if err := broker.WriteDefinitions(t.Context()); err != nil {
					t.Fatal(err)
				}
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
			if outage.name != "MemoryAlarm" {
				testkit.Long(t)
			}
			f := newFlow(t, testkit.Postgres(t).DB, broker.URL("/"))
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
