package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once" //nolint:depguard // the test runs processes of a whole service
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

const processProvider = "ONCE_TEST_PARKED_PROVIDER"

// beBreaking handles the messages of a queue of RabbitMQ. Its handler calls a service.
func beBreaking(db *sql.DB) error {
	quiet := watermill.NopLogger{}
	c, err1 := once.NewConsumer(db, once.ConsumerConfig{Retry: retry.Config{
		Lease: 3 * time.Second, Logger: quiet, Breaker: &retry.Breaker{MaxWait: time.Second},
	}})
	sub, err2 := rabbit.NewSubscriber(wamqp.NewDurableQueueConfig(os.Getenv(processURL)), rabbit.SubscriberConfig{InFlight: 2, Logger: quiet})
	router, err3 := message.NewRouter(message.RouterConfig{}, quiet)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	c.AddHandler(router, consumer, topic, sub, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		answer, err := http.Get(os.Getenv(processProvider))
		if err != nil {
			return nil, err
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, errors.New("payment provider: " + answer.Status)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
		return nil, err
	})
	return router.Run(context.Background())
}

// Trap 120. Three processes handle the messages of a queue, and the service that they call is down.
// One process is killed while it probes, and another one while the breaker is open. The service gets
// one call in each wait. After the outage, each message takes effect once, none is in quarantine,
// and no attempt was counted.
func TestBreakerOfThreeProcessesWhoseProbersAreKilled(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	b, broker := newBench(t, kit.Postgres(t)), kit.Rabbit(t)
	b.Exec(`CREATE TABLE effects (message_id text NOT NULL)`)
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
	kills := map[int]func(){}
	start := func() {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), processDSN+"="+b.DSN, processRole+"=breaking", processURL+"="+broker.URL,
			processProvider+"="+provider.URL)
		command.Stderr = os.Stderr
		ended := kit.StartChild(t, command)
		kills[command.Process.Pid] = func() {
			_ = command.Process.Kill()
			<-ended
		}
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
	eventually := func(what string, cond func() bool) {
		t.Helper()
		kit.Eventually(t, 2*time.Minute, what, cond)
	}
	probes := func() int {
		return b.Number(`SELECT COALESCE(MAX(probes), -1) FROM once_consumer_pauses WHERE actor = 'breaker'`)
	}

	for range 3 {
		start()
	}
	eventually("three instances run", func() bool { return b.Number(`SELECT COUNT(*) FROM once_consumer_instances`) == 3 })
	publisher, err := rabbit.NewPublisher(wamqp.NewDurableQueueConfig(broker.URL), rabbit.PublisherConfig{})
	kit.OK(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	const published = 60
	for n := range published {
		kit.OK(t, publisher.Publish(topic, message.NewMessage(fmt.Sprint("m", n), nil)))
	}
	eventually("a probe has failed", func() bool { return probes() >= 1 })
	before, first, began := calls.Load(), probes(), time.Now()
	eventually("three more probes have failed", func() bool { return probes() >= first+3 })
	made, took := calls.Load()-before, time.Since(began)
	t.Logf("%d calls until a probe had failed, then %d calls in %v", before, made, took.Round(time.Millisecond))
	if most := int64(took/(800*time.Millisecond)) + 2; made > most {
		t.Errorf("%d calls in %v, want at most %d", made, took, most)
	}
	eventually("all attempts are given back", func() bool {
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
	eventually("another process probes", func() bool { return probes() > last })
	for pid := range kills {
		kill(pid)
		break
	}
	start()
	last = probes()
	eventually("another process probes", func() bool { return probes() > last })

	up.Store(true)
	effects := func() int { return b.Number(`SELECT COUNT(*) FROM effects`) }
	eventually("all have taken effect", func() bool { return effects() >= published && b.Number(`SELECT COUNT(*) FROM once_parked`) == 0 })
	if n, of := b.Number(`SELECT COUNT(DISTINCT message_id) FROM effects`), effects(); n != published || of != published {
		t.Errorf("%d messages have %d effects, want %d", n, of, published)
	}
	b.WantNumber(0, `SELECT COUNT(*) FROM once_consumer_pauses`)
}
