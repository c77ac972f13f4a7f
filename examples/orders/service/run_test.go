package service_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/schema"
)

// When the service stops, it waits for the messages that are being handled. The events
// of these messages are in the outbox, and are sent after the next start.
func TestStopFinishesRunningHandlers(t *testing.T) {
	t.Parallel()
	database := postgres(t, testenv.Postgres(t))
	handling, release := make(chan struct{}, 1), make(chan struct{})
	r := start(t, database, func(c *service.Config) {
		c.Hooks.Handler = func(consumer string, handle once.HandlerFunc) once.HandlerFunc {
			if consumer != "payments" {
				return handle
			}
			return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				handling <- struct{}{}
				<-release
				return handle(ctx, tx, msg)
			}
		}
	})
	id := r.placed()
	<-handling
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	testenv.Eventually(t, 3*time.Minute, "HTTP accepts no more connections", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("it stopped while a handler was running: %v", err)
	default:
	}
	close(release)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if n := r.count("payments"); n != 1 {
		t.Errorf("%d payments", n)
	}

	again := start(t, database)
	testenv.Eventually(t, 3*time.Minute, "the next start ships it", func() bool { return again.details(id).Shipment == "shipped" })
	if n := again.count("payments"); n != 1 {
		t.Errorf("%d payments", n)
	}
}

// When the service stops, it waits no longer than StopTimeout for a handler that does
// not return.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	database := postgres(t, testenv.Postgres(t))
	handling, release := make(chan struct{}, 8), make(chan struct{})
	r := start(t, database, func(c *service.Config) {
		c.StopTimeout = 100 * time.Millisecond
		c.Hooks.Handler = func(string, once.HandlerFunc) once.HandlerFunc {
			return func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
				handling <- struct{}{}
				<-release
				return nil, errors.New("too late")
			}
		}
	})
	r.placed()
	<-handling
	err := r.stop()
	close(release)
	if err == nil || !strings.Contains(err.Error(), "stop consumers") {
		t.Errorf("error %v", err)
	}
	r.stop = func() error { return nil }
}

// A request lasts longer than HTTP may take to stop. The consumers are still closed, and the service ends.
func TestStopDuringARequest(t *testing.T) {
	t.Parallel()
	database := postgres(t, testenv.Postgres(t))
	for range 5 { // select chooses at random, so one try could succeed by chance
		r := start(t, database, func(c *service.Config) { c.StopTimeout = 100 * time.Millisecond })
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: orders\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"+
			"Content-Length: 1000\r\n\r\n")
		if err == nil { // the answer comes when the service reads the body
			_, err = bufio.NewReader(conn).ReadString('\n')
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := r.stop(); err == nil || !strings.Contains(err.Error(), "stop http") {
			t.Errorf("error %v", err)
		}
		r.stop = func() error { return nil }
	}
}

// The service does not run if its tables are missing. The error says what to do.
func TestMissingTables(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		transport, err := service.NewEmbedded(database)
		if err != nil {
			t.Fatal(err)
		}
		s, err := service.New(database, transport, newWorld().companies(), service.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		err = s.Run(t.Context(), listener)
		if !errors.Is(err, schema.ErrMissing) || !strings.Contains(err.Error(), "service: consumers: ") ||
			!strings.Contains(err.Error(), "schema.Up") {
			t.Errorf("error %v", err)
		}
	})
}

// Readiness depends on the database, and liveness does not.
func TestHealth(t *testing.T) {
	t.Parallel()
	proxy, dsn := testenv.NewProxy(t, testenv.Postgres(t))
	r := start(t, postgres(t, dsn))
	ready := func(status int, says string) func() bool {
		return func() bool {
			got := r.do(http.MethodGet, "/health/ready", "")
			return got.status == status && strings.Contains(got.body, says)
		}
	}
	testenv.Eventually(t, 3*time.Minute, "ready", ready(http.StatusOK, `"forwarder":"ok"`))
	proxy.Break()
	testenv.Eventually(t, 3*time.Minute, "not ready", ready(http.StatusServiceUnavailable, `"database":"failed"`))
	if got := r.do(http.MethodGet, "/health/live", ""); got.status != http.StatusOK {
		t.Errorf("live: %+v", got)
	}
	if got := r.order("key", anOrder); got.status != http.StatusServiceUnavailable {
		t.Errorf("%+v", got)
	}
	proxy.Restore(t)
	testenv.Eventually(t, 3*time.Minute, "ready again", ready(http.StatusOK, `"database":"ok"`))
	if got := r.order("key", anOrder); got.status != http.StatusCreated {
		t.Errorf("%+v", got)
	}
}
