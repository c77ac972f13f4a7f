package idempotency_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/test/kit"
)

// The tests of this file are the cases of draft-ietf-httpapi-idempotency-key-header-07,
// in its order. docs/idempotency-keys.md lists the differences.

// Section 2.1: the header is an Item of RFC 8941, and its value is a String.
func TestDraftKeyIsAStringOfRFC8941(t *testing.T) {
	const invalid = "400: The idempotency key is not valid: "
	for header, want := range map[string]string{
		`"8e03978e-40d5-43e8-bc93-6894a57f9324"`: "",
		`"a\"b\\c"`:                              "",
		`"k";version=1`:                          "",
		`""`:                                     invalid + "it is empty",
		`"k`:                                     invalid + "its closing quote is missing",
		`"k\"`:                                   invalid + "its closing quote is missing",
		`"k\n"`:                                  invalid + "a backslash is followed by neither a quote nor a backslash",
		`"k" x`:                                  invalid + "something follows its closing quote",
		`"k", "l"`:                               invalid + "something follows its closing quote",
		"\"schl\u00fcssel\"":                     invalid + "it has characters other than printable ASCII",
		"\"a\tb\"":                               invalid + "it has characters other than printable ASCII",
	} {
		b := newBench(t, kit.SQLite(t), nil)
		got := b.send("tea", "Idempotency-Key: "+header)
		if want == "" {
			want = "201 placed tea at /orders/1"
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", header, got, want)
		}
	}
}

// Section 2.1: parameters and escapes do not change the key.
func TestDraftKeyIsItsUnescapedValue(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	b.expectAnswer("201 placed tea at /orders/1", "tea", `Idempotency-Key: "a\"b\\c"`)
	for _, same := range []string{`"a\"b\\c"`, `"a\"b\\c";version=1`, `a"b\c`} {
		b.expectAnswer("201 placed tea replayed at /orders/1", "tea", "Idempotency-Key: "+same)
	}
	b.expectAnswer("201 placed tea at /orders/1", "tea", `Idempotency-Key: "from ! to ~"`) // all of printable ASCII
	b.expectAnswer("201 placed tea replayed at /orders/1", "tea", `Idempotency-Key: from ! to ~`)
	b.expect(2, 2, 2)
}

// Section 2.2 lets each service choose the length of keys. This package accepts 1 to
// 255 characters.
func TestDraftKeyLengths(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	for n, want := range map[int]string{
		0:   "400: The idempotency key is not valid: it is empty",
		1:   "201 placed tea at /orders/1",
		255: "201 placed tea at /orders/1",
		256: "400: The idempotency key is not valid: it has 256 characters, the limit is 255",
	} {
		b.expectAnswer(want, "tea", "Idempotency-Key: "+strings.Repeat("k", n))
		b.expectAnswer(strings.Replace(want, "placed tea", "placed tea replayed", 1), "tea", `Idempotency-Key: "`+strings.Repeat("k", n)+`"`)
	}
	b.expect(2, 2, 2)
}

