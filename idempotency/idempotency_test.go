package idempotency_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/test/kit"
)

func TestRepeatedRequestGetsTheSameAnswer(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		const key = "Idempotency-Key: k1"
		b.expectAnswer("201 placed tea at /orders/1", "tea", key)
		b.expectAnswer("201 placed tea replayed at /orders/1", "tea", key)
		b.expectAnswer("201 placed tea replayed at /orders/1", "tea", `Idempotency-Key: "k1"`) // the form that the draft requires
		b.expect(1, 1, 1)

		b.expectAnswer("422: The idempotency key was used before: another request had this key: "+
			"use a new key for each request, and the same key only to repeat it", "coffee", key)
		b.expectAnswer("201 placed tea at /orders/1", "tea", key, "Client: another")
		b.expectAnswer("201 placed tea at /orders/1", "tea") // without a key every request is new
		b.expectAnswer("201 placed tea at /orders/1", "tea")
		b.expect(4, 4, 2)
	})
}

// A request with a key that was used before is refused if its method, path, query,
// content type or body differs from those of the first request.
func TestKeyOfAnotherRequestIsRefused(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	send := func(change func(r *http.Request)) int {
		r := request(t.Context(), "tea", "Idempotency-Key: k1", "Content-Type: text/plain")
		change(r)
		w := httptest.NewRecorder()
		b.handler.ServeHTTP(w, r)
		return w.Code
	}
	if status := send(func(*http.Request) {}); status != http.StatusCreated {
		t.Fatal(status)
	}
	for name, change := range map[string]func(r *http.Request){
		"method": func(r *http.Request) { r.Method = http.MethodPatch },
		"path":   func(r *http.Request) { r.URL.Path = "/orders/1" },
		"query":  func(r *http.Request) { r.URL.RawQuery = "from=app" },
		"type":   func(r *http.Request) { r.Header.Set("Content-Type", "application/json") },
		"body":   func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("tee")) },
	} {
		if status := send(change); status != http.StatusUnprocessableEntity {
			t.Errorf("another %s: status %d", name, status)
		}
	}
	b.expect(1, 1, 1)
}

// Two equal requests arrive at the same time. The second one waits for the first one, and
// gets the same answer.
func TestRequestsAtTheSameTimeTakeEffectOnce(t *testing.T) {
	b := newBench(t, kit.Postgres(t), nil)
	inside, goOn := make(chan struct{}, 2), make(chan struct{})
	b.during = func(http.ResponseWriter, *http.Request) error {
		inside <- struct{}{}
		<-goOn
		return nil
	}
	answers := make(chan string, 2)
	for range 2 {
		go func() { answers <- b.send("tea", "Idempotency-Key: k1") }()
	}
	<-inside
	kit.Eventually(t, time.Minute, "the other one waits for the lock", func() bool {
		return b.Count(`pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	close(goOn)
	first, second := <-answers, <-answers
	if strings.HasSuffix(first, "replayed at /orders/1") {
		first, second = second, first
	}
	if first != "201 placed tea at /orders/1" || second != "201 placed tea replayed at /orders/1" {
		t.Errorf("%s; %s", first, second)
	}
	b.expect(1, 1, 1)
}

func TestRequestInProgressIsAConflict(t *testing.T) {
	b := newBench(t, kit.Postgres(t), func(c *idempotency.Config) { c.Wait = 300 * time.Millisecond })
	inside, goOn := make(chan struct{}), make(chan struct{})
	b.during = func(http.ResponseWriter, *http.Request) error {
		close(inside)
		<-goOn
		return errors.New("on purpose")
	}
	failed := make(chan string)
	go func() { failed <- b.send("tea", "Idempotency-Key: k1") }()
	<-inside
	const conflict = "409: A request with this idempotency key is being handled: repeat the request later"
	b.expectAnswer(conflict, "tea", "Idempotency-Key: k1")
	close(goOn)
	if got := <-failed; got != "500: The request failed: repeat it with the same key" {
		t.Error(got)
	}
	b.expect(0, 0, 0)
	b.during = nil
	b.expectAnswer("201 placed tea at /orders/1", "tea", "Idempotency-Key: k1")
	b.expect(1, 1, 1)
}

// A failed request can be repeated. A refused request gets the same refusal again.
func TestFailuresAreNotStored(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *idempotency.Config) { c.MaxAnswer = 100 })
		fine := b.handler
		const failed = "500: The request failed: repeat it with the same key"
		for name, c := range map[string]struct {
			end  func(w http.ResponseWriter) error
			want string
		}{
			"error": {func(http.ResponseWriter) error { return errors.New("on purpose") }, failed},
			"unavailable": {func(w http.ResponseWriter) error {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, err := w.Write([]byte("later"))
				return err
			}, "503 later"},
			"internal error": {func(w http.ResponseWriter) error {
				w.WriteHeader(http.StatusInternalServerError)
				return nil
			}, "500 "},
			"long answer, whose error is ignored": {func(w http.ResponseWriter) error {
				_, _ = w.Write(bytes.Repeat([]byte("x"), 101))
				return nil
			}, failed},
			"panic": {func(http.ResponseWriter) error { panic("on purpose") }, "panic"},
		} {
			b.handler = b.keys.Handler(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
				if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders (body) VALUES ('undone')`); err != nil {
					return err
				}
				return c.end(w)
			})
			got := func() (got string) {
				defer func() {
					if recover() != nil {
						got = "panic"
					}
				}()
				return b.send("tea", "Idempotency-Key: k1")
			}()
			if got != c.want {
				t.Errorf("%s: %s", name, got)
			}
			b.expect(0, 0, 0)
		}
		if logged := b.logs.Captured()[watermill.ErrorLogLevel]; len(logged) != 2 {
			t.Errorf("%d errors are logged", len(logged))
		}

		b.handler = b.keys.Handler(func(w http.ResponseWriter, _ *http.Request, _ *sql.Tx) error {
			http.Error(w, "no such tea", http.StatusNotFound)
			return nil
		})
		b.expectAnswer("404 no such tea\n", "green", "Idempotency-Key: k2")
		b.handler = fine
		b.expectAnswer("404 no such tea\n replayed", "green", "Idempotency-Key: k2")
		b.expectAnswer("201 placed tea at /orders/1", "tea", "Idempotency-Key: k1")
		b.expect(1, 1, 2)
	})
}

