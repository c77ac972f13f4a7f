package service

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

// A request body is either refused with a status and a reason, or it is an order that
// can be stored.
func FuzzBody(f *testing.F) {
	f.Add(`{"shop":"berlin","customer":"Ada","currency":"EUR","lines":[{"sku":"tea","quantity":2,"unit_price":450}]}`)
	f.Add(`{"shop":"b","customer":"\u0000","currency":"EUR","lines":[{}]}`)
	f.Add(`{"shop":"b","customer":"\ud800","currency":"€€€","lines":null}`)
	f.Add(`{"shop":"b","shop":"c","SHOP":"d"}`)
	f.Add(`[[[[`)
	f.Add(`{"lines":[{"sku":"a","quantity":9223372036854775807,"unit_price":1e3}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		if !utf8.ValidString(body) {
			return // readJSON refuses such a body
		}
		var order NewOrder
		if bad := decodeJSON([]byte(body), &order); bad != nil {
			if bad.Status != http.StatusBadRequest || bad.Detail == "" || strings.Contains(bad.Detail, "json:") {
				t.Errorf("%q: %+v", body, bad)
			}
			return
		}
		if errs := order.validate(); len(errs) > 0 {
			for _, e := range errs {
				if e.Field == "" || e.Reason == "" {
					t.Errorf("%q: %+v", body, e)
				}
			}
			return
		}
		if total := order.total(); total < 0 {
			t.Errorf("%q costs %d", body, total)
		}
		text, err := json.Marshal(order)
		if err != nil || strings.Contains(string(text), `\u0000`) {
			t.Errorf("%q is stored as %s, %v", body, text, err)
		}
	})
}
