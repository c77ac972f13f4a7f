package servers_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
)

const queue = "kept"

func dial(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	kit.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	kit.OK(t, err)
	kit.OK(t, channel.Confirm(false))
	return channel
}

func publish(t *testing.T, channel *amqp.Channel, body string) *amqp.DeferredConfirmation {
	t.Helper()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
	kit.OK(t, err)
	return confirm
}

func confirmed(t *testing.T, confirm *amqp.DeferredConfirmation, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	acked, err := confirm.WaitContext(ctx)
	return err == nil && acked
}

func TestRabbitSurvivesKillFreezeAndAlarm(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivateRabbit(t, "channel_max = 77")
	processes := server.Processes()

	t.Run("Settings", func(t *testing.T) {
		conn, err := amqp.Dial(server.URL("/"))
		kit.OK(t, err)
		defer func() { _ = conn.Close() }()
		if conn.Config.ChannelMax != 77 {
			t.Errorf("channel_max is %d, want 77", conn.Config.ChannelMax)
		}
	})

	t.Run("EvalWithAndWithoutErlCall", func(t *testing.T) {
		quick := server.RabbitCtl()
		slow := servers.Ctl{quick[0], "--quiet"} // a command with arguments may belong to any broker, so erl_call is not used
		if slow.Quick() {
			t.Error("erl_call is used for an unknown broker")
		}
		ctls := []servers.Ctl{quick, slow}
		if quick.Quick() { // Eval must not need rabbitmqctl
			dir := t.TempDir()
			script := filepath.Join(filepath.Dir(quick[0]), "erl_call_broker")
			kit.OK(t, os.Symlink(script, filepath.Join(dir, filepath.Base(script))))
			ctls = append(ctls, servers.Ctl{filepath.Join(dir, "rabbitmqctl")})
		}
		for _, ctl := range ctls {
			value, err := ctl.Eval(t.Context(), "rabbit_vhost:list_names()")
			if err != nil || value != `[<<"/">>]` {
				t.Errorf("the virtual hosts are %q (%v)", value, err)
			}
			if value, err = ctl.Eval(t.Context(), "error(broken)"); err == nil || !strings.Contains(err.Error(), "broken") {
				t.Errorf("the value is %q, and the error %v does not have the reason", value, err)
			}
		}
	})

	t.Run("KilledBrokerKeepsConfirmedMessages", func(t *testing.T) {
		channel := dial(t, server.URL("/"))
		kit.OK(t, kit.Err(channel.QueueDeclare(queue, true, false, false, false, nil)))
		if !confirmed(t, publish(t, channel, "before"), time.Minute) {
			t.Fatal("not confirmed")
		}
		kit.OK(t, server.WriteDefinitions(t.Context()))
		address := server.Address()
		server.Kill()
		if _, err := amqp.Dial(server.URL("/")); err == nil {
			t.Fatal("a killed broker answers")
		}
		kit.OK(t, server.Restart(t.Context()))
		if server.Address() != address {
			t.Errorf("the server restarted at %s, was at %s", server.Address(), address)
		}
		delivery, ok, err := dial(t, server.URL("/")).Get(queue, true)
		if err != nil || !ok || string(delivery.Body) != "before" {
			t.Errorf("got %q (%v, %v)", delivery.Body, ok, err)
		}
	})

	t.Run("Freezes", func(t *testing.T) {
		channel := dial(t, server.URL("/"))
		server.Freeze()
		confirm := publish(t, channel, "frozen")
		if confirmed(t, confirm, 300*time.Millisecond) {
			t.Error("a frozen broker confirms")
		}
		server.Thaw()
		if !confirmed(t, confirm, time.Minute) {
			t.Error("not confirmed after the thaw")
		}
	})

	t.Run("MemoryAlarm", func(t *testing.T) {
		channel := dial(t, server.URL("/"))
		kit.OK(t, server.RaiseMemoryAlarm(t.Context()))
		confirm := publish(t, channel, "alarmed")
		if confirmed(t, confirm, 300*time.Millisecond) {
			t.Error("confirmed in spite of the alarm")
		}
		kit.OK(t, server.ClearMemoryAlarm(t.Context()))
		if !confirmed(t, confirm, time.Minute) {
			t.Error("not confirmed after the alarm")
		}
	})

	t.Run("StopClosesConnections", func(t *testing.T) {
		channel := dial(t, server.URL("/"))
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		server.Stop()
		if reason := <-closed; reason == nil || reason.Code != amqp.ConnectionForced {
			t.Errorf("closed by %v, want %d", reason, amqp.ConnectionForced)
		}
		kit.OK(t, server.Restart(t.Context()))
	})

	processes = append(processes, server.Processes()...)
	server.Freeze()
	for range 2 {
		kit.OK(t, server.Close())
	}
	mustBeGone(t, servers.Left(processes), server.Dir())
}

func TestSeveralRabbitsRunSideBySide(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	names := []string{"one", "other"}
	brokers := make([]*servers.Rabbit, len(names))
	for i, name := range names {
		brokers[i] = kit.PrivateRabbit(t)
		kit.OK(t, kit.Err(brokers[i].Ctl(t.Context(), "add_vhost", name)))
	}
	for i, name := range names {
		output, err := brokers[i].Ctl(t.Context(), "--quiet", "list_vhosts", "--no-table-headers")
		if found := strings.Fields(output); err != nil || len(found) != 2 || !strings.Contains(output, name) {
			t.Errorf("the virtual hosts of %s are %q (%v)", name, found, err)
		}
	}
	brokers[0].Kill()
	dial(t, brokers[1].URL("/"))
}

func TestRabbitCtlReportsFailure(t *testing.T) {
	t.Parallel()
	ctl := servers.Ctl{"sh", "-c", "echo no such thing; exit 3"}
	if _, err := ctl.Run(t.Context(), "", "nonsense"); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("got %v, want what it wrote", err)
	}
}
