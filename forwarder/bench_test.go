package forwarder_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
)

// BenchmarkForward measures how fast the forwarder reads and deletes a backlog in
// PostgreSQL. The publisher confirms immediately and costs nothing. Each message has
// a body of 490 bytes and six headers.
//
//	go test ./forwarder -run '^$' -bench Forward -benchtime 200000x
func BenchmarkForward(b *testing.B) {
	for _, keys := range []int{0, 10_000, 100} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			db := postgres(b)
			backlog(b, db, "t", keys)
			drain(b, db, null{})
		})
	}
}

// backlog writes b.N messages to the outbox, spread over the given number of ordering
// keys.
func backlog(b *testing.B, db *sql.DB, topic string, keys int) {
	b.Helper()
	for at := 0; at < b.N; {
		kit.OK(b, outbox.InTx(b.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			var msgs []*message.Message
			for ; at < b.N && len(msgs) < 10_000; at++ {
				msgs = append(msgs, benchMessage(at, keys))
			}
			return events.Publish(topic, msgs...)
		}))
	}
	_, err := db.Exec("CHECKPOINT") // so that a checkpoint of the backlog does not run during the measurement
	kit.OK(b, err)
}

func benchMessage(i, keys int) *message.Message {
	m := message.NewMessage(fmt.Sprintf("0192a4c8-0000-7000-8000-%012d", i), bytes.Repeat([]byte("x"), 490))
	m.Metadata = message.Metadata{
		outbox.AggregateType:    "order",
		outbox.AggregateID:      strconv.Itoa(i),
		outbox.AggregateVersion: "1",
		outbox.EventType:        "order.placed",
		outbox.TenantID:         "tenant-1",
		"traceparent":           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	if keys > 0 {
		outbox.SetOrderingKey(m, strconv.Itoa(i%keys))
	}
	return m
}

// drain runs a forwarder until the outbox is empty, and reports messages per second and
// CPU time per message.
func drain(b *testing.B, db *sql.DB, publisher message.Publisher) {
	b.Helper()
	f, err := forwarder.New(db, publisher, forwarder.Config{})
	kit.OK(b, err)
	before := cpuTime(b)
	b.ResetTimer()
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	for rest := true; rest; {
		takeTime(10 * time.Millisecond)
		kit.OK(b, db.QueryRow(`SELECT EXISTS (SELECT 1 FROM once_outbox)`).Scan(&rest))
	}
	b.StopTimer()
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/msg") // CPU time of this process
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	kit.OK(b, f.Close())
	kit.OK(b, <-ended)
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	kit.OK(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// null is a publisher that confirms every message immediately.
type null struct{}

func (null) Publish(string, ...*message.Message) error                   { return nil }
func (null) Close() error                                                { return nil }
func (null) PublishAsync(_ string, _ *message.Message, done func(error)) { done(nil) }
