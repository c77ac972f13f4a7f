package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/watermill-once/once/examples/orders/service"
)

// books contains the counts of one audit.
type books struct {
	orders  map[string]int            // number of rows of each order
	refused map[string]int            // orders that need an item that is sold out
	effects map[string]map[string]int // number of effects of each consumer on each order

	ordered  int64 // items in the lines of orders that can be delivered
	booked   int64 // items reserved in the stock
	paid     int64 // sum of all payments
	charged  int64 // money that the bank has taken from the customers
	refunded int64 // sum of all refunds
	returned int64 // money that the bank has given back to the customers
	earned   int64 // sum of all revenue
	swapped  int64 // pairs of history entries in the wrong order
	twice    int64 // mails that were sent more than once
}

// sums reads the totals from the databases, and stores them in the last fields of b.
func (a Audit) sums(ctx context.Context, b *books) error {
	err := a.of(service.Orders).DB.QueryRowContext(ctx, `
		SELECT COALESCE((SELECT SUM(quantity) FROM order_lines WHERE order_id NOT IN (
		           SELECT order_id FROM order_lines WHERE sku NOT IN (SELECT sku FROM stock WHERE on_hand > 0))), 0),
		       COALESCE((SELECT SUM(reserved) FROM stock), 0), COALESCE((SELECT SUM(amount) FROM revenue), 0),
		       (SELECT COUNT(*) FROM history AS a JOIN history AS b USING (order_id) WHERE a.entry < b.entry AND a.version > b.version)`).
		Scan(&b.ordered, &b.booked, &b.earned, &b.swapped)
	if err != nil {
		return fmt.Errorf("demo: audit: %w", err)
	}
	err = a.of(service.Payments).DB.QueryRowContext(ctx, `
		SELECT COALESCE((SELECT SUM(amount) FROM payments), 0), COALESCE((SELECT SUM(amount) FROM refunds), 0)`).
		Scan(&b.paid, &b.refunded)
	if err != nil {
		return fmt.Errorf("demo: audit: %w", err)
	}
	err = a.Outside.QueryRowContext(ctx, `
		SELECT COALESCE((SELECT SUM(amount) FROM bank WHERE kind = 'charge'), 0),
		       COALESCE((SELECT SUM(amount) FROM bank WHERE kind = 'refund'), 0),
		       (SELECT COUNT(*) - COUNT(DISTINCT reference) FROM mail_provider)`).
		Scan(&b.charged, &b.returned, &b.twice)
	if err != nil {
		return fmt.Errorf("demo: audit: %w", err)
	}
	return nil
}

// Missing is an order that lacks some of its effects.
type Missing struct {
	Order     string   `json:"order"`
	Consumers []string `json:"consumers"` // consumers whose effect is missing, or "orders" if the order itself is missing
}

// missing returns the orders that lack some of their effects. It checks the orders in
// the tables, and also the orders for which clients got a 201. answered
// contains the ids of the orders with a 201.
func (b books) missing(answered []string) []Missing {
	ids := maps.Clone(b.orders)
	for _, id := range answered {
		ids[id] += 0
	}
	incomplete := []Missing{} // not nil, so that it becomes a list in JSON
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		m := Missing{Order: id}
		if ids[id] == 0 {
			m.Consumers = append(m.Consumers, "orders")
		}
		for _, to := range service.Subscriptions() {
			if b.effects[to.Consumer][id] < expected(to.Consumer, b.refused[id] > 0) {
				m.Consumers = append(m.Consumers, to.Consumer)
			}
		}
		if len(m.Consumers) > 0 {
			incomplete = append(incomplete, m)
		}
	}
	return incomplete
}

// surplus counts the effects beyond the expected number for each consumer and order
// (duplicated), and the effects on orders that do not exist (phantom).
func (b books) surplus() (duplicated, phantom int) {
	for consumer, effects := range b.effects {
		for order, count := range effects {
			if b.orders[order] == 0 {
				phantom += count
				continue
			}
			duplicated += max(0, count-expected(consumer, b.refused[order] > 0))
		}
	}
	return duplicated, phantom
}
