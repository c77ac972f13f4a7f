package service

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// NewOrder is the body of a request to place an order.
type NewOrder struct {
	Shop     string `json:"shop"`
	Customer string `json:"customer"`
	Currency string `json:"currency"`
	Lines    []Line `json:"lines"`
}

// Line is one item of an order.
type Line struct {
	SKU       string `json:"sku"`
	Quantity  int64  `json:"quantity"`
	UnitPrice int64  `json:"unit_price"` // in the currency's smallest unit
}

// Order is an order in a response.
type Order struct {
	ID string `json:"id"`
	NewOrder

	Total    int64     `json:"total"`
	PlacedAt time.Time `json:"placed_at"`
}

// Limits of an order. The total of an order within these limits fits into an int64.
const (
	maxName      = 200 // in characters
	maxSKU       = 64
	maxLines     = 100
	maxQuantity  = 10_000
	maxUnitPrice = 1_000_000_000
)

// FieldError says why a field of a request is invalid.
type FieldError struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// validate returns an error for each field that is invalid.
func (o NewOrder) validate() []FieldError {
	var errs []FieldError
	check := func(field, reason string) {
		if reason != "" {
			errs = append(errs, FieldError{Field: field, Reason: reason})
		}
	}
	check("shop", textProblem(o.Shop, maxName))
	check("customer", textProblem(o.Customer, maxName))
	if len(o.Currency) != 3 || strings.Trim(o.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		check("currency", "must be three capital letters, such as EUR")
	}
	if len(o.Lines) == 0 || len(o.Lines) > maxLines {
		check("lines", fmt.Sprintf("must be 1 to %d, not %d", maxLines, len(o.Lines)))
		return errs
	}
	for i, line := range o.Lines {
		field := fmt.Sprintf("lines[%d].", i)
		check(field+"sku", textProblem(line.SKU, maxSKU))
		check(field+"quantity", rangeProblem(line.Quantity, 1, maxQuantity))
		check(field+"unit_price", rangeProblem(line.UnitPrice, 0, maxUnitPrice))
	}
	return errs
}

// total returns the sum of all lines, in the currency's smallest unit.
func (o NewOrder) total() int64 {
	var total int64
	for _, line := range o.Lines {
		total += line.Quantity * line.UnitPrice
	}
	return total
}

// textProblem returns why a text is invalid, or "" if it is valid. Control characters
// are invalid, because PostgreSQL cannot store NUL, and people cannot read the other
// characters.
func textProblem(text string, limit int) string {
	switch {
	case strings.TrimSpace(text) == "":
		return "is missing"
	case utf8.RuneCountInString(text) > limit:
		return fmt.Sprintf("must be at most %d characters long", limit)
	case strings.ContainsFunc(text, unicode.IsControl):
		return "must not contain control characters"
	}
	return ""
}

// rangeProblem returns why n is invalid, or "" if it is valid.
func rangeProblem(n, least, most int64) string {
	if n < least || n > most {
		return fmt.Sprintf("must be %d to %d, not %d", least, most, n)
	}
	return ""
}
