package service_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/retry"
)

// The page lists the latest orders and the messages in quarantine. It escapes the texts
// of clients and of errors.
func TestPage(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database, func(c *service.Config) {
			c.Hooks.Handler = func(consumer string, handle once.HandlerFunc) once.HandlerFunc {
				if consumer != "revenue" {
					return handle
				}
				return func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
					return nil, retry.Permanent(errors.New(`the <b>shelf</b> is "empty"`))
				}
			}
		})
		got := r.do(http.MethodGet, "/", "")
		if got.status != http.StatusOK || !strings.Contains(got.body, "No orders yet") ||
			!strings.Contains(got.body, "No message is in quarantine") {
			t.Errorf("%+v", got)
		}
		if placed := r.order("", strings.Replace(anOrder, "Ada", `<script>alert('Ada')</script>`, 1)); placed.status != http.StatusCreated {
			t.Fatalf("%+v", placed)
		}
		testenv.Eventually(t, 3*time.Minute, "the order is shipped, and its revenue is in quarantine", func() bool {
			got = r.do(http.MethodGet, "/", "")
			return strings.Contains(got.body, ">shipped<") && strings.Contains(got.body, ">permanent<")
		})
		for _, part := range []string{
			"&lt;script&gt;alert(&#39;Ada&#39;)&lt;/script&gt;", "the &lt;b&gt;shelf&lt;/b&gt; is &#34;empty&#34;",
			"12.90 EUR", ">revenue<", ">reserved<", ">ready<", `href="/metrics"`, `href="/health/ready"`, `http-equiv="refresh"`,
		} {
			if !strings.Contains(got.body, part) {
				t.Errorf("%s is not in\n%s", part, got.body)
			}
		}
		if strings.Contains(got.body, "<script") || strings.Contains(got.body, "<b>") {
			t.Errorf("not escaped:\n%s", got.body)
		}
		if got.header.Get("Content-Type") != "text/html; charset=utf-8" ||
			!strings.HasPrefix(got.header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("header %v", got.header)
		}
		// The console shows the entry too. Without an operator, it changes nothing.
		entries := r.do(http.MethodGet, "/console/quarantine", "")
		if entries.status != http.StatusOK || !strings.Contains(entries.body, "the &lt;b&gt;shelf&lt;/b&gt;") {
			t.Errorf("%+v", entries)
		}
		if got := r.do(http.MethodGet, "/console/change?do=discard&all=1", ""); got.status != http.StatusForbidden {
			t.Errorf("%+v", got)
		}
	})
}

// If the database cannot be reached, the page reports this, without the details of the
// error.
func TestPageWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	proxy, dsn := testenv.NewProxy(t, testenv.Postgres(t))
	r := start(t, postgres(t, dsn))
	r.ready()
	proxy.Break()
	got := r.do(http.MethodGet, "/", "")
	if got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "The database cannot be read") ||
		!strings.Contains(got.body, ">not ready<") || strings.Contains(got.body, "127.0.0.1") {
		t.Errorf("%+v", got)
	}
	proxy.Restore(t)
	testenv.Eventually(t, 3*time.Minute, "the page is complete again", func() bool {
		return r.do(http.MethodGet, "/", "").status == http.StatusOK
	})
}

// Paths other than / do not return the page.
func TestNoSuchPage(t *testing.T) {
	t.Parallel()
	r := start(t, sqlite(t))
	for _, path := range []string{"/index.html", "/orders", "/metrics"} { // this service has no Metrics
		if got := r.do(http.MethodGet, path, ""); got.status != http.StatusNotFound && got.status != http.StatusMethodNotAllowed {
			t.Errorf("%s: %+v", path, got)
		}
	}
}
