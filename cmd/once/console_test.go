package main

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

var consoleURL = regexp.MustCompile(`http://(\S+)/\?secret=(\S+)`)

// serveConsole runs "once console" until the test ends, and returns its address with
// the secret.
func (s *shell) serveConsole(args ...string) string {
	s.Helper()
	var stdout, stderr kit.Buffer
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, env: func(name string) string { return s.env[name] }}
	code := make(chan int, 1)
	go func() { code <- a.run(ctx, append([]string{"console", "--listen", "127.0.0.1:0"}, args...)) }()
	s.Cleanup(func() {
		stop()
		if got := <-code; got != exitDone {
			s.Errorf("once console ended with %d:\n%s", got, stderr.String())
		}
	})
	kit.Eventually(s, time.Minute, "the console serves", func() bool { return consoleURL.MatchString(stdout.String()) })
	return consoleURL.FindString(stdout.String())
}

// browser returns a client that keeps cookies, as a browser does.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	kit.OK(t, err)
	return &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
}

// open sends a request and returns the status and the page.
func open(t *testing.T, client *http.Client, method, address, host string, form url.Values) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode()))
	kit.OK(t, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if host != "" {
		r.Host = host
	}
	response, err := client.Do(r)
	kit.OK(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	kit.OK(t, err)
	return response.StatusCode, string(text)
}

func TestConsoleNeedsTheSecret(t *testing.T) {
	s := newShell(t, kit.SQLite(t))
	address := s.serveConsole("--environment", "staging", "--color", "red")
	base, _, _ := strings.Cut(address, "?")
	stranger, ann := browser(t), browser(t)
	for _, page := range []string{"", "outbox", "?secret=wrong", "outbox?secret=" + strings.TrimPrefix(address, base+"?secret=")} {
		status, text := open(t, stranger, http.MethodGet, base+page, "", nil)
		if status != http.StatusUnauthorized || strings.Contains(text, "Outbox") {
			t.Errorf("%s: %d %s", page, status, text)
		}
	}
	if status, text := open(t, ann, http.MethodGet, address, "", nil); status != http.StatusOK {
		t.Errorf("with the secret: %d %s", status, text)
	} else {
		s.says(text, "Needs attention", "staging", "environment red")
	}
	// A page of another site, whose host name resolves to this machine.
	if status, _ := open(t, ann, http.MethodGet, base, "evil.example:80", nil); status != http.StatusMisdirectedRequest {
		t.Errorf("under another name: %d", status)
	}
	if status, _ := open(t, ann, http.MethodGet, base, "localhost", nil); status == http.StatusMisdirectedRequest { // at port 80
		t.Error("a name of this machine without a port is refused")
	}
	// A program sends the secret as a bearer token.
	for token, want := range map[string]int{strings.TrimPrefix(address, base+"?secret="): http.StatusOK, "wrong": http.StatusUnauthorized} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"api/outbox", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := stranger.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("a program with the token %s: %d, want %d", token, response.StatusCode, want)
		}
	}
	// Without --write.
	form := url.Values{"do": {"discard-dead"}, "all": {"1"}, "limit": {"1"}, "why": {"because"}}
	status, text := open(t, ann, http.MethodPost, base+"change", "", form)
	if status != http.StatusForbidden || !strings.Contains(text, "you are not allowed to") {
		t.Errorf("without --write: %d %s", status, text)
	}
}

func TestConsoleWritesInTheNameOfTheActor(t *testing.T) {
	s := newShell(t, kit.SQLite(t))
	address := s.serveConsole("--write", "--actor", "bob")
	base, _, _ := strings.Cut(address, "?")
	ann := browser(t)
	open(t, ann, http.MethodGet, address, "", nil)
	form := url.Values{"do": {"discard-dead"}, "all": {"1"}, "limit": {"1"}, "why": {"because"}}
	status, text := open(t, ann, http.MethodPost, base+"change", "", form)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	s.says(text, "Discard dead letters", "bob", "because")
}
