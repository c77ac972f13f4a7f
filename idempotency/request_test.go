package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/test/kit"
)

// sent is a request as a client sends it.
type sent struct {
	method, target, body string
	header               http.Header
	chunked              bool
}

func (s sent) over(ctx context.Context, server *httptest.Server) (*http.Response, error) {
	var body io.Reader = strings.NewReader(s.body)
	if s.chunked {
		body = struct{ io.Reader }{body}
	}
	r, err := http.NewRequestWithContext(ctx, s.method, server.URL+s.target, body)
	if err != nil {
		return nil, err
	}
	r.Header = s.header.Clone()
	r.Header.Set("Idempotency-Key", "k1")
	return server.Client().Do(r)
}

func form(method string) sent {
	return sent{method: method, target: "/orders?from=web", header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}}
}

func multipart(value string) sent {
	s := form(http.MethodPost)
	s.header.Set("Content-Type", "multipart/form-data; boundary=b")
	s.body = "--b\r\nContent-Disposition: form-data; name=\"tea\"\r\n\r\n" + value + "\r\n--b--\r\n"
	return s
}

// before returns a handler that calls f before next.
func before(f func(w http.ResponseWriter, r *http.Request)) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f(w, r)
			next.ServeHTTP(w, r)
		})
	}
}

// strip strips /v1 and /v2.
func strip(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/", http.StripPrefix("/v1", next))
	mux.Handle("/v2/", http.StripPrefix("/v2", next))
	return mux
}

