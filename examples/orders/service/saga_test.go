package service_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
)

const soldOut = `{"shop":"berlin","customer":"Ada","currency":"EUR","lines":[` +
	`{"sku":"tea","quantity":2,"unit_price":450},{"sku":"unicorn","quantity":1,"unit_price":390}]}`

// An order with an item that is sold out is refunded once and cancelled, although the
// first call of each consumer of the saga fails. The call fails after all its effects,
// before the commit.
func TestSoldOutOrderIsRefunded(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database, failAtFirst("payments", "inventory", "refunds", "cancellations", "notifications"))
		got := r.order("", soldOut)
		if got.status != http.StatusCreated {
			t.Fatalf("%+v", got)
		}
		id := strings.TrimPrefix(got.header.Get("Location"), "/orders/")
		testenv.Eventually(t, 3*time.Minute, "all consumers have handled the order", func() bool {
			d := r.details(id)
			return d.Payment == "refunded" && d.Reservation == "refused" && d.Shipment == "cancelled" &&
				r.count("once_outbox") == 0 && r.count("once_parked") == 0
		})
		if err := r.stop(); err != nil { // from now on nothing changes
			t.Fatal(err)
		}
		for table, want := range map[string]int{
			"payments": 1, "reservations": 1, "refunds": 1, "cancellations": 1, "shipments": 0, "revenue": 0, "history": 3,
			"tracking WHERE status = 'cancelled'": 1, "stock WHERE reserved > 0": 0,
		} {
			if n := r.count(table); n != want {
				t.Errorf("%d %s, want %d", n, table, want)
			}
		}
		if sum := r.world.money(); sum != 0 || len(r.world.moved) != 2 {
			t.Errorf("the bank has moved %v", r.world.moved)
		}
		for purpose, subject := range map[string]string{
			"receipt": "We received 12.90 EUR", "refund": "Sold out: unicorn. You get back 12.90 EUR",
		} {
			if mails := r.world.mails(id + ".mails.intended." + purpose); !slices.Equal(mails, []string{subject}) {
				t.Errorf("%s: mails %q", purpose, mails)
			}
		}
	})
}

var errAtFirst = errors.New("fails at first")

// failAtFirst makes the first call of each of these consumers fail, after the handler
// has done all its work.
func failAtFirst(consumers ...string) func(*service.Config) {
	return func(c *service.Config) {
		c.Hooks.Handler = func(consumer string, handle once.HandlerFunc) once.HandlerFunc {
			var called atomic.Bool
			return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				events, err := handle(ctx, tx, msg)
				if err == nil && slices.Contains(consumers, consumer) && called.CompareAndSwap(false, true) {
					return nil, errAtFirst
				}
				return events, err
			}
		}
	}
}

// A mail is not sent again if the provider has sent it and then answered with an error.
func TestMailThatWasSentIsNotSentAgain(t *testing.T) {
	t.Parallel()
	r := start(t, sqlite(t))
	var failures atomic.Int64
	r.world.mu.Lock()
	r.world.afterSend = func() error {
		if failures.Add(1) == 1 {
			return errAtFirst
		}
		return nil
	}
	r.world.mu.Unlock()
	id := r.placed()
	testenv.Eventually(t, 3*time.Minute, "the intent is carried out", func() bool {
		return r.count(`once_inbox WHERE consumer = 'notifications'`) == 1
	})
	if mails := r.world.mails(id + ".mails.intended.receipt"); len(mails) != 1 || failures.Load() != 1 {
		t.Errorf("mails %q", mails)
	}
}

// If only some items of an order can be reserved, the order takes nothing from the
// stock.
func TestStockIsReservedCompletelyOrNotAtAll(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database)
		r.exec(`UPDATE stock SET on_hand = 3 WHERE sku = 'tea'`)
		orders := []string{r.placed()} // two teas and a cake
		testenv.Eventually(t, 3*time.Minute, "the first order is shipped", func() bool {
			return r.details(orders[0]).Shipment == "shipped"
		})
		orders = append(orders, r.placed()) // one tea is left
		testenv.Eventually(t, 3*time.Minute, "the second order is cancelled", func() bool {
			return r.details(orders[1]).Shipment == "cancelled"
		})
		if n := r.count(`stock WHERE sku = 'tea' AND reserved = 2 OR sku = 'cake' AND reserved = 1`); n != 2 {
			t.Errorf("the cakes and teas of the second order are reserved")
		}
	})
}