// Section 2.6: the first request with a key is processed, and answered as without a
// key. A retry gets the result of the first request, with status, headers and body.
func TestDraftRetryGetsTheSameAnswer(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		answers := map[int]http.Header{
			http.StatusCreated:             {"Location": {"/orders/1"}, "Content-Type": {"application/octet-stream"}},
			http.StatusNoContent:           {"Set-Cookie": {"a=1", "b=2"}},
			http.StatusSeeOther:            {"Location": {"/orders/2"}, "Etag": {`"x"`}},
			http.StatusNotFound:            {"Content-Type": {"application/problem+json"}},
			http.StatusUnprocessableEntity: {"Content-Type": {"text/plain"}},
		}
		for status, header := range answers {
			called := 0
			b.handler = b.keys.Handler(func(w http.ResponseWriter, _ *http.Request, _ *sql.Tx) error {
				called++
				maps.Copy(w.Header(), header)
				w.WriteHeader(status)
				if status == http.StatusNoContent {
					return nil
				}
				_, err := fmt.Fprintf(w, "\x00\xff %d", status)
				return err
			})
			var got [3]*httptest.ResponseRecorder
			for n := range got {
				got[n] = httptest.NewRecorder()
				b.handler.ServeHTTP(got[n], request(t.Context(), "tea", fmt.Sprintf("Idempotency-Key: %q", fmt.Sprint("k", status))))
			}
			if called != 1 || got[0].Header().Get(idempotency.Replayed) != "" {
				t.Errorf("%d: called %d times, first answer %v", status, called, got[0].Header())
			}
			for _, again := range got[1:] {
				if again.Header().Get(idempotency.Replayed) != "true" {
					t.Errorf("%d: the answer is not marked: %v", status, again.Header())
				}
				again.Header().Del(idempotency.Replayed)
				if again.Code != status || again.Body.String() != got[0].Body.String() ||
					!maps.EqualFunc(again.Header(), got[0].Header(), slices.Equal) || !maps.EqualFunc(again.Header(), header, slices.Equal) {
					t.Errorf("answer %d %v %q, want %d %v %q", again.Code, again.Header(), again.Body, status, header, got[0].Body)
				}
			}
		}
	})
}

// Section 2.6: a stored answer is not given to another client or for another request.
func TestDraftKeysOfDifferentClientsDoNotMeet(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	for _, client := range []string{"ada", "bob"} {
		b.expectAnswer("201 placed "+client+" at /orders/1", client, "Idempotency-Key: k1", "Client: "+client)
	}
	b.expectAnswer("201 placed ada replayed at /orders/1", "ada", "Idempotency-Key: k1", "Client: ada")
	b.expectAnswer("422: The idempotency key was used before: another request had this key: "+
		"use a new key for each request, and the same key only to repeat it", "ada", "Idempotency-Key: k1", "Client: bob")
	b.expect(2, 2, 2)
}

// Section 2.7: each problem has the status that the draft requires and the form of RFC
// 9457, and links to the documentation of the resource.
func TestDraftProblems(t *testing.T) {
	const page = "https://shop.example/docs/keys"
	b := newBench(t, kit.Postgres(t), func(c *idempotency.Config) {
		c.Required, c.Documentation, c.Wait = true, page, 300*time.Millisecond
	})
	problem := func(what string, status int, title, body string, headers ...string) {
		t.Helper()
		w := httptest.NewRecorder()
		b.handler.ServeHTTP(w, request(t.Context(), body, headers...))
		var got struct {
			Type   string `json:"type"`
			Title  string `json:"title"`
			Detail string `json:"detail"`
			Status int    `json:"status"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v in %s", what, err, w.Body)
		}
		header := w.Header()
		if w.Code != status || got.Status != status || got.Type != page || got.Title != title || got.Detail == "" ||
			header.Get("Content-Type") != "application/problem+json" || header.Get("Link") != `<`+page+`>; rel="describedby"` {
			t.Errorf("%s: %d %v %+v", what, w.Code, header, got)
		}
	}
	problem("missing", http.StatusBadRequest, "The idempotency key is missing", "tea")
	problem("malformed", http.StatusBadRequest, "The idempotency key is not valid", "tea", `Idempotency-Key: "k`)
	b.expectAnswer("201 placed tea at /orders/1", "tea", "Idempotency-Key: used")
	problem("another payload", http.StatusUnprocessableEntity, "The idempotency key was used before", "coffee", "Idempotency-Key: used")

	inside, goOn := make(chan struct{}), make(chan struct{})
	b.during = func(http.ResponseWriter, *http.Request) error {
		close(inside)
		<-goOn
		return errors.New("on purpose")
	}
	failed := make(chan string)
	go func() { failed <- b.send("tea", "Idempotency-Key: busy") }()
	<-inside
	problem("concurrent", http.StatusConflict, "A request with this idempotency key is being handled", "tea", "Idempotency-Key: busy")
	close(goOn)
	<-failed
	b.expect(1, 1, 1)
}
