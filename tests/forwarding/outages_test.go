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

// ctl runs rabbitmqctl several times. Each line contains the arguments of one call.
func ctl(t *testing.T, broker *servers.Rabbit, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if _, err := broker.Ctl(t.Context(), strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
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
	broker := testkit.PrivateRabbit(t)
	ctl(t, broker, "add_user shop "+password, "set_permissions shop .* .* .*")
	for _, outage := range []struct {
		name       string
		begin, end func(t *testing.T)
	}{
		{
			"MemoryAlarm",
			func(t *testing.T) { ctl(t, broker, "set_vm_memory_high_watermark absolute 1") },
			func(t *testing.T) { ctl(t, broker, "set_vm_memory_high_watermark 0.8") },
		},
		{
			"DiskAlarm",
			func(t *testing.T) { ctl(t, broker, "set_disk_free_limit 100000GB") },
			func(t *testing.T) { ctl(t, broker, "set_disk_free_limit 1MB") },
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
			func(t *testing.T) { ctl(t, broker, "change_password shop another", "close_all_connections changed") },
			func(t *testing.T) { ctl(t, broker, "change_password shop "+password) },
		},
		{
			"UserDeleted",
			func(t *testing.T) { ctl(t, broker, "delete_user shop", "close_all_connections deleted") },
			func(t *testing.T) { ctl(t, broker, "add_user shop "+password, "set_permissions shop .* .* .*") },
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
				f.eventually("it is noticed", func() bool { return f.log.Count(failed) > 0 })
				<-time.After(time.Second) // so that it fails several times
			})
			if n := f.log.Count(failed); n != 1 {
				t.Errorf("the outage was logged %d times:\n%s", n, strings.Join(f.log.Lines(), "\n"))
			}
			waiting := f.count(`once_outbox`)
			if waiting == 0 {
				t.Error("everything was forwarded: there was no outage")
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
					t.Errorf("the log tells the password: %s", line)
				}
			}
		})
	}
}
