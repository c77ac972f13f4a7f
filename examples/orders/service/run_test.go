package service_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// Stopping waits for what is in hand, and what it produced is not lost: the
// next start goes on with it.
func TestStoppingFinishesWhatIsInHand(t *testing.T) {
	database := postgres(t, testkit.Postgres(t).DSN)
	inHand, release := make(chan struct{}, 1), make(chan struct{})
	r := start(t, database, func(c *service.Config) {
		c.Hooks.Handler = func(consumer string, handle once.HandlerFunc) once.HandlerFunc {
			if consumer != "payments" {
				return handle
			}
			return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				inHand <- struct{}{}
				<-release
				return handle(ctx, tx, msg)
			}
		}
	})
	id := r.placed()
	<-inHand
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	testkit.Eventually(t, time.Minute, "no more clients are served", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("it stopped with a message in hand: %v", err)
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
	testkit.Eventually(t, time.Minute, "the next start ships it", func() bool { return again.details(id).Shipment == "shipped" })
	if n := again.count("payments"); n != 1 {
		t.Errorf("%d payments", n)
	}
}

// A handler that does not return is not waited for without end.
func TestStoppingEnds(t *testing.T) {
	database := postgres(t, testkit.Postgres(t).DSN)
	inHand, release := make(chan struct{}, 8), make(chan struct{})
	r := start(t, database, func(c *service.Config) {
		c.StopTimeout = 100 * time.Millisecond
		c.Hooks.Handler = func(string, once.HandlerFunc) once.HandlerFunc {
			return func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
				inHand <- struct{}{}
				<-release
				return nil, errors.New("too late")
			}
		}
	})
	r.placed()
	<-inHand
	err := r.stop()
	close(release)
	if err == nil || !strings.Contains(err.Error(), "stop consumers") {
		t.Errorf("error %v", err)
	}
	r.stop = func() error { return nil }
}

// A service whose tables are missing does not run, and says what to do.
func TestMissingTables(t *testing.T) {
	each(t, func(t *testing.T, database service.Database) {
		transport, err := service.NewLocal(database)
		if err != nil {
			t.Fatal(err)
		}
		s, err := service.New(database, transport, &mailer{}, service.Config{Logger: slog.New(slog.DiscardHandler)})
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

// Ready follows the database; alive does not.
func TestHealth(t *testing.T) {
	server := testkit.PrivatePostgres(t)
	r := start(t, postgres(t, server.DSN("postgres")))
	ready := func(status int, says string) func() bool {
		return func() bool {
			got := r.do(http.MethodGet, "/health/ready", "")
			return got.status == status && strings.Contains(got.body, says)
		}
	}
	testkit.Eventually(t, time.Minute, "ready", ready(http.StatusOK, `"forwarder":"ok"`))
	server.Kill()
	testkit.Eventually(t, time.Minute, "not ready", ready(http.StatusServiceUnavailable, `"database":"cannot be reached"`))
	if got := r.do(http.MethodGet, "/health/live", ""); got.status != http.StatusOK {
		t.Errorf("live: %+v", got)
	}
	if got := r.order("key", anOrder); got.status != http.StatusServiceUnavailable {
		t.Errorf("%+v", got)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "ready again", ready(http.StatusOK, `"database":"ok"`))
	if got := r.order("key", anOrder); got.status != http.StatusCreated {
		t.Errorf("%+v", got)
	}
}