// While the database is not available, the answer tells the client to repeat the
// request later.
func TestOutageIsTemporary(t *testing.T) {
	b := newBench(t, kit.Postgres(t), nil)
	const later = "503: The request failed: repeat it with the same key"
	expectLater := func(what string) {
		t.Helper()
		w := httptest.NewRecorder()
		b.handler.ServeHTTP(w, request(t.Context(), "tea", "Idempotency-Key: k1"))
		if got := text(w); got != later || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: %s, Retry-After %q", what, got, w.Header().Get("Retry-After"))
		}
	}
	fine := b.handler
	for what, query := range map[string]string{
		"the session ends":           `SELECT pg_terminate_backend(pg_backend_pid())`,
		"the table is missing":       `SELECT * FROM not_deployed`,
		"the server is shut down":    `DO $$ BEGIN RAISE SQLSTATE '57P01'; END $$`,
		"other transactions are met": `DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`,
	} {
		b.handler = b.keys.Handler(func(_ http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			_, err := tx.ExecContext(r.Context(), query)
			return err
		})
		expectLater(what)
	}
	b.handler = b.keys.Handler(func(http.ResponseWriter, *http.Request, *sql.Tx) error {
		_, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:1")
		return err
	})
	expectLater("another service is away")
	for _, lost := range []error{driver.ErrBadConn, io.ErrUnexpectedEOF, context.DeadlineExceeded} {
		b.handler = b.keys.Handler(func(http.ResponseWriter, *http.Request, *sql.Tx) error { return fmt.Errorf("call: %w", lost) })
		expectLater(lost.Error())
	}

	nowhere, err := sql.Open("postgres", "postgres://127.0.0.1:1/?sslmode=disable")
	kit.OK(t, err)
	defer nowhere.Close()
	keys, err := idempotency.New(nowhere, idempotency.Config{Client: idempotency.OneClient, Logger: b.logs})
	kit.OK(t, err)
	b.handler = keys.Handler(func(http.ResponseWriter, *http.Request, *sql.Tx) error { return nil })
	expectLater("the database is away")
	b.handler = fine
	b.expectAnswer("201 placed tea at /orders/1", "tea", "Idempotency-Key: k1")
	b.expect(1, 1, 1)
}

// If the client disconnects while its request is handled, the request is rolled back.
func TestRequestOfAClientThatIsGoneIsUndone(t *testing.T) {
	b := newBench(t, kit.Postgres(t), nil)
	ctx, leave := context.WithCancel(t.Context())
	b.during = func(_ http.ResponseWriter, r *http.Request) error {
		leave()
		<-r.Context().Done()
		return r.Context().Err()
	}
	b.handler.ServeHTTP(httptest.NewRecorder(), request(ctx, "tea", "Idempotency-Key: k1"))
	b.expect(0, 0, 0)
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	b := newBench(t, kit.SQLite(t), func(c *idempotency.Config) { c.Required, c.MaxBody = true, 10 })
	const invalid = "400: The idempotency key is not valid: "
	for _, c := range []struct {
		body    string
		headers []string
		want    string
	}{
		{"tea", []string{"Idempotency-Key: k1", "Idempotency-Key: k2"}, invalid + "the request has 2 keys"},
		{"eleven tea.", []string{"Idempotency-Key: k1"}, "413: The request is too large: the limit is 10 bytes"},
	} {
		b.expectAnswer(c.want, c.body, c.headers...)
	}
	b.expect(0, 0, 0)
}

