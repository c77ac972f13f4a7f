package service

import (
	"bytes"
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

// Maximum numbers of rows that the page lists.
const (
	pageOrders  = 20
	pageEntries = 10
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"money":   money,
	"shorten": shorten,
	"suffix":  suffix,
	"failed":  failedAt,
	"clock":   func(t time.Time) string { return t.UTC().Format("02 Jan 15:04:05") },
	"iso":     func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
}).Parse(pageHTML))

// page contains what the page for operators shows.
type page struct {
	Ready   bool
	Problem string // why the other fields are empty, or ""
	Now     time.Time

	Orders      []orderRow
	Quarantined []quarantine.Entry // the oldest entries
	MoreEntries bool               // Quarantined does not contain all entries
}

// orderRow is an order, with the latest status that tracking has stored.
type orderRow struct {
	ID, Shop, Customer, Currency string

	Total    int64
	PlacedAt time.Time
	Status   string // "placed", "paid", "shipped" or "cancelled"
	Stock    string // "pending", "reserved" or "refused"
}

// getPage serves the page for operators. The page shows the latest orders, and the
// messages in quarantine. The template escapes every value, because clients and other
// publishers choose most values.
func (s *Service) getPage(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	status := http.StatusOK
	p, err := s.readPage(ctx)
	if err != nil {
		s.logFailure(r, "Reading the page failed", err)
		status, p.Problem = http.StatusServiceUnavailable, "The database cannot be read. The log says why."
	}
	var body bytes.Buffer
	if err := pageTemplate.Execute(&body, p); err != nil {
		s.logFailure(r, "Writing the page failed", err)
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // fails only if the client has closed the connection
}

func (s *Service) readPage(ctx context.Context) (p page, err error) {
	p.Now = time.Now()
	p.Ready = s.health.Health(ctx).Ready()
	if p.Orders, err = s.latestOrders(ctx); err != nil {
		return p, fmt.Errorf("service: read the latest orders: %w", err)
	}
	quarantined, err := s.Quarantine().List(ctx, operate.Filter{Limit: pageEntries + 1})
	if err != nil {
		return p, err
	}
	p.Quarantined = quarantined.Rows
	if len(p.Quarantined) > pageEntries {
		p.Quarantined, p.MoreEntries = p.Quarantined[:pageEntries], true
	}
	return p, nil
}

// latestOrders returns the most recent orders. They have the highest ids, because ids
// ascend with time.
func (s *Service) latestOrders(ctx context.Context) ([]orderRow, error) {
	tx, err := s.requests.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to commit
	rows, err := tx.QueryContext(ctx, fmt.Sprintf(`
		SELECT id, shop, customer, currency, total, placed_at, COALESCE(tracking.status, 'placed'),
		       COALESCE((SELECT MAX(outcome) FROM reservations WHERE order_id = orders.id), 'pending')
		FROM orders LEFT JOIN tracking ON tracking.order_id = orders.id ORDER BY id DESC LIMIT %d`, pageOrders))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var orders []orderRow
	for rows.Next() {
		var o orderRow
		if err := rows.Scan(&o.ID, &o.Shop, &o.Customer, &o.Currency, &o.Total, &o.PlacedAt, &o.Status, &o.Stock); err != nil {
			return nil, err
		}
		orders = append(orders, o)
	}
	return orders, rows.Err()
}

// shorten returns text, or its beginning if text has more than limit characters.
func shorten(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit-1]) + "…"
}

// suffix returns the last limit characters of an ASCII text, or the whole text if it is
// shorter.
func suffix(text string, limit int) string { return text[max(0, len(text)-limit):] }

// failedAt returns the time at which the last attempt of an entry failed. If no handler
// could be called, it returns the time at which the entry was stored.
func failedAt(e quarantine.Entry) time.Time {
	if e.LastFailedAt.IsZero() {
		return e.CreatedAt
	}
	return e.LastFailedAt
}
