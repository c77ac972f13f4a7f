package parkedrows

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestErrorTypeIsThatOfTheInnermostError(t *testing.T) {
	t.Parallel()
	wrapped := fmt.Errorf("b: %w", fmt.Errorf("a: %w", &LargeError{}))
	for err, want := range map[error]string{
		io.EOF:                "*errors.errorString",
		wrapped:               "*parkedrows.LargeError",
		errors.Join(io.EOF):   "*errors.joinError",
		knownError{"x", "*T"}: "*T",
		fmt.Errorf("a: %w", knownError{"x", "*T"}): "*T",
	} {
		if got := errorType(err); got != want {
			t.Errorf("the type of %q is %s, want %s", err, got, want)
		}
	}
}

// A text is shortened only as far as necessary, and never within a character.
func TestCleanKeepsAsMuchAsTheColumnStores(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"abü", 4, "abü"},
		{"abü", 3, "ab"},
		{"üü", 3, "ü"},
		{"ü", 1, ""},
		{"a\x00b\xffc", 20, "a\uFFFDb\uFFFDc"},
	} {
		if got := Clean(c.text, c.limit); got != c.want {
			t.Errorf("Clean(%q, %d) is %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}

// If the encoding of the database cannot store a text, only characters outside of ASCII
// are replaced, and only in strings.
func TestTextOutsideOfASCIIIsEscaped(t *testing.T) {
	t.Parallel()
	got := inASCII("a\x7f", "\u0080日", 7, []byte("日"))
	want := []any{"a\x7f", "<U+0080><U+65E5>", 7}
	if !slices.Equal(got[:3], want) || string(got[3].([]byte)) != "日" {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNameThatCannotBeStoredIsRefused(t *testing.T) {
	t.Parallel()
	kit.Check(t, CheckName(strings.Repeat("x", 255)))
	for _, name := range []string{strings.Repeat("x", 256), "a\x00", "a\xff"} {
		if err := CheckName(name); err == nil || !strings.Contains(err.Error(), "longer than 255 bytes, or no text") {
			t.Errorf("%.10q: %v", name, err)
		}
	}
}

// A text is stored in ASCII only if the encoding of the database cannot store it
// unchanged.
func TestTextThatCannotBeStoredIsStoredInASCII(t *testing.T) {
	t.Parallel()
	unstorable := &pq.Error{Code: "22P05"} // untranslatable_character
	for name, c := range map[string]struct {
		errs []error
		want string
	}{
		"it can be stored":     {[]error{nil}, "日"},
		"it cannot":            {[]error{unstorable, nil}, "日 <U+65E5>"},
		"another failure":      {[]error{io.EOF}, "日"},
		"it fails in any form": {[]error{unstorable, unstorable}, "日 <U+65E5>"},
	} {
		var stored []string
		err := withASCIIFallback(func(encode encoder) error {
			stored = append(stored, encode("日")[0].(string))
			return c.errs[len(stored)-1]
		})
		if got := strings.Join(stored, " "); got != c.want || err != c.errs[len(c.errs)-1] { //nolint:errorlint // exactly this error
			t.Errorf("%s: stored %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// rabbitText is the text of a rabbit.PublishError.
func rabbitText(kind, id, topic, exchange, key, rest string) string {
	return "rabbit: " + kind + ": message " + strconv.Quote(id) + ", topic " + strconv.Quote(topic) + ", exchange " + strconv.Quote(exchange) +
		", routing key " + strconv.Quote(key) + rest
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func jsonText(body string, into any) string { return errorText(json.Unmarshal([]byte(body), into)) }

func atoiText(s string) string { _, err := strconv.Atoi(s); return errorText(err) }

func intText(s string, bits int) string {
	_, err := strconv.ParseInt(s, 10, bits)
	return errorText(err)
}

func timeText(s string) string { _, err := time.Parse(time.RFC3339, s); return errorText(err) }

func urlText(u, text string) string {
	return (&url.Error{Op: "Get", URL: u, Err: errors.New(text)}).Error()
}

func netText(op string, local, remote int, text string) string {
	err := &net.OpError{Op: op, Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(remote)), Port: 5432}, Err: errors.New(text)}
	if local > 0 {
		err.Source = &net.TCPAddr{IP: net.IPv4(10, 0, 1, 7), Port: local}
	}
	return err.Error()
}

// causes contains the causes of errors, and for each cause the texts of several errors.
// The texts of the same cause have one fingerprint, and different causes have different
// fingerprints.
var causes = map[string][]string{
	// Package rabbit.
	"no route": {
		rabbitText("returned as unroutable", uuid.NewString(), "orders", "orders", "orders.4711",
			": 312: NO_ROUTE; no queue receives the message"),
		rabbitText("returned as unroutable", "01JDRK5T9Z3N7Q4W8Y2X6V1B0C", "orders", "orders", "orders.4712",
			": 312: NO_ROUTE; no queue receives the message"),
		rabbitText("returned as unroutable", "order-17", "orders", "orders", "orders.acme", ": 312: NO_ROUTE; no queue receives the message"),
	},
	"no route, another exchange": {
		rabbitText("returned as unroutable", "a", "orders", "bills", "orders.1", ": 312: NO_ROUTE; no queue receives the message"),
	},
	"no route, another version": {
		rabbitText("returned as unroutable", "a", "orders", "orders.v2", "orders.1", ": 312: NO_ROUTE; no queue receives the message"),
	},
	"no route, another topic": {
		rabbitText("returned as unroutable", "a", "bills", "orders", "orders.1", ": 312: NO_ROUTE; no queue receives the message"),
	},
	"nacked": {
		rabbitText("nacked by the broker", "kVzMb7rJXcWtQyLs3HfN9d", "orders", "orders", "k", "; a queue of this exchange is full"),
		rabbitText("nacked by the broker", "kVzMbarJXcWtQyLsbHfNed", "orders", "orders", "k", "; a queue of this exchange is full"),
	},
	"no exchange": {
		rabbitText("refused", "1", "t", "orders", "t", ": 404: NOT_FOUND - no exchange 'orders' in vhost '/'; declare the exchange"),
		rabbitText("refused", uuid.NewString(), "t", "orders", "t", ": 404: NOT_FOUND - no exchange 'orders' in vhost '/'; declare the exchange"),
	},
	"no right": {rabbitText("refused", "1", "t", "orders", "t",
		": 403: ACCESS_REFUSED - write access to exchange 'orders' in vhost '/' refused for user 'guest'; grant the user the missing right")},
	"another argument": {rabbitText("refused", "1", "t", "orders", "t",
		": 406: PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'orders' in vhost '/': received 'false' but current is 'true'")},
	"another type": {rabbitText("refused", "1", "t", "orders", "t",
		": 406: PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'orders' in vhost '/': received 'fanout' but current is 'topic'")},
	"message too large": {
		rabbitText("too large", "1", "t", "orders", "t",
			": 406: PRECONDITION_FAILED - message size 16777217 is larger than configured max size 16777216"),
		rabbitText("too large", "2", "t", "orders", "t",
			": 406: PRECONDITION_FAILED - message size 20123456 is larger than configured max size 16777216"),
	},
	"headers too large": {
		rabbitText("too large", "1", "t", "orders", "t", ": headers of 131201 bytes; the limit is 131064"),
		rabbitText("too large", "b", "t", "orders", "t", ": headers of 9131201 bytes; the limit is 131064"),
	},
	"routing key too large": {rabbitText("too large", "1", "t", "orders", "t", ": routing key of 300 bytes; the limit is 255")},
	"amqp: no queue": {
		`Exception (404) Reason: "NOT_FOUND - no queue 'orders.bills' in vhost '/'"`,
		`handle 17: Exception (404) Reason: "NOT_FOUND - no queue 'orders.bills' in vhost '/'"`[len("handle 17: "):],
	},
	"amqp: no other queue": {`Exception (404) Reason: "NOT_FOUND - no queue 'orders.stock' in vhost '/'"`},
	"amqp: locked queue":   {`Exception (405) Reason: "NOT_FOUND - no queue 'orders.bills' in vhost '/'"`},
	"amqp: drawn queue": {
		`Exception (404) Reason: "NOT_FOUND - no queue 'amq.gen-JzTY20BRgKO-HjmUJj0wLg' in vhost '/'"`,
		`Exception (404) Reason: "NOT_FOUND - no queue 'amq.gen-aB3dE6gH9kL-mN2pQr5tUw' in vhost '/'"`,
	},

	// lib/pq and pgx.
	"pq: unique":      {`pq: duplicate key value violates unique constraint "orders_pkey" (23505)`},
	"pq: another key": {`pq: duplicate key value violates unique constraint "orders_email_key" (23505)`},
	"pq: foreign key": {`pq: insert or update on table "bills" violates foreign key constraint "bills_order_fk" (23503)`},
	"pq: no such value": {
		`pq: invalid input syntax for type integer: "abc" (22P02)`,
		`pq: invalid input syntax for type integer: "12x" (22P02)`,
	},
	"pq: no such uuid":     {`pq: invalid input syntax for type uuid: "abc" (22P02)`},
	"pq: null":             {`pq: null value in column "total" of relation "orders" violates not-null constraint (23502)`},
	"pq: another null":     {`pq: null value in column "price" of relation "orders" violates not-null constraint (23502)`},
	"pq: null, other line": {`pq: null value in column "line2" of relation "orders" violates not-null constraint (23502)`},
	"pq: null, a line":     {`pq: null value in column "line1" of relation "orders" violates not-null constraint (23502)`},
	"pq: deadlock":         {`pq: deadlock detected (40P01)`},
	"pq: serialization":    {`pq: could not serialize access due to concurrent update (40001)`},
	"pq: same text":        {`pq: could not serialize access due to concurrent update (40002)`},
	"pq: no column":        {`pq: column "totl" does not exist at column 8 (42703)`, `pq: column "totl" does not exist at column 12 (42703)`},
	"pgx: unique": {
		"ERROR: duplicate key value violates unique constraint \"orders_pkey\" (SQLSTATE 23505)\nDETAIL: Key (id)=(42) already exists.",
		"ERROR: duplicate key value violates unique constraint \"orders_pkey\" (SQLSTATE 23505)\nDETAIL: Key (id)=(bob) already exists.",
	},
	"pgx: another key": {`ERROR: duplicate key value violates unique constraint "orders_email_key" (SQLSTATE 23505)`},
	"pgx: check": {
		"ERROR: new row for relation \"orders\" violates check constraint \"positive\" (SQLSTATE 23514)" +
			" DETAIL: Failing row contains (42, bob, -3).",
		"ERROR: new row for relation \"orders\" violates check constraint \"positive\" (SQLSTATE 23514)" +
			" DETAIL: Failing row contains (43, eve's, -1).",
	},
	"pgx: another code": {`ERROR: new row for relation "orders" violates check constraint "positive" (SQLSTATE 23515)`},
	"partition": {
		`ERROR: relation "events_2026_11_28" does not exist (SQLSTATE 42P01)`,
		`ERROR: relation "events_2026_12_01" does not exist (SQLSTATE 42P01)`,
	},
	"another relation": {`ERROR: relation "orders" does not exist (SQLSTATE 42P01)`},
	"mysql": {
		"Error 1062 (23000): Duplicate entry '42' for key 'orders.PRIMARY'",
		"Error 1062 (23000): Duplicate entry 'bob' for key 'orders.PRIMARY'",
	},
	"mysql, other key": {"Error 1062 (23000): Duplicate entry '42' for key 'orders.email'"},
	"mysql, other":     {"Error 1213 (40001): Deadlock found when trying to get lock; try restarting transaction"},

	// SQLite.
	"sqlite: unique":      {`constraint failed: UNIQUE constraint failed: orders.id (2067)`},
	"sqlite: primary key": {`constraint failed: UNIQUE constraint failed: orders.id (1555)`},
	"sqlite: another":     {`constraint failed: UNIQUE constraint failed: orders.line1 (2067)`},
	"sqlite: a column":    {`constraint failed: UNIQUE constraint failed: orders.line2 (2067)`},
	"sqlite: locked":      {`database is locked (5) (SQLITE_BUSY)`},
	"sqlite: write":       {`disk I/O error (778)`},
	"sqlite: read":        {`disk I/O error (266)`},

	// Networks.
	"refused": {
		`dial tcp 127.0.0.1:5432: connect: connection refused`, `dial tcp 10.0.3.4:5433: connect: connection refused`,
		`dial tcp [::1]:5432: connect: connection refused`, netText("dial", 0, 9, "connect: connection refused"),
	},
	"dial timeout": {netText("dial", 0, 1, "i/o timeout"), netText("dial", 0, 2, "i/o timeout")},
	"read timeout": {netText("read", 51234, 1, "i/o timeout"), netText("read", 60001, 2, "i/o timeout")},
	"reset":        {netText("read", 51234, 1, "read: connection reset by peer"), netText("read", 9, 1, "read: connection reset by peer")},
	"no host":      {`dial tcp: lookup db.shop on 10.0.0.2:53: no such host`, `dial tcp: lookup db.shop on 10.0.0.3:53: no such host`},
	"other host":   {`dial tcp: lookup bills.shop on 10.0.0.2:53: no such host`},
	"context":      {`context deadline exceeded`},
	"cancelled":    {`context canceled`},
	"url": {
		urlText("http://bills.shop:8080/orders/42?trace=1", "context deadline exceeded"),
		urlText("http://bills.shop:8081/orders/9f2c-17?trace=2", "context deadline exceeded"),
	},
	"url, other host":   {urlText("http://stock.shop/orders/42", "context deadline exceeded")},
	"url, other path":   {urlText("http://bills.shop/refunds/42", "context deadline exceeded")},
	"url, other reason": {urlText("http://bills.shop/orders/42", "EOF")},
	"certificate": {
		`tls: failed to verify certificate: x509: certificate has expired or is not yet valid:` +
			` current time 2026-11-28T04:54:55Z is after 2026-11-27T00:00:00Z`,
		`tls: failed to verify certificate: x509: certificate has expired or is not yet valid:` +
			` current time 2026-11-29T14:04:05+01:00 is after 2026-11-27T00:00:00Z`,
	},
	"HTTP 503":                {`order 17: unexpected status 503`, `order 18: unexpected status 503`},
	"HTTP 500":                {`order 17: unexpected status 500`},
	"404":                     {`server: 404 Not Found`},
	"410":                     {`server: 410 Gone`},
	"gateway":                 {`the gateway answered 502 for order 17`, `the gateway answered 502 for order 99`},
	"gateway, another answer": {`the gateway answered 504 for order 17`},

	// encoding/json, strconv, time.
	"json: character": {jsonText(`{"a":x}`, new(any)), jsonText(`{"a":y}`, new(any)), jsonText(`'`, new(any))},
	"json: after key": {jsonText(`{"a"x}`, new(any)), jsonText(`{"a"'}`, new(any)), jsonText(`{"a"1}`, new(any))},
	"json: end":       {jsonText(`{"a":`, new(any))},
	"json: field": {
		jsonText(`{"A":"x"}`, new(struct{ A int })), jsonText(`{"A":"y"}`, new(struct{ A int })),
	},
	"json: another field": {jsonText(`{"B":"x"}`, new(struct{ B int }))},
	"json: another type":  {jsonText(`{"A":"x"}`, new(struct{ A int8 }))},
	"json: overflow":      {jsonText(`{"A":1000}`, new(struct{ A int8 })), jsonText(`{"A":300}`, new(struct{ A int8 }))},
	"json: line 1":        {`json: cannot unmarshal string into Go struct field Order.line1 of type int`},
	"json: line 2":        {`json: cannot unmarshal string into Go struct field Order.line2 of type int`},
	"json: unknown field": {`json: unknown field "colour"`},
	"json: other field":   {`json: unknown field "weight"`},
	"validator":           {`Key: 'Order.Email' Error:Field validation for 'Email' failed on the 'required' tag`},
	"validator, other":    {`Key: 'Order.Email' Error:Field validation for 'Email' failed on the 'email' tag`},
	"validator, a field":  {`Key: 'Order.Phone' Error:Field validation for 'Phone' failed on the 'required' tag`},
	"strconv: syntax":     {atoiText("12x"), atoiText("bob"), atoiText("it's")},
	"strconv: range":      {intText("300", 8), intText("-999", 8)},
	"time":                {timeText("2026-11-28"), timeText("2026-11-28 04:00")},

	// Handlers.
	"ids": {
		`order 17: 'x' is "y" at 0xff, 550e8400-e29b-41d4-a716-446655440000`, `order 4: 'z' is "" at 0x1, 6ba7b810-9dad-11d1-80b4-00c04fd430c8`,
	},
	"another word":  {`item 17: 'x' is "y" at 0xff, 550e8400-e29b-41d4-a716-446655440000`},
	"apostrophes":   {`can't find customer 'bob'`, `can't find customer 'O'Brien'`},
	"apostrophe":    {`didn't find customer 'bob'`},
	"ulid":          {`order 01JDRK5T9Z3N7Q4W8Y2X6V1B0C is closed`, `order 01JDRK5TA03N7Q4W8Y2X6V1B0D is closed`},
	"hash":          {`blob 9fd80eaee259311e is missing`, `blob e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 is missing`},
	"order numbers": {`order-17 (B2C) costs 12.50`, `order-4711 (B2C) costs 1,200.00`, `order-3 (B2C) costs -3.1`},
	"list":          {`orders [1 2 3] are closed`, `orders [17] are closed`},
	"times": {
		`closed on Sat, 28 Nov 2026 04:54:55 GMT after 1m30s`, `closed on Tue, 1 Dec 2026 14:00:01 GMT after 250ms`,
	},
	"mail":         {`no account for bob@example.com`, `no account for eve.smith+x@mail.example.org`},
	"sha256":       {`sha256 of the file does not match`},
	"sha512":       {`sha512 of the file does not match`},
	"exit":         {`exit status 1`},
	"another exit": {`exit status 2`},
	"no text":      {``},
}

// A failure group contains all failures with one cause, and no failure with another
// cause.
func TestTrap112_FailuresOfOneCauseHaveOneFingerprint(t *testing.T) {
	t.Parallel()
	known := map[string]string{}
	for name, texts := range causes {
		first := Fingerprint(Cause{Reason: "failed", Text: texts[0]})
		for _, text := range texts[1:] {
			if Fingerprint(Cause{Reason: "failed", Text: text}) != first {
				t.Errorf("%s:\n %s\nhas another fingerprint than\n %s\nthe common parts are\n %s\n %s", name, text, texts[0],
					common(text, ""), common(texts[0], ""))
			}
		}
		if other, ok := known[first]; ok {
			t.Errorf("%q and %q have one fingerprint: %s", name, other, common(texts[0], ""))
		}
		known[first] = name
	}
	one := Cause{Consumer: "c", Reason: "r", ErrorType: "T", Text: "message bob is late", MessageID: "bob"}
	for _, other := range []Cause{
		{Consumer: "d", Reason: "r", ErrorType: "T", Text: one.Text},
		{Consumer: "c", Reason: "s", ErrorType: "T", Text: one.Text},
		{Consumer: "c", Reason: "r", ErrorType: "U", Text: one.Text},
	} {
		if Fingerprint(other) == Fingerprint(one) {
			t.Errorf("%+v has the fingerprint of %+v", other, one)
		}
	}
	// An id that looks like a word is known from the message.
	alice := Cause{Reason: "r", Text: "message alice is late", MessageID: "alice"}
	carol := Cause{Reason: "r", Text: "message carol is late", MessageID: "carol"}
	if Fingerprint(alice) != Fingerprint(carol) {
		t.Error("the ids of messages are in their fingerprints")
	}
}
