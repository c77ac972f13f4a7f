package service

import (
	"net/http"
	"strconv"
	"time"
)

// problem is the response to a request that failed, in the form of RFC 9457.
type problem struct {
	Title      string        `json:"title"`
	Status     int           `json:"status"`
	Detail     string        `json:"detail"`
	Errors     []FieldError  `json:"errors,omitempty"`
	RetryAfter time.Duration `json:"-"`
}

var noSuchOrder = problem{Status: http.StatusNotFound, Detail: "there is no such order"}

// unavailable is the response to an internal failure. It does not say why the request
// failed. The log contains the reason.
var unavailable = problem{
	Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
	Detail: "try again",
}

func (p problem) write(w http.ResponseWriter) {
	p.Title = http.StatusText(p.Status)
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(p.RetryAfter.Seconds())))
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}
