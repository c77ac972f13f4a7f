package demo

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/watermill-once/once/examples/orders/service"
)

// Audit counts rows in the tables. It does not rely on what the service or the demo
// reports.
type Audit struct {
	DB   *sql.DB // the service's database
	Mail *sql.DB // the mail provider's database

	// Tables returns the names of the library's tables.
	Tables interface{ Table(name string) string }
}

// books contains the counts of one audit.
type books struct {
	orders  map[string]int            // number of rows of each order
	effects map[string]map[string]int // number of effects of each consumer on each order
	ordered int64                     // items in all order lines
	booked  int64                     // items reserved in the stock
	paid    int64                     // sum of all payments
	earned  int64                     // sum of all revenue
	swapped int64                     // pairs of history entries in the wrong order
}

// effectsOf contains, for each consumer, the query that counts its effects on each
// order.
var effectsOf = map[string]string{
	"payments":      `SELECT order_id, COUNT(*) FROM payments GROUP BY order_id`,
	"inventory":     `SELECT order_id, COUNT(*) FROM reservations GROUP BY order_id`,
	"shipping":      `SELECT order_id, COUNT(*) FROM shipments GROUP BY order_id`,
	"notifications": `SELECT order_id, COUNT(*) FROM mail_provider GROUP BY order_id`,
	"revenue":       `SELECT order_id, COUNT(*) FROM revenue GROUP BY order_id`,
	"history":       `SELECT order_id, COUNT(*) - 2 FROM history GROUP BY order_id HAVING COUNT(*) > 2`, // the others are placed and paid
	"tracking":      `SELECT order_id, COUNT(*) FROM tracking WHERE status = 'shipped' GROUP BY order_id`,
}

// read counts the orders, and the effects of each consumer on each order.
func (a Audit) read(ctx context.Context) (books, error) {
	b := books{effects: map[string]map[string]int{}}
	var err error
	if b.orders, err = counts(ctx, a.DB, `SELECT id, COUNT(*) FROM orders GROUP BY id`); err != nil {
		return b, err
	}
	for consumer, query := range effectsOf {
		db := a.DB
		if consumer == "notifications" {
			db = a.Mail
		}
		if b.effects[consumer], err = counts(ctx, db, query); err != nil {
			return b, err
		}
	}
	err = a.DB.QueryRowContext(ctx, `
		SELECT COALESCE((SELECT SUM(quantity) FROM order_lines), 0), COALESCE((SELECT SUM(reserved) FROM stock), 0),
		       COALESCE((SELECT SUM(amount) FROM payments), 0), COALESCE((SELECT SUM(amount) FROM revenue), 0),
		       (SELECT COUNT(*) FROM history AS a JOIN history AS b USING (order_id) WHERE a.entry < b.entry AND a.version > b.version)`).
		Scan(&b.ordered, &b.booked, &b.paid, &b.earned, &b.swapped)
	if err != nil {
		return b, fmt.Errorf("demo: audit: %w", err)
	}
	return b, nil
}

// counts returns the result of a query whose rows are an order and a number.
func counts(ctx context.Context, db *sql.DB, query string) (map[string]int, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("demo: audit: %w", err)
	}
	defer rows.Close()
	found := map[string]int{}
	for rows.Next() {
		var (
			order string
			count int
		)
		if err := rows.Scan(&order, &count); err != nil {
			return nil, fmt.Errorf("demo: audit: %w", err)
		}
		found[order] = count
	}
	return found, rows.Err()
}

// progress returns how many effects there are so far.
func (a Audit) progress(ctx context.Context) (int, error) {
	var ours, mails int
	err := a.DB.QueryRowContext(ctx, `
		SELECT (SELECT COUNT(*) FROM payments) + (SELECT COUNT(*) FROM reservations) + (SELECT COUNT(*) FROM shipments)
		       + (SELECT COUNT(*) FROM revenue) + (SELECT COUNT(*) FROM history) + (SELECT COUNT(*) FROM tracking)`).
		Scan(&ours)
	if err == nil {
		err = a.Mail.QueryRowContext(ctx, `SELECT COUNT(*) FROM mail_provider`).Scan(&mails)
	}
	if err != nil {
		return 0, fmt.Errorf("demo: audit: %w", err)
	}
	return ours + mails, nil
}

// underWay counts the messages that the forwarder has not sent or a consumer has not
// handled, and the dead letters.
func (a Audit) underWay(ctx context.Context) (waiting, dead int, err error) {
	err = a.DB.QueryRowContext(ctx, fmt.Sprintf(`
		SELECT (SELECT COUNT(*) FROM %s) + (SELECT COUNT(*) FROM %s WHERE state IN ('waiting', 'held')), (SELECT COUNT(*) FROM %s)`,
		a.Tables.Table("outbox"), a.Tables.Table("parked"), a.Tables.Table("outbox_dead"))).Scan(&waiting, &dead)
	if err != nil {
		return 0, 0, fmt.Errorf("demo: audit: %w", err)
	}
	return waiting, dead, nil
}

// done reports whether a consumer has handled a message.
func (a Audit) done(ctx context.Context, consumer, messageID string) (bool, error) {
	var found bool
	err := a.DB.QueryRowContext(ctx, fmt.Sprintf(`
		SELECT EXISTS (SELECT 1 FROM %s WHERE message_id = $1 AND consumer = $2)`, a.Tables.Table("inbox")), messageID, consumer).
		Scan(&found)
	if err != nil {
		return false, fmt.Errorf("demo: audit: %w", err)
	}
	return found, nil
}

// Missing is an order without all its effects.
type Missing struct {
	Order     string   `json:"order"`
	Consumers []string `json:"consumers"` // consumers whose effect is missing, or "orders" if the order itself is missing
}

// missing returns the orders without all their effects. It checks the orders in the
// tables, and answered, the orders whose clients got a 201.
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
			if b.effects[to.Consumer][id] == 0 {
				m.Consumers = append(m.Consumers, to.Consumer)
			}
		}
		if len(m.Consumers) > 0 {
			incomplete = append(incomplete, m)
		}
	}
	return incomplete
}

// surplus counts the effects beyond the first one of each consumer on each order
// (duplicated), and the effects on orders that do not exist (phantom).
func (b books) surplus() (duplicated, phantom int) {
	for _, effects := range b.effects {
		for order, count := range effects {
			if b.orders[order] == 0 {
				phantom += count
				continue
			}
			duplicated += count - 1
		}
	}
	return duplicated, phantom
}
