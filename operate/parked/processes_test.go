package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// Environment variables that make the test binary a consumer or an operator.
const (
	processDSN  = "ONCE_TEST_PARKED_DSN"
	processRole = "ONCE_TEST_PARKED_ROLE"

	processLease = 500 * time.Millisecond

	// TestOperatorAndConsumerAreKilled delivers messages in rounds. In each round but the
	// last, the operator is killed after about one third of the messages of the round, and
	// the consumer after about two thirds.
	rounds, perRound = 6, 500
)

func TestMain(m *testing.M) {
	be, ok := map[string]func(*sql.DB) error{
		"consumer": beConsumer, "operator": beOperator, "pausable": bePausable, "breaking": beBreaking,
		"limited": beLimited, "tenanted": beTenanted,
	}[os.Getenv(processRole)]
	if !ok {
		kit.MainWithTables(m)
	}
	db, err := sql.Open("postgres", os.Getenv(processDSN))
	if err == nil {
		db.SetMaxIdleConns(10)
		err = be(db)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// beConsumer handles messages in the order of their keys. The first attempt of every
// seventh message fails.
func beConsumer(db *sql.DB) error {
	quiet := watermill.NopLogger{}
	transport, err1 := embedded.New(db, embedded.Config{Logger: quiet})
	quarantine, err2 := poison.New(db, poison.Config{Logger: quiet})
	retries, err3 := retry.New(db, retry.Config{
		KeyOrder: retry.BlockWhileQuarantined, Concurrency: 4, Lease: processLease, PollInterval: 5 * time.Millisecond, Logger: quiet,
		// A message can fail in each process. Its delay must not grow, and it must not be quarantined.
		Policy: retry.Policy{Immediate: -1, Base: 300 * time.Millisecond, Factor: 1, Delayed: 1000}, CrashBudget: 1000,
	})
	inbox, err4 := dedup.New(db, dedup.Config{Logger: quiet})
	router, err5 := message.NewRouter(message.RouterConfig{}, quiet)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	var failed sync.Map
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)
	router.AddConsumerHandler("charge", topic, retries.Subscriber(consumer, transport.Subscriber()), func(msg *message.Message) error {
		if n, _ := strconv.Atoi(msg.UUID); n%7 == 0 {
			if _, again := failed.LoadOrStore(n, true); !again {
				return errors.New("fails at first")
			}
		}
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects (message_id) SELECT $1 FROM pg_sleep(0.005)`, msg.UUID)
		return err
	})
	return router.Run(context.Background())
}

// beOperator changes random messages of the table.
func beOperator(db *sql.DB) error {
	messages, err := parked.New(db, operate.Config{})
	for err == nil {
		ctx, after := context.Background(), rand.Int64N(rounds*perRound)
		_, err1 := messages.CancelMatching(ctx, ann, operate.Filter{Consumer: consumer, AfterID: after, Limit: 4}, operate.Plan{})
		_, err2 := messages.DiscardMatching(ctx, ann, operate.Filter{State: parked.Held, AfterID: after, Limit: 4}, operate.Plan{})
		_, err3 := messages.RunNowMatching(ctx, ann, operate.Filter{IDs: []int64{after, after + 1, after + 2, after + 3}}, operate.Plan{})
		err = errors.Join(err1, err2, err3)
	}
	return err
}

// A consumer and an operator work on the same messages, and are killed again and again.
// Each message must either be handled exactly once, or be cancelled or discarded
// without being handled. The messages of a key must be handled in their order.
func TestOperatorAndConsumerAreKilled(t *testing.T) {
	kit.Long(t)
	b := newBench(t, kit.Postgres(t))
	b.Exec(`CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, message_id text NOT NULL)`)
	all := 0
	deliver := func() {
		var msgs []*message.Message
		for n := all; n < all+perRound; n++ {
			key := ""
			if n%3 > 0 {
				key = fmt.Sprint("key", n%50)
			}
			msgs = append(msgs, msg(strconv.Itoa(n), key))
		}
		kit.OK(t, b.store.DeliverTo(t.Context(), topic, []store.Subscription{{Consumer: consumer, KeyOrder: true}}, msgs...))
		all += perRound
	}
	open := func() int { return b.Number(`SELECT COUNT(*) FROM once_parked WHERE state IN ('waiting', 'held')`) }
	for range rounds - 1 {
		deliver()
		before := open()
		_, consumes := startProcess(t, b.DSN, "consumer")
		_, operates := startProcess(t, b.DSN, "operator")
		kit.Eventually(t, 2*time.Minute, "they work", func() bool { return open() < before-perRound/3 })
		operates()
		kit.Eventually(t, 2*time.Minute, "the consumer works", func() bool { return open() < before-2*perRound/3 })
		consumes()
	}
	deliver()
	before := open()
	_, operates := startProcess(t, b.DSN, "operator") // and nobody consumes: it finds messages that the consumer had claimed
	kit.Eventually(t, 2*time.Minute, "it works alone", func() bool { return open() < before })
	operates()
	startProcess(t, b.DSN, "consumer")
	kit.Falls(t, time.Minute, "messages wait", open)

	ended := b.Number(`SELECT COUNT(*) FROM once_parked WHERE state IN ('quarantined', 'discarded')`)
	handled := b.Number(`SELECT COUNT(*) FROM effects`)
	t.Logf("%d handled, %d cancelled or discarded", handled, ended)
	if handled+ended != all {
		t.Fatalf("handled+ended is %d, want %d", handled+ended, all)
	}
	if ended == 0 {
		t.Fatal("ended is 0")
	}
	b.WantNumber(handled, `SELECT COUNT(DISTINCT message_id) FROM effects`)
	if got := b.Number(`SELECT COUNT(*) FROM effects JOIN once_parked USING (message_id)`); got != 0 {
		t.Fatalf("b.Number is %d, want 0: both handled and ended", got)
	}
	b.WantNumber(ended, `SELECT COUNT(*) FROM once_audit WHERE action IN ('cancel', 'discard')`)
	got := b.Number(`SELECT COUNT(*) FROM effects AS a JOIN effects AS b ON a.n < b.n
		AND a.message_id::int > b.message_id::int AND a.message_id::int % 50 = b.message_id::int % 50
		WHERE a.message_id::int % 3 > 0 AND b.message_id::int % 3 > 0`)
	if got != 0 {
		t.Fatalf("b.Number is %d, want 0: a key is out of order", got)
	}
}