func TestSweepForgetsOldKeys(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *idempotency.Config) { c.Retention, c.SweepInterval = time.Hour, time.Millisecond })
		for _, key := range []string{"old", "new"} {
			b.expectAnswer("201 placed tea at /orders/1", "tea", "Idempotency-Key: "+key)
		}
		ago := `now() - interval '61 minutes'`
		if db.Dialect == "sqlite" {
			ago = `created_at - 61 * 60000`
		}
		b.Exec(`UPDATE once_idempotency_keys SET created_at = ` + ago + ` WHERE key = 'old'`)
		ctx, stop := context.WithCancel(t.Context())
		stopped := kit.Go(func() error { return b.keys.Run(ctx) })
		kit.Eventually(t, time.Minute, "the old key is removed", func() bool { return b.Count("once_idempotency_keys") == 1 })
		stop()
		kit.Check(t, <-stopped)
		b.expectAnswer("201 placed tea replayed at /orders/1", "tea", "Idempotency-Key: new")
		b.expectAnswer("201 placed tea at /orders/1", "tea", "Idempotency-Key: old")
		b.expect(3, 3, 2)
	})
}

// While sweeps fail, Run logs one error. When they work again, it logs this once.
func TestFailingSweepsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		logs := &kit.Logs{}
		b := newBench(t, db, func(c *idempotency.Config) { c.SweepInterval, c.Logger = 10*time.Millisecond, logs })
		ctx, stop := context.WithCancel(t.Context())
		ended := kit.Go(func() error { return b.keys.Run(ctx) })
		const failed, works = "Sweep of idempotency keys failed", "Sweep of idempotency keys works again"
		for times := 1; times <= 2; times++ {
			b.Exec(`ALTER TABLE once_idempotency_keys RENAME TO away`)
			kit.Eventually(t, time.Minute, "it fails", func() bool { return logs.Count(failed) == times })
			for range 5 { // sweeps fail in the meantime
				if _, err := b.keys.Sweep(t.Context()); err == nil {
					t.Error("a sweep without its table does not fail")
				}
			}
			b.Exec(`ALTER TABLE away RENAME TO once_idempotency_keys`)
			kit.Eventually(t, time.Minute, "it works", func() bool { return logs.Count(works) == times })
		}
		stop()
		kit.Check(t, <-ended)
		if f, w := logs.Count(failed), logs.Count(works); f != 2 || w != 2 {
			t.Errorf("%d failures and %d recoveries are logged: %v", f, w, logs.Lines())
		}
	})
}

func TestInvalidConfigIsRefused(t *testing.T) {
	_, err := idempotency.New(&sql.DB{}, idempotency.Config{
		Retention: time.Second, SweepInterval: -1, Wait: -1, MaxBody: -1, Documentation: "/keys",
	})
	want := `idempotency: Client is nil: return the authenticated client of the request, or set OneClient
idempotency: Documentation is "/keys": must be an absolute URL of HTTP
idempotency: Retention is 1s: must be from 1m to 10 years
idempotency: SweepInterval is -1ns: less than 1 ms
idempotency: Wait is -1ns: less than 1 ms
idempotency: MaxBody is -1 and MaxAnswer is 1048576: must not be negative`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
	const year = 365 * 24 * time.Hour
	for retention, fine := range map[time.Duration]bool{time.Minute - 1: false, time.Minute: true, 10 * year: true, 10*year + 1: false} {
		if _, err := idempotency.New(&sql.DB{}, idempotency.Config{Client: idempotency.OneClient, Retention: retention}); (err == nil) != fine {
			t.Errorf("Retention %v: %v", retention, err)
		}
	}
	for page, fine := range map[string]bool{
		"https://shop.example/keys": true, "http://shop.example": true, "ftp://shop.example/keys": false, "https:///keys": false,
		"https://shop.example/<keys>": false,
	} {
		config := idempotency.Config{Client: idempotency.OneClient, Documentation: page}
		if _, err := idempotency.New(&sql.DB{}, config); (err == nil) != fine {
			t.Errorf("Documentation %s: %v", page, err)
		}
	}
	if _, err := idempotency.New(nil, idempotency.Config{Client: idempotency.OneClient}); err == nil {
		t.Error("no error without a database")
	}
}
