package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// A client repeats a request because it got no answer. The order is placed once, and the
// client gets the answer of the first request. Another request with the same key is
// refused.
func ExampleKeys_Handler() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "once-example-")
	must(err)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	defer func() { must(errors.Join(db.Close(), os.RemoveAll(dir))) }()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))

	keys, err := idempotency.New(db, idempotency.Config{
		Schema: tables,
		Client: func(r *http.Request) string { // a service would authenticate the user
			user, _, _ := r.BasicAuth()
			return user
		},
	})
	must(err)
	box, err := outbox.New(outbox.Config{Schema: tables})
	must(err)
	placeOrder := keys.Handler(func(w http.ResponseWriter, _ *http.Request, tx *sql.Tx) error {
		if err := box.Publisher(tx).Publish("orders.placed", message.NewMessage(outbox.NewID(), []byte("tea"))); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		_, err := w.Write([]byte("order 17"))
		return err
	})

	for _, order := range []string{"tea", "tea", "coffee"} {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(order))
		r.SetBasicAuth("ann", "")
		r.Header.Set(idempotency.Header, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		placeOrder.ServeHTTP(w, r)
		fmt.Printf("%s: %d, replayed: %t\n", order, w.Code, w.Header().Get(idempotency.Replayed) == "true")
	}
	var events int
	must(db.QueryRowContext(ctx, `SELECT COUNT(*) FROM once_outbox`).Scan(&events))
	fmt.Println("events:", events)
	// Output:
	// tea: 201, replayed: false
	// tea: 201, replayed: true
	// coffee: 422, replayed: false
	// events: 1
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
