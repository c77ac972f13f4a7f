package service

import (
	"fmt"
	"strings"
)

// Currencies whose unit is not divided into 100 parts, according to ISO 4217.
const (
	undivided = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
	thousands = "BHD IQD JOD KWD LYD OMR TND"
)

// money returns an amount as text, such as "12.90 EUR". amount is in the
// currency's smallest unit.
func money(amount int64, currency string) string {
	digits := 2
	switch {
	case strings.Contains(undivided, currency):
		digits = 0
	case strings.Contains(thousands, currency):
		digits = 3
	}
	text := fmt.Sprintf("%0*d", digits+1, amount)
	if digits == 0 {
		return text + " " + currency
	}
	point := len(text) - digits
	return text[:point] + "." + text[point:] + " " + currency
}
