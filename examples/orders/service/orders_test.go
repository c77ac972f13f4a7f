package service_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
)

// An order is paid, reserved and shipped once, and its customer gets one mail.
func TestOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database)
		got := r.order("", anOrder)
		if got.status != http.StatusCreated || !strings.HasPrefix(got.header.Get("Location"), "/orders/") {
			t.Fatalf("%+v", got)
		}
		id := strings.TrimPrefix(got.header.Get("Location"), "/orders/")
		testenv.Eventually(t, 3*time.Minute, "all consumers have handled the order", func() bool {
			d := r.details(id)
			return d.Payment == "captured" && d.Reservation == "reserved" && d.Shipment == "shipped" &&
				r.count("once_outbox") == 0 && r.count("once_parked") == 0 // this includes the messages of the durable consumer
		})
		d := r.details(id)
		if d.Customer != "Ada" || d.Total != 1290 || len(d.Lines) != 2 || d.Lines[1].SKU != "cake" || time.Since(d.PlacedAt).Abs() > time.Minute {
			t.Errorf("%+v", d)
		}
		if err := r.stop(); err != nil { // from now on nothing changes
			t.Fatal(err)
		}
		for _, table := range []string{"payments", "reservations", "shipments"} {
			if n := r.count(table); n != 1 {
				t.Errorf("%d %s", n, table)
			}
		}
		if mails := r.world.mails(id + ".mails.intended.receipt"); !slices.Equal(mails, []string{"We received 12.90 EUR"}) {
			t.Errorf("mails %q", mails)
		}
		if sum := r.world.money(); sum != 1290 {
			t.Errorf("the bank has charged %d", sum)
		}
	})
}

// Every request that is not a valid order is refused with a reason, and writes nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := start(t, sqlite(t))
	line := func(l string) string {
		return strings.Replace(anOrder, `{"sku":"tea","quantity":2,"unit_price":450}`, l, 1)
	}
	for name, c := range map[string]struct {
		body   string
		status int
		says   string
	}{
		"empty":           {"", 400, "is empty"},
		"cut off":         {anOrder[:40], 400, "ends too early"},
		"not JSON":        {"order=1", 400, "is not JSON"},
		"not an object":   {`["tea"]`, 400, "must be a JSON object"},
		"two values":      {anOrder + anOrder, 400, "must be one JSON value"},
		"unknown field":   {strings.Replace(anOrder, "shop", "ship", 1), 400, `unknown field \"ship\"`},
		"wrong type":      {line(`{"sku":"tea","quantity":"two","unit_price":450}`), 400, "lines.quantity"},
		"fraction":        {line(`{"sku":"tea","quantity":1.5,"unit_price":450}`), 400, "lines.quantity"},
		"not UTF-8":       {strings.Replace(anOrder, "Ada", "Ad\xff", 1), 400, "not valid UTF-8"},
		"too large":       {strings.Replace(anOrder, "Ada", strings.Repeat("A", 70_000), 1), 413, "at most 65536 bytes"},
		"null":            {"null", 422, `"field":"shop"`},
		"no customer":     {strings.Replace(anOrder, "Ada", "  ", 1), 422, `"field":"customer","reason":"is missing"`},
		"long customer":   {strings.Replace(anOrder, "Ada", strings.Repeat("ä", 201), 1), 422, "at most 200 characters"},
		"NUL":             {strings.Replace(anOrder, "Ada", `A\u0000`, 1), 422, "control characters"},
		"currency":        {strings.Replace(anOrder, "EUR", "€", 1), 422, `"field":"currency"`},
		"no lines":        {`{"shop":"a","customer":"b","currency":"EUR","lines":[]}`, 422, `"field":"lines"`},
		"too many lines":  {line(strings.Repeat(`{"sku":"tea","quantity":1,"unit_price":1},`, 100) + `{}`), 422, "1 to 100, not 102"},
		"no quantity":     {line(`{"sku":"tea","unit_price":450}`), 422, `lines[0].quantity`},
		"large quantity":  {line(`{"sku":"tea","quantity":10001,"unit_price":450}`), 422, "1 to 10000, not 10001"},
		"negative price":  {line(`{"sku":"tea","quantity":1,"unit_price":-1}`), 422, `lines[0].unit_price`},
		"overlong number": {line(`{"sku":"tea","quantity":1,"unit_price":99999999999999999999}`), 400, "lines.unit_price"},
	} {
		got := r.order(name, c.body)
		if got.status != c.status || !strings.Contains(got.body, c.says) || got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %+v, want status %d and %q", name, got, c.status, c.says)
		}
	}
	for _, kind := range []string{"", "text/plain", "application/jsonp", "application/x-www-form-urlencoded"} {
		if got := r.do(http.MethodPost, "/orders", anOrder, "Content-Type", kind); got.status != http.StatusUnsupportedMediaType {
			t.Errorf("Content-Type %q: %+v", kind, got)
		}
	}
	for _, key := range []string{strings.Repeat("k", 256), "ключ"} {
		if got := r.order(key, anOrder); got.status != http.StatusBadRequest || !strings.Contains(got.body, "idempotency key") {
			t.Errorf("key %q: %+v", key, got)
		}
	}
	for _, table := range []string{"orders", "order_lines", "once_idempotency_keys", "once_outbox"} {
		if n := r.count(table); n != 0 {
			t.Errorf("%d rows in %s", n, table)
		}
	}
}

func TestNoSuchOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database)
		for _, id := range []string{"01890a5d-ac96-774b-bcce-b302099a8057", "17", "%00", "'--"} {
			if got := r.do(http.MethodGet, "/orders/"+id, ""); got.status != http.StatusNotFound {
				t.Errorf("%s: %+v", id, got)
			}
		}
	})
}

// If the events of an order cannot be stored, the order is not placed, because the order
// and its events are written in one transaction.
func TestOrderAndEventsAreOneTransaction(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database)
		r.ready()
		r.exec(`ALTER TABLE once_outbox RENAME TO elsewhere`)
		got := r.order("key", anOrder)
		if got.status < http.StatusInternalServerError || strings.Contains(got.body, "once_outbox") {
			t.Errorf("%+v", got)
		}
		for _, table := range []string{"orders", "order_lines", "once_idempotency_keys"} {
			if n := r.count(table); n != 0 {
				t.Errorf("%d rows in %s", n, table)
			}
		}
		r.exec(`ALTER TABLE elsewhere RENAME TO once_outbox`)
		if got := r.order("key", anOrder); got.status != http.StatusCreated || got.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%+v", got)
		}
	})
}
