package parked

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
)

var errAway = errors.New("the database is away")

// The pauses between the tries grow, so that an outage costs little, but its end is
// noticed within seconds. The outage is logged once, and the message is handed back when
// UnackedWait is over.
func TestPersistTriesAgainUntilUnackedWaitIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs testkit.Logs
		began := time.Now()
		var tries []int64
		d, p := &Delivery{Consumer: "c", Topic: "t"}, Patience{UnackedWait: 20 * time.Second, Logger: &logs}
		err := p.Persist(t.Context(), d, "park the message", func(context.Context) error {
			tries = append(tries, time.Since(began).Milliseconds())
			return errAway
		})
		if v := disposition.Of(err); v.Kind != disposition.Undecided || !v.NotCalled || !errors.Is(err, errAway) ||
			!strings.HasPrefix(err.Error(), "park the message: ") {
			t.Errorf("the error is %v with disposition %+v", err, *v)
		}
		if want := []int64{0, 50, 150, 350, 750, 1550, 3150, 6350, 11350, 16350, 21350}; !slices.Equal(tries, want) {
			t.Errorf("the tries are after %v ms, want %v", tries, want)
		}
		const line = "ERROR Message stays unacked while a step is tried again"
		if !logs.Has(line, "consumer=c", "topic=t", "step=park the message", errAway.Error()) || len(logs.Lines()) != 1 {
			t.Errorf("logged %q", logs.Lines())
		}
	})
}

func TestPersistEndsWithSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := Patience{UnackedWait: time.Hour, Logger: &testkit.Logs{}}.Persist(t.Context(), &Delivery{}, "", func(context.Context) error {
			if tries++; tries < 3 {
				return errAway
			}
			return nil
		})
		if err != nil || tries != 3 {
			t.Errorf("%d tries, %v", tries, err)
		}
	})
}

// If the claim is lost, another process has the row, and Persist has nothing more to
// do.
func TestPersistEndsIfTheClaimIsLost(t *testing.T) {
	t.Parallel()
	var logs testkit.Logs
	tries := 0
	d, p := &Delivery{Consumer: "c", Topic: "t"}, Patience{UnackedWait: time.Hour, Logger: &logs}
	err := p.Persist(t.Context(), d, "resolve", func(context.Context) error {
		tries++
		return ErrClaimLost
	})
	if err != nil || tries != 1 {
		t.Errorf("%d tries, %v", tries, err)
	}
	if len(logs.Lines()) != 1 || !logs.Has("INFO Lease ended before the message was settled", "consumer=c", "topic=t", "step=resolve") {
		t.Errorf("logged %q", logs.Lines())
	}
}

// A shutdown must not wait for the pause to end.
func TestPersistHandsBackDuringAShutdown(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	close(closing)
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx context.Context
		d   *Delivery
	}{
		"of the consumer":            {t.Context(), &Delivery{Closing: closing}},
		"that ends the subscription": {ended, &Delivery{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, tries := time.Now(), 0
			err := Patience{UnackedWait: time.Hour, Logger: &testkit.Logs{}}.Persist(c.ctx, c.d, "", func(ctx context.Context) error {
				tries++
				return errors.Join(errAway, ctx.Err())
			})
			if !errors.Is(err, errAway) || errors.Is(err, context.Canceled) || tries != 1 || time.Since(began) != 0 {
				t.Errorf("%s: %v after %d tries and %v", name, err, tries, time.Since(began))
			}
		})
	}
}

// A try that hangs must end, so that the next one can succeed over another connection.
func TestPersistBoundsEachTry(t *testing.T) {
	t.Parallel()
	for want, p := range map[time.Duration]Patience{30 * time.Second: {}, time.Second: {OneTry: time.Second}} {
		p.Logger = &testkit.Logs{}
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_ = p.Persist(t.Context(), &Delivery{}, "", func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			// With UnackedWait 0 there is only one try.
			if took := time.Since(began); took != want {
				t.Errorf("the try took %v, want %v", took, want)
			}
		})
	}
}