// A middleware before the handler may have parsed the body, stripped the path or decoded
// it. A request is still never answered with the answer of a different one. A
// middleware that takes the body away is reported at the first request.
func TestTrap110_StoredAnswerIsNotForAnotherRequest(t *testing.T) {
	t.Parallel()
	none := before(func(http.ResponseWriter, *http.Request) {})
	parse := before(func(_ http.ResponseWriter, r *http.Request) { _ = r.FormValue("customer") })
	again := before(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		_ = r.ParseForm()
		r.Body = io.NopCloser(strings.NewReader(string(body)))
	})
	method := before(func(_ http.ResponseWriter, r *http.Request) {
		if other := r.Header.Get("X-Http-Method-Override"); other != "" {
			r.Method = other
		}
	})
	post, large := form(http.MethodPost), strings.Repeat(" ", 100_000)
	with := func(s sent, change func(s *sent)) sent {
		s.header = s.header.Clone()
		change(&s)
		return s
	}
	body := func(text string) func(*sent) { return func(s *sent) { s.body = text } }
	chunks := func(text string) func(*sent) { return func(s *sent) { s.body, s.chunked = text, true } }
	to := func(target string) func(*sent) { return func(s *sent) { s.target = target } }
	header := func(name, value string) func(*sent) { return func(s *sent) { s.header.Set(name, value) } }
	for name, c := range map[string]struct {
		outer         func(http.Handler) http.Handler
		first, second sent
		lost          bool // whether the middleware takes the body away
	}{
		"parsed form":          {parse, with(post, body("a=1")), with(post, body("a=2")), true},
		"parsed form, chunked": {parse, with(post, chunks("a=1")), with(post, chunks("a=2")), true},
		"parsed form, patch":   {parse, with(form(http.MethodPatch), body("a=1")), with(form(http.MethodPatch), body("a=2")), true},
		"parsed multipart":     {parse, multipart("1"), multipart("2"), true},
		"parsed multipart, chunked": {
			parse, with(multipart("1"), func(s *sent) { s.chunked = true }), with(multipart("2"), func(s *sent) { s.chunked = true }), true,
		},
		"multipart reader": {before(func(_ http.ResponseWriter, r *http.Request) {
			if parts, err := r.MultipartReader(); err == nil {
				_, _ = parts.NextPart()
			}
		}), multipart("1"), multipart("2"), true},
		"multipart reader, large and chunked": {before(func(_ http.ResponseWriter, r *http.Request) {
			if parts, err := r.MultipartReader(); err == nil { // reads the beginning, in which the two bodies differ
				_, _ = parts.NextPart()
			}
		}), with(multipart("1"+large), func(s *sent) { s.chunked = true }), with(multipart("2"+large), func(s *sent) { s.chunked = true }), true},
		"decoded JSON": {
			before(func(_ http.ResponseWriter, r *http.Request) { _ = json.NewDecoder(r.Body).Decode(new(any)) }),
			with(post, body(`{"a":1}`)), with(post, body(`{"a":2}`)), true,
		},
		"a part is read": {
			before(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 3)) }),
			with(post, body("a=1&b=1")), with(post, body("a=2&b=1")), true,
		},
		"another body": {
			before(func(_ http.ResponseWriter, r *http.Request) {
				r.Body = io.NopCloser(strings.NewReader("a longer body"))
			}),
			with(post, body("a=1")), with(post, body("a=2")), true,
		},
		"closed": {
			before(func(_ http.ResponseWriter, r *http.Request) { _ = r.Body.Close() }), with(post, body("a=1")), with(post, body("a=2")), true,
		},
		"put back":          {again, with(post, body("a=1")), with(post, body("a=2")), false},
		"put back, chunked": {again, with(post, chunks("a=1")), with(post, chunks("a=2")), false},
		"limited": {
			before(func(w http.ResponseWriter, r *http.Request) { r.Body = http.MaxBytesReader(w, r.Body, 9) }),
			with(post, body("a=1")), with(post, body("a=2")), false,
		},
		"form of a query": {parse, form(http.MethodGet), with(form(http.MethodGet), to("/orders?from=app")), false},
		"stripped prefix": {strip, with(post, to("/v1/orders")), with(post, to("/v2/orders")), false},
		"cut path": {
			before(func(_ http.ResponseWriter, r *http.Request) { r.URL.Path, r.URL.RawQuery = "/", "" }),
			with(post, to("/orders/1")), with(post, to("/orders/2")), false,
		},
		"cut query": {
			before(func(_ http.ResponseWriter, r *http.Request) { r.URL.RawQuery = "" }),
			with(post, to("/orders?n=1")), with(post, to("/orders?n=2")), false,
		},
		"escaped slash":  {none, with(post, to("/orders/a%2Fb")), with(post, to("/orders/a/b")), false},
		"escaped letter": {none, with(post, to("/orders/%61")), with(post, to("/orders/a")), false},
		"method is changed": {
			method, with(post, header("X-Http-Method-Override", "PUT")), with(post, header("X-Http-Method-Override", "DELETE")), false,
		},
		"method of a header": {
			none, with(post, header("X-Http-Method-Override", "PUT")), with(post, header("X-Http-Method-Override", "DELETE")), false,
		},
		"encoding": {none, with(post, body("tea")), with(with(post, body("tea")), header("Content-Encoding", "br")), false},
		"range":    {none, with(post, header("Content-Range", "bytes 0-2/6")), with(post, header("Content-Range", "bytes 3-5/6")), false},
		"two methods": {
			none, with(post, func(s *sent) { s.header["X-Http-Method"] = []string{"A", "BC"} }),
			with(post, func(s *sent) { s.header["X-Http-Method"] = []string{"AB", "C"} }), false,
		},
		"second type":  {none, post, with(post, func(s *sent) { s.header.Add("Content-Type", "text/plain") }), false},
		"no body":      {none, with(post, body("tea")), post, false},
		"head and get": {none, form(http.MethodGet), form(http.MethodHead), false},
	} {
		b := newBench(t, kit.SQLite(t), nil)
		server := httptest.NewServer(c.outer(b.handler))
		var got []int
		var replayed []string
		for _, s := range []sent{c.first, c.first, c.second} {
			response, err := s.over(t.Context(), server)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			response.Body.Close()
			got, replayed = append(got, response.StatusCode), append(replayed, response.Header.Get(idempotency.Replayed))
		}
		server.Close()
		want := [3]int{http.StatusCreated, http.StatusCreated, http.StatusUnprocessableEntity}
		if c.lost {
			want = [3]int{http.StatusInternalServerError, http.StatusInternalServerError, http.StatusInternalServerError}
		}
		if [3]int(got) != want || (replayed[1] == "true") == c.lost {
			t.Errorf("%s: statuses are %v, want %v; replayed %q", name, got, want, replayed)
		}
		if logged := b.logs.Captured()[watermill.ErrorLogLevel]; (len(logged) > 0) != c.lost ||
			c.lost && !strings.Contains(logged[0].Err.Error(), "put the middleware inside the handler") {
			t.Errorf("%s: log has %v", name, logged)
		}
	}
}

// The same request is recognized with and without a host in its target, and if no server
// has read it.
func TestTargetMayHaveAHost(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	for i, target := range []string{"/orders?from=web", "http://shop.example/orders?from=web", ""} {
		r := request(t.Context(), "tea", "Idempotency-Key: k1")
		r.RequestURI = target
		w := httptest.NewRecorder()
		b.handler.ServeHTTP(w, r)
		if got := w.Header().Get(idempotency.Replayed); w.Code != http.StatusCreated || (got == "true") != (i > 0) {
			t.Errorf("%q: status is %d, replayed %q", target, w.Code, got)
		}
	}
	r := request(t.Context(), "tea", "Idempotency-Key: k1")
	r.RequestURI = "//shop.example/orders?from=web" // a path
	w := httptest.NewRecorder()
	if b.handler.ServeHTTP(w, r); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("another path: the answer is %s", text(w))
	}
}

