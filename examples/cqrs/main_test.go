package main

import (
	"bytes"
	"database/sql"
	"path/filepath"
	"testing"
)

// The order that the command places has one invoice when the event of the invoice is handled.
func TestOrderIsBilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cqrs.db")
	var out bytes.Buffer
	if err := run(t.Context(), file, &out); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var invoices, cents int
	err = db.QueryRowContext(t.Context(), `SELECT count(*), sum(cents) FROM invoices WHERE order_id = 'order-1'`).Scan(&invoices, &cents)
	if err != nil {
		t.Fatal(err)
	}
	if invoices != 1 || cents != 1290 || out.String() != "order-1 is billed\n" {
		t.Errorf("%d invoices over %d cents, printed %q", invoices, cents, out.String())
	}
}
