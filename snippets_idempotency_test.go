package once_test

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/outbox"
)

// The code of docs/idempotency-keys.md, as in snippets_test.go.

func _(ctx context.Context, db *sql.DB, mux *http.ServeMux, authenticatedUser func(r *http.Request) string) error {
	keys, err := idempotency.New(db, idempotency.Config{Client: authenticatedUser})
	if err != nil {
		return err
	}
	mux.Handle("POST /orders", keys.Handler(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders (customer) VALUES ($1)`, r.FormValue("customer")); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		return outbox.Publisher(tx).Publish("orders.placed", outbox.NewMessage([]byte(r.FormValue("customer"))))
	}))
	return keys.Run(ctx) // until ctx ends: it forgets keys after Config.Retention
}
