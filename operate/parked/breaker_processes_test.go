package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once" //nolint:depguard // the test runs processes of a whole service
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

const processProvider = "ONCE_TEST_PARKED_PROVIDER"

// beBreaking handles the messages of a queue of RabbitMQ. Its handler calls a service.
func beBreaking(db *sql.DB) error {
	return beHandling(db, once.ConsumerConfig{Retry: retry.Config{
		Lease: 3 * time.Second, Breaker: &retry.Breaker{MaxWait: time.Second},
	}}, 2, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		answer, err := http.Get(os.Getenv(processProvider))
		if err != nil {
			return nil, err
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, errors.New("payment provider: " + answer.Status)
		}
		return insertEffect(ctx, tx, msg)
	})
}

// Trap 120. Three processes handle the messages of a queue, and the service that they call is down.
// One process is killed while it probes, and another one while the breaker is open. The service gets
// one call in each wait. After the outage, each message takes effect once, none is in quarantine,
// and no attempt was counted.
func TestBreakerOfThreeProcessesWhoseProbersAreKilled(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	var up, hangs atomic.Bool
	var calls atomic.Int64
	hung := make(chan struct{}, 1)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if hangs.Load() {
			hung <- struct{}{}
			<-r.Context().Done() // until the process that calls is killed
		}
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(provider.Close)
	b := newFleet(t, "breaking", "", processProvider+"="+provider.URL)
	kills := b.startThree()
	start := func() {
		pid, kill := b.start()
		kills[pid] = kill
	}
	kill := func(pid int) {
		t.Helper()
		end, ok := kills[pid]
		if !ok {
			t.Fatalf("no process has the id %d", pid)
		}
		end()
		delete(kills, pid)
	}
	probes := func() int {
		return b.Number(`SELECT COALESCE(MAX(probes), -1) FROM once_consumer_pauses WHERE actor = 'breaker'`)
	}

	const published = 60
	for n := range published {
		b.publish(fmt.Sprint("m", n), "")
	}
	b.eventually("a probe has failed", func() bool { return probes() >= 1 })
	before, first, began := calls.Load(), probes(), time.Now()
	b.eventually("three more probes have failed", func() bool { return probes() >= first+3 })
	made, took := calls.Load()-before, time.Since(began)
	t.Logf("%d calls until a probe had failed, then %d calls in %v", before, made, took.Round(time.Millisecond))
	if most := int64(took/(800*time.Millisecond)) + 2; made > most {
		t.Errorf("%d calls in %v, want at most %d", made, took, most)
	}
	b.eventually("all attempts are given back", func() bool {
		return b.Number(`SELECT COUNT(*) FROM once_parked WHERE attempts > 0 OR rounds > 0`) == 0
	})

	hangs.Store(true)
	<-hung
	prober := kit.One[string](t, b.DB, `SELECT prober FROM once_consumer_pauses`)
	hangs.Store(false)
	pid, _ := strconv.Atoi(strings.Split(prober, "/")[1])
	kill(pid)
	start()
	last := probes()
	b.eventually("another process probes", func() bool { return probes() > last })
	for pid := range kills {
		kill(pid)
		break
	}
	start()
	last = probes()
	b.eventually("another process probes", func() bool { return probes() > last })

	up.Store(true)
	b.eventually("all have taken effect", func() bool { return b.effects() >= published && b.Count(`once_parked`) == 0 })
	b.hasEachOnce(published)
	b.WantNumber(0, `SELECT COUNT(*) FROM once_consumer_pauses`)
}