func TestIDOfAClientMustBeStorable(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		client := ""
		b := newBench(t, db, func(c *idempotency.Config) { c.Client = func(*http.Request) string { return client } })
		for _, c := range []struct{ id, problem string }{
			{"\xff", "it is not valid UTF-8"},
			{"a\x00b", "it has a zero byte"},
			{strings.Repeat("\u00fc", 600), "it has 1200 bytes, the limit is 1024"},
		} {
			client = c.id
			b.expectAnswer("400: The id of the client is not valid: "+c.problem, "tea", "Idempotency-Key: k1")
		}
		b.expectAnswer("201 placed tea at /orders/1", "tea") // nothing is stored for a request without a key
		client = strings.Repeat("c", 1024)
		b.expectAnswer("201 placed tea at /orders/1", "tea", "Idempotency-Key: "+strings.Repeat("k", 255))
		b.expect(2, 2, 1)
	})
}

// Trap 117. If the database ignores a change of a key without an error, the request
// fails and has no effect. Otherwise a repeated request would take effect again.
func TestTrap117_NoEffectWithoutTheRowOfTheKey(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		for _, operation := range []string{"INSERT", "UPDATE"} {
			allow := kit.Ignore(t, db.DB, db.Dialect, operation, "once_idempotency_keys", "1 = 1")
			if got := b.send("a", "Idempotency-Key: k"); !strings.HasPrefix(got, "5") {
				t.Errorf("%s is ignored: %s, want %d", operation, got, http.StatusInternalServerError)
			}
			b.expect(0, 0, 0)
			allow()
		}
		b.send("a", "Idempotency-Key: k")
		b.expect(1, 1, 1)
	})
}

// The stored answer is the final one. An informational answer is not stored, and neither
// are headers that are different for each response. An answer may have as many bytes as
// Config.MaxAnswer allows.
func TestStoredAnswerIsTheFinalOne(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), func(c *idempotency.Config) { c.MaxAnswer = 10 })
	b.handler = b.keys.Handler(func(w http.ResponseWriter, _ *http.Request, _ *sql.Tx) error {
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Date", "yesterday")
		w.Header().Set("Connection", "close")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, err := w.Write([]byte("ten bytes."))
		return err
	})
	for _, want := range []string{"201 ten bytes. at /orders/1", "201 ten bytes. replayed at /orders/1"} {
		w := httptest.NewRecorder()
		b.handler.ServeHTTP(w, request(t.Context(), "tea", "Idempotency-Key: k1"))
		if got := text(w); got != want || w.Header().Get("Date") != "" || w.Header().Get("Connection") != "" {
			t.Errorf("the answer is %s with the headers %v, want %s without Date and Connection", got, w.Header(), want)
		}
	}
}

// If the connection is lost during COMMIT, the answer says that the request may have
// taken effect.
func TestUnknownCommitMayHaveTakenEffect(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	b.Exec(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$`)
	b.Exec(`CREATE CONSTRAINT TRIGGER die AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`)
	b.expectAnswer("503: The request failed: it may have taken effect: repeat it with the same key", "tea", "Idempotency-Key: k1")
}

// A request that waits for another one with its key, and whose client leaves, does not
// find that the other one is in progress: it has not waited for Config.Wait.
func TestRequestWhoseClientLeavesIsNoConflict(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	inside, goOn := make(chan struct{}), make(chan struct{})
	b.during = func(http.ResponseWriter, *http.Request) error {
		close(inside)
		<-goOn
		return nil
	}
	first := make(chan string)
	go func() { first <- b.send("tea", "Idempotency-Key: k1") }()
	<-inside
	ctx, leave := context.WithCancel(t.Context())
	second := make(chan int)
	go func() {
		w := httptest.NewRecorder()
		b.handler.ServeHTTP(w, request(ctx, "tea", "Idempotency-Key: k1"))
		second <- w.Code
	}()
	kit.Eventually(t, time.Minute, "the second request waits", func() bool {
		return b.Count(`pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	leave()
	if code := <-second; code == http.StatusConflict {
		t.Errorf("the answer has the status %d, want an error", code)
	}
	close(goOn)
	if got := <-first; got != "201 placed tea at /orders/1" {
		t.Error(got)
	}
}

// Sweep removes all old keys, in several transactions if they are many.
func TestSweepRemovesManyKeys(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	const old = 2001 // one more than a transaction removes
	kit.Exec(t, b, `INSERT INTO once_idempotency_keys (client, key, digest, created_at)
		SELECT '', 'k' || i, '', now() - interval '1 year' FROM generate_series(1, $1) AS i`, old)
	if n, err := b.keys.Sweep(t.Context()); n != old || err != nil {
		t.Errorf("Sweep removes %d keys and returns %v, want %d", n, err, old)
	}
}
