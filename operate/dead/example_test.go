package dead_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// broker accepts no message until it is ready.
type broker struct {
	ready    atomic.Bool
	accepted chan string
}

func (b *broker) Publish(topic string, msgs ...*message.Message) error {
	if !b.ready.Load() {
		return unacceptable{errors.New("no exchange 'orders'")}
	}
	for _, msg := range msgs {
		b.accepted <- topic + " " + msg.UUID
	}
	return nil
}

func (b *broker) Close() error { return nil }

// The broker does not accept a message, which becomes a dead letter. When the
// reason is gone, an operator replays the letter, and the forwarder sends it.
func ExampleLetters_ReplayMatching() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "once-example-")
	must(err)
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	defer db.Close()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))

	target := &broker{accepted: make(chan string, 1)}
	f, err := forwarder.New(db, target, forwarder.Config{Schema: tables, Logger: watermill.NopLogger{}})
	must(err)
	go func() { must(f.Run(ctx)) }()
	defer func() { must(f.Close()) }()

	box, err := outbox.New(outbox.Config{Schema: tables})
	must(err)
	must(box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish("orders.placed", message.NewMessage("order-7-placed", []byte(`{"order": 7}`)))
	}))

	letters, err := dead.New(db, operate.Config{Schema: tables})
	must(err)
	untilCount(ctx, letters, 1)
	page, err := letters.Groups(ctx, operate.Filter{})
	must(err)
	for _, g := range page.Groups {
		fmt.Printf("%d letter of %v: %s: %s\n", g.Count, g.Topics, g.Reason, g.Error)
	}

	target.ready.Store(true)
	act := operate.Act{Actor: "ann", Why: "the exchange is declared again"}
	report, err := letters.ReplayMatching(ctx, act, operate.Filter{Fingerprint: page.Groups[0].Fingerprint}, operate.Plan{})
	must(err)
	fmt.Println("replayed:", report.Changed)
	fmt.Println("sent:", <-target.accepted)

	// Output:
	// 1 letter of [orders.placed]: unacceptable: no exchange 'orders'
	// replayed: 1
	// sent: orders.placed order-7-placed
}

// untilCount waits until there are n dead letters.
func untilCount(ctx context.Context, letters *dead.Letters, n int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		count, err := letters.Count(ctx, operate.Filter{})
		must(err)
		if count.N == n {
			return
		}
		<-tick.C
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
