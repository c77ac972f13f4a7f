package idempotency

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
)

// HandlerFunc handles a request in a transaction. It writes its rows and publishes its events
// through tx, and its answer to w, which is sent after the commit.
//
// If it returns an error, panics, or answers with a status of 500 or more, the transaction is
// rolled back and nothing is stored, so that the client can repeat the request. An error is logged,
// and answered with status 500, or with 503 and Retry-After if it says that the database or another
// service is not available. Every other answer is stored and sent again for repeated requests,
// including refusals such as 404.
type HandlerFunc func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error

const (
	Header   = "Idempotency-Key"     // header of a request
	Replayed = "Idempotent-Replayed" // header of an answer; "true" if the answer was stored for an earlier request
)

// Handler returns a handler that calls h once for each client and key. A later request with the key
// must have the same method, path, query, body, and headers that say what the body means, such as
// Content-Type, as the client has sent them. One that differs is answered with status 422.
//
// A middleware around the handler must not read the body, unless it puts the same bytes back as
// r.Body: otherwise a request with a key is answered with status 500, and the error is logged.
func (k *Keys) Handler(h HandlerFunc) http.Handler {
	if h == nil {
		panic("idempotency: Handler: h is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { k.serve(w, r, h) })
}

func (k *Keys) serve(w http.ResponseWriter, r *http.Request, h HandlerFunc) {
	key, problem := keyOf(r)
	if key == "" && problem == "" && k.config.Required {
		k.refuse(w, http.StatusBadRequest, "The idempotency key is missing", "the request has no "+Header)
		return
	}
	if problem != "" {
		k.refuse(w, http.StatusBadRequest, "The idempotency key is not valid", problem)
		return
	}
	body, err := k.readBody(w, r)
	if err == nil && key != "" && changed(r, body) {
		err = errChanged
	}
	if err != nil {
		k.refuseBody(w, r, err)
		return
	}
	req := request{client: k.config.Client(r), key: key, digest: digestOf(r, body)}
	if problem := unusable(req.client); problem != "" && key != "" {
		k.refuse(w, http.StatusBadRequest, "The id of the client is not valid", problem)
		return
	}
	a, repeated, err := k.handle(r, req, h)
	switch {
	case err == nil:
		write(w, a, repeated)
	case errors.Is(err, errReused):
		k.refuse(w, http.StatusUnprocessableEntity, "The idempotency key was used before",
			"another request had this key: use a new key for each request, and the same key only to repeat it")
	case errors.Is(err, errInProgress):
		w.Header().Set("Retry-After", "1")
		k.refuse(w, http.StatusConflict, "A request with this idempotency key is being handled", "repeat the request later")
	default:
		k.config.Logger.Error("Request with an idempotency key failed", err, requestFields(r))
		k.fail(w, err)
	}
}

func (k *Keys) refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		k.refuse(w, http.StatusRequestEntityTooLarge, "The request is too large", fmt.Sprintf("the limit is %d bytes", tooLarge.Limit))
		return
	}
	if !errors.Is(err, errChanged) {
		k.refuse(w, http.StatusBadRequest, "The request could not be read", "its body ended too early")
		return
	}
	k.config.Logger.Error("Request with an idempotency key cannot be compared with others", err, requestFields(r))
	k.refuse(w, http.StatusInternalServerError, "The request failed", "the service has lost a part of it; the log of the service says why")
}

func requestFields(r *http.Request) watermill.LogFields {
	return watermill.LogFields{"method": r.Method, "path": r.URL.Path}
}

func (k *Keys) fail(w http.ResponseWriter, err error) {
	status, detail := http.StatusInternalServerError, "repeat it with the same key"
	if errors.Is(err, dialect.ErrCommitUnknown) {
		detail = "it may have taken effect: repeat it with the same key"
	}
	if unavailable(err) {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	k.refuse(w, status, "The request failed", detail)
}

// unavailable reports whether the request may succeed a moment later, because the database or
// another service is not available now.
func unavailable(err error) bool {
	if dialect.Unavailable(err) || dialect.Contended(err) || dialect.Undeployed(err) {
		return true
	}
	for _, lost := range []error{dialect.ErrCommitUnknown, driver.ErrBadConn, io.ErrUnexpectedEOF, context.DeadlineExceeded} {
		if errors.Is(err, lost) {
			return true
		}
	}
	_, network := errors.AsType[net.Error](err)
	return network
}

// errUndone rolls back a transaction whose answer must not be stored.
var errUndone = errors.New("the answer is not stored")

func (k *Keys) handle(r *http.Request, req request, h HandlerFunc) (a answer, repeated bool, err error) {
	ctx := r.Context()
	recorder := &recorder{limit: k.config.MaxAnswer, answer: answer{header: http.Header{}}}
	var earlier *answer
	err = k.dialect.InTx(ctx, k.db, func(tx *sql.Tx) error {
		if req.key != "" {
			var err error
			if earlier, err = k.claim(ctx, tx, req); err != nil || earlier != nil {
				return err
			}
		}
		if err := usercode.Guard(h(recorder, r, tx)); err != nil {
			return err
		}
		if err := recorder.end(); err != nil {
			return err
		}
		if recorder.answer.status >= http.StatusInternalServerError {
			return errUndone
		}
		if req.key == "" {
			return nil
		}
		return k.store(context.WithoutCancel(ctx), tx, req, recorder.answer)
	})
	switch {
	case errors.Is(err, errUndone):
		return recorder.answer, false, nil
	case err == nil && earlier != nil:
		return *earlier, true, nil
	case err != nil && k.dialect.SQLite() && dialect.Contended(err):
		return answer{}, false, fmt.Errorf("%w: %w", errInProgress, err)
	}
	return recorder.answer, false, err
}

func write(w http.ResponseWriter, a answer, repeated bool) {
	header := w.Header()
	maps.Copy(header, a.header)
	if repeated {
		header.Set(Replayed, "true")
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the client may be gone; it can repeat the request
}

// The format is RFC 9457 (application/problem+json).
func (k *Keys) refuse(w http.ResponseWriter, status int, title, detail string) {
	text, _ := json.Marshal(map[string]any{
		"type": cmp.Or(k.config.Documentation, "about:blank"), "title": title, "detail": strings.ToValidUTF8(detail, ""), "status": status,
	})
	if k.config.Documentation != "" {
		w.Header().Set("Link", "<"+k.config.Documentation+`>; rel="describedby"`)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Language", "en")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

type recorder struct {
	answer answer
	limit  int
	err    error
}

func (r *recorder) Header() http.Header { return r.answer.header }

func (r *recorder) WriteHeader(status int) {
	if r.answer.status != 0 || status < http.StatusOK { // informational answers are not kept
		return
	}
	r.answer.status = status
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if len(r.answer.body)+len(b) > r.limit {
		r.err = fmt.Errorf("idempotency: the answer has more than Config.MaxAnswer (%d) bytes", r.limit)
		return 0, r.err
	}
	r.answer.body = append(r.answer.body, b...)
	return len(b), nil
}

// Date and Connection are different for each response.
func (r *recorder) end() error {
	r.WriteHeader(http.StatusOK)
	if r.answer.body == nil {
		r.answer.body = []byte{}
	}
	for name, values := range r.answer.header {
		for _, value := range values {
			if !utf8.ValidString(value) {
				return errors.Join(r.err, fmt.Errorf("idempotency: header %s of the answer is not valid UTF-8", name))
			}
		}
	}
	r.answer.header.Del("Date")
	r.answer.header.Del("Connection")
	return r.err
}
