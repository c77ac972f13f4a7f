package dedup_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/schema"
)

// Three messages in flight share a transaction, and the handler writes them with one
// statement. The inbox skips the duplicate of one of them. A router calls the handler
// in one goroutine for each message, and so does this example.
func ExampleInbox_BatchHandler() {
	ctx := context.Background()
	db, remove := database(ctx)
	defer remove()
	_, err := db.ExecContext(ctx, `CREATE TABLE booked (order_id TEXT)`)
	must(err)

	inbox, err := dedup.New(db, dedup.Config{
		Schema: schema.Config{Dialect: schema.SQLite}, Consumer: "revenue",
		Batch: dedup.Batch{Size: 3, Wait: time.Second},
	})
	must(err)
	handle := inbox.BatchHandler(func(ctx context.Context, tx *sql.Tx, orders []*message.Message) ([]*message.Message, error) {
		var ids []string
		for _, order := range orders {
			ids = append(ids, string(order.Payload))
		}
		list, err := json.Marshal(ids)
		if err != nil {
			return nil, err
		}
		fmt.Println("orders in this transaction:", len(orders))
		_, err = tx.ExecContext(ctx, `INSERT INTO booked (order_id) SELECT value FROM json_each(?)`, string(list))
		return nil, err
	})

	var inFlight sync.WaitGroup
	for _, order := range []string{"17", "18", "19"} {
		inFlight.Go(func() {
			_, err := handle(message.NewMessage("placed-"+order, []byte(order)))
			must(err)
		})
	}
	inFlight.Wait()
	_, err = handle(message.NewMessage("placed-17", []byte("17")))
	must(err)

	var booked int
	must(db.QueryRowContext(ctx, `SELECT COUNT(*) FROM booked`).Scan(&booked))
	fmt.Println("booked:", booked)
	// Output:
	// orders in this transaction: 3
	// booked: 3
}

// A cache is cleared when the new price can be read, and not before. A failed attempt and
// a duplicate do not clear it.
func ExampleAfterCommit() {
	ctx := context.Background()
	db, remove := database(ctx)
	defer remove()
	_, err := db.ExecContext(ctx, `CREATE TABLE prices (price TEXT)`)
	must(err)

	inbox, err := dedup.New(db, dedup.Config{Schema: schema.Config{Dialect: schema.SQLite}, Consumer: "prices"})
	must(err)
	broken := true
	handle := inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx, _ := dedup.TxFromContext(ctx)
		if _, err := tx.ExecContext(ctx, `INSERT INTO prices (price) VALUES (?)`, string(msg.Payload)); err != nil {
			return nil, err
		}
		if err := dedup.AfterCommit(ctx, func() { fmt.Println("cache cleared") }); err != nil {
			return nil, err
		}
		if broken {
			return nil, errors.New("the price is not plausible")
		}
		return nil, nil
	})

	for _, attempt := range []string{"first attempt", "second attempt", "duplicate"} {
		_, err := handle(message.NewMessage("price-17", []byte("4.20")))
		fmt.Printf("%s: %v\n", attempt, err)
		broken = false
	}
	// Output:
	// first attempt: the price is not plausible
	// cache cleared
	// second attempt: <nil>
	// duplicate: <nil>
}

// database returns a new SQLite database with the tables of package schema.
func database(ctx context.Context) (db *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "once-example-")
	must(err)
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	must(schema.Up(ctx, db, schema.Config{Dialect: schema.SQLite}))
	return db, func() { must(errors.Join(db.Close(), os.RemoveAll(dir))) }
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
