package console

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
)

// The templates contain no inline scripts and styles, and htmx is configured to add none.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// The form of an edit may be larger, see maxBody.
const maxForm = 256 << 10

// protect refuses requests from other sites, and turns a panic into an error page.
func (c *Console) protect(next http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.fail(w, r, errCrossOrigin) }))
	checked := sameOrigin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Robots-Tag", "noindex, nofollow")
		defer func() {
			if p := recover(); p != nil {
				if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(p)
				}
				c.config.Logger.Error("Console page panicked", fmt.Errorf("panic: %v", p),
					watermill.LogFields{"page": r.URL.Path, "stack": string(debug.Stack())})
				c.fail(w, r, errInternal)
			}
		}()
		if r.Method == http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, c.maxBody(r))
		}
		checked.ServeHTTP(w, r)
	})
}

// The form of an edit contains metadata and payload, in hexadecimal or percent-encoded.
func (c *Console) maxBody(r *http.Request) int64 {
	if strings.HasSuffix(r.URL.Path, "/edit") || r.URL.Path == "edit" {
		return maxForm + 4*int64(c.config.MaxEdit)
	}
	return maxForm
}

// errNoActor: Config.Authorize allowed a change without a name.
var errNoActor = errors.New("Authorize returned no actor for an action that changes something")

// It fails if the person may not do the action, or Config.Authorize panics.
func (c *Console) authorize(r *http.Request, action Action) (actor string, err error) {
	actor, err = c.ask(r, action)
	if err == nil {
		return actor, nil
	}
	c.config.Logger.Info("Console refused an action", watermill.LogFields{
		"action": string(action), "actor": actor, "page": r.URL.Path, "error": err.Error(),
	})
	return "", refusedError{action}
}

func (c *Console) may(r *http.Request, action Action) bool {
	_, err := c.ask(r, action)
	return err == nil
}

func (c *Console) ask(r *http.Request, action Action) (actor string, err error) {
	defer func() {
		if p := recover(); p != nil {
			actor, err = "", fmt.Errorf("Authorize panicked: %v", p)
		}
	}()
	actor, err = c.config.Authorize(r, action)
	if err == nil && action.Changes() && strings.TrimSpace(actor) == "" {
		err = errNoActor
	}
	return actor, err
}

type refusedError struct{ action Action }

func (e refusedError) Error() string { return fmt.Sprintf("you are not allowed to: %s", e.action) }
