package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
)

var listens = regexp.MustCompile(`listen=(127\.0\.0\.1:\d+)`)

// forwarding is a running command "once forward".
type forwarding struct {
	*shell

	url    string
	stop   context.CancelFunc
	ended  chan int
	stderr *kit.Buffer
}

func startForward(s *shell, args ...string) *forwarding {
	s.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	f := &forwarding{shell: s, stop: stop, ended: make(chan int, 1), stderr: &kit.Buffer{}}
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: f.stderr, env: func(name string) string { return s.env[name] }}
	go func() { f.ended <- a.run(ctx, append([]string{"forward", "--listen", "127.0.0.1:0"}, args...)) }()
	kit.Eventually(s, time.Minute, "the endpoints listen", func() bool {
		if found := listens.FindStringSubmatch(f.stderr.String()); found != nil {
			f.url = "http://" + found[1]
		}
		return f.url != ""
	})
	return f
}

func (f *forwarding) get(path string) (status int, body string) {
	f.Helper()
	request, err := http.NewRequestWithContext(f.Context(), http.MethodGet, f.url+path, nil)
	kit.OK(f, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	kit.OK(f, err)
	return response.StatusCode, string(text)
}

// The command forward sends the messages of the outbox, and serves health and metrics.
// A signal stops it with exit code 0.
func TestForward(t *testing.T) {
	t.Parallel()
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	s := newShell(t, db)
	s.env["ONCE_AMQP_URL"] = broker.URL
	prefix := broker.Name("cmd") + "."
	conn, err := amqp091.Dial(broker.URL)
	kit.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	kit.OK(t, err)
	kit.OK(t, kit.Err(channel.QueueDeclare(prefix+"orders", true, false, false, false, nil)))
	commit(s, db, "orders", "m1", "m2", "m3")

	f := startForward(s, "--topology", "queue", "--amqp-prefix", prefix, "--keep-sent", "1h")
	kit.Eventually(t, time.Minute, "the forwarder is ready", func() bool {
		status, _ := f.get("/health/ready")
		return status == http.StatusOK
	})
	kit.Eventually(t, time.Minute, "the messages are sent", func() bool { return waiting(s) == 0 })
	if queue, err := channel.QueueDeclarePassive(prefix+"orders", true, false, false, false, nil); err != nil || queue.Messages != 3 {
		t.Errorf("%v, the queue has %d messages", err, queue.Messages)
	}
	if status, body := f.get("/health/ready"); status != http.StatusOK ||
		body != `{"checks":{"broker":"ok","database":"ok","forwarder":"ok","lag":"ok",`+
			`"service":"ok","slots":"ok","tables":"ok"},"status":"ok"}`+"\n" {
		t.Errorf("ready: %d %s", status, body)
	}
	if status, body := f.get("/health/live"); status != http.StatusOK || !strings.Contains(body, `"ok"`) {
		t.Errorf("live: %d %s", status, body)
	}
	status, body := f.get("/metrics")
	for _, name := range []string{ // the names that deploy/prometheus/rules.yaml expects
		"once_forwarder_lag_seconds{", "once_forwarder_slots{", "once_forwarder_dead_letters{", "once_forwarder_dead_total{",
		`once_rabbit_published_total{once_outcome="returned"`, "once_forwarder_forward_duration_seconds_bucket{",
	} {
		if status != http.StatusOK || !strings.Contains(body, "\n"+name) &&
			!strings.Contains(body, "\n"+strings.TrimSuffix(name, "{")+" ") {
			t.Errorf("metrics: %d, no %s in\n%s", status, name, body)
		}
	}
	if instances := object[statusJSON](s, exitDone, "status").Forwarders; len(instances) != 1 || instances[0].Slots != 64 {
		t.Errorf("forwarders %+v", instances)
	}
	if sent := object[sentListJSON](s, exitDone, "sent", "list"); len(sent.Messages) != 3 {
		t.Errorf("the sent log has %d messages", len(sent.Messages))
	}
	f.stop()
	if code := <-f.ended; code != exitDone {
		t.Errorf("exit code %d\n%s", code, f.stderr.String())
	}
	s.says(f.stderr.String(), "Forwarder process has stopped")
}

// A broker that refuses the login ends the process, and no password is in the log.
func TestForwardRefusedLogin(t *testing.T) {
	t.Parallel()
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	s := newShell(t, db)
	uri, err := amqp091.ParseURI(broker.URL)
	kit.OK(t, err)
	uri.Password = "pa55word"
	s.env["ONCE_AMQP_URL"] = uri.String()
	got := s.run(t.Context(), "forward", "--listen", "127.0.0.1:0")
	if got.code != exitFailed || strings.Contains(got.stderr, "pa55word") || !strings.Contains(got.stderr, "refuse") {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
}
