package service

import "testing"

func TestMoney(t *testing.T) {
	for _, c := range []struct {
		amount   int64
		currency string
		want     string
	}{
		{1290, "EUR", "12.90 EUR"},
		{5, "EUR", "0.05 EUR"},
		{0, "EUR", "0.00 EUR"},
		{1290, "JPY", "1290 JPY"},
		{0, "JPY", "0 JPY"},
		{1290, "KWD", "1.290 KWD"},
		{7, "KWD", "0.007 KWD"},
	} {
		if got := money(c.amount, c.currency); got != c.want {
			t.Errorf("money(%d, %s) = %q, want %q", c.amount, c.currency, got, c.want)
		}
	}
}
