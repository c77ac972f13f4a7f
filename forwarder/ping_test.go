package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"testing"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/schema"
)

// pinged is a publisher whose Ping returns the given error.
type pinged struct {
	*pipelined

	says error
}

func (p pinged) Ping(context.Context) error { return p.says }

// away is the error of a broker that temporarily accepts no connections.
type away struct{ error }

func (away) Unavailable() bool { return true }

func TestABrokerThatRefusesIsAnErrorOfRun(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		refused := errors.New(`rabbit: 403 (ACCESS_REFUSED) "username or password not allowed"`)
		f, err := forwarder.New(db, pinged{&pipelined{broker: newBroker()}, refused}, quick(config))
		if err != nil {
			t.Fatal(err)
		}
		err = f.Run(t.Context())
		if !errors.Is(err, refused) {
			t.Fatalf("got %v, want %v", err, refused)
		}
		if want := `forwarder: the broker refuses the publisher: ` + refused.Error(); err == nil || err.Error() != want {
			t.Fatalf("got %v, want %q", err, want)
		}
		select {
		case <-f.Running():
			t.Fatal("it says that it runs")
		default:
		}

		for _, passing := range []error{
			nil, context.DeadlineExceeded, away{errors.New("blocked")}, &net.OpError{Op: "dial", Err: errors.New("connection refused")},
		} {
			b := newBroker()
			start(t, db, pinged{&pipelined{broker: b}, passing}, quick(config))
			put(t, db, config, "t", msg("1", ""))
			eventually(t, "it is sent", func() bool { return pending(t, db) == 0 })
		}
	})
}
