package demo

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/schema"
)

// Audit counts rows in the tables. It does not rely on reports of the service or the
// demo.
type Audit struct {
	Stores  []Store // one for each service, or one for both
	Outside *sql.DB // the database of the bank and of the mail provider
}

// Store is the database of a service.
type Store struct {
	Names      []string // the services whose tables it contains
	DB         *sql.DB
	Tables     schema.Config // names of the library's tables
	Quarantine *quarantine.Entries
}

// of returns the store of a service.
func (a Audit) of(name string) Store {
	i := slices.IndexFunc(a.Stores, func(s Store) bool { return slices.Contains(s.Names, name) })
	return a.Stores[i]
}

// effect says where a consumer's effect is stored, and how to count it.
type effect struct {
	in    string // the service whose tables contain it, or "" for the companies outside
	query string // counts the effects on each order
}

// effects contains the effect of each consumer.
var effects = map[string]effect{
	"payments":      {service.Payments, `SELECT order_id, COUNT(*) AS n FROM payments GROUP BY order_id`},
	"inventory":     {service.Orders, `SELECT order_id, COUNT(*) AS n FROM reservations GROUP BY order_id`},
	"shipping":      {service.Orders, `SELECT order_id, COUNT(*) AS n FROM shipments GROUP BY order_id`},
	"revenue":       {service.Orders, `SELECT order_id, COUNT(*) AS n FROM revenue GROUP BY order_id`},
	"refunds":       {service.Payments, `SELECT order_id, COUNT(*) AS n FROM refunds GROUP BY order_id`},
	"cancellations": {service.Orders, `SELECT order_id, COUNT(*) AS n FROM cancellations GROUP BY order_id`},
	"notifications": {"", `SELECT order_id, COUNT(*) AS n FROM mail_provider GROUP BY order_id`},
	"history":       {service.Orders, `SELECT order_id, COUNT(*) AS n FROM history GROUP BY order_id`},
	"tracking":      {service.Orders, `SELECT order_id, 1 AS n FROM tracking WHERE status IN ('shipped', 'cancelled')`},
}

// expected returns how many effects a consumer has on an order that was shipped or
// cancelled.
func expected(consumer string, refused bool) int {
	switch {
	case consumer == "history":
		return 3 // placed, paid, and the end
	case consumer == "notifications" && refused:
		return 2 // the receipt and the refund
	case consumer == "shipping" || consumer == "revenue":
		return count(!refused)
	case consumer == "refunds" || consumer == "cancellations":
		return count(refused)
	}
	return 1
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// db returns the database that contains an effect.
func (a Audit) db(e effect) *sql.DB {
	if e.in == "" {
		return a.Outside
	}
	return a.of(e.in).DB
}

// read counts the orders, and the effects of each consumer on each order.
func (a Audit) read(ctx context.Context) (b books, err error) {
	orders := a.of(service.Orders).DB
	if b.orders, err = counts(ctx, orders, `SELECT id, COUNT(*) FROM orders GROUP BY id`); err != nil {
		return b, err
	}
	b.refused, err = counts(ctx, orders, `
		SELECT order_id, COUNT(*) FROM order_lines WHERE sku NOT IN (SELECT sku FROM stock WHERE on_hand > 0) GROUP BY order_id`)
	if err != nil {
		return b, err
	}
	b.effects = map[string]map[string]int{}
	for consumer, e := range effects {
		if b.effects[consumer], err = counts(ctx, a.db(e), e.query); err != nil {
			return b, err
		}
	}
	return b, a.sums(ctx, &b)
}

// counts executes a query whose rows consist of an order id and a number, and returns
// the numbers by order id.
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

// progress returns the number of all effects so far.
func (a Audit) progress(ctx context.Context) (int, error) {
	total := 0
	for _, e := range effects {
		var n int
		if err := a.db(e).QueryRowContext(ctx, `SELECT COALESCE(SUM(n), 0) FROM (`+e.query+`) AS e`).Scan(&n); err != nil {
			return 0, fmt.Errorf("demo: audit: %w", err)
		}
		total += n
	}
	return total, nil
}

// underWay counts the messages that a forwarder has not sent or a consumer has not
// handled, and the dead letters.
func (a Audit) underWay(ctx context.Context) (waiting, dead int, err error) {
	for _, s := range a.Stores {
		var w, d int
		err = s.DB.QueryRowContext(ctx, fmt.Sprintf(`
			SELECT (SELECT COUNT(*) FROM %s) + (SELECT COUNT(*) FROM %s WHERE state IN ('waiting', 'held')), (SELECT COUNT(*) FROM %s)`,
			s.Tables.Table("outbox"), s.Tables.Table("parked"), s.Tables.Table("outbox_dead"))).Scan(&w, &d)
		if err != nil {
			return 0, 0, fmt.Errorf("demo: audit: %w", err)
		}
		waiting, dead = waiting+w, dead+d
	}
	return waiting, dead, nil
}

// done reports whether a consumer has handled a message.
func (a Audit) done(ctx context.Context, consumer, messageID string) (found bool, err error) {
	for _, s := range a.Stores {
		if found {
			break
		}
		err = s.DB.QueryRowContext(ctx, fmt.Sprintf(`
			SELECT EXISTS (SELECT 1 FROM %s WHERE message_id = $1 AND consumer = $2)`, s.Tables.Table("inbox")), messageID, consumer).
			Scan(&found)
		if err != nil {
			return false, fmt.Errorf("demo: audit: %w", err)
		}
	}
	return found, nil
}
