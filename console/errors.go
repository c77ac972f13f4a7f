package console

import (
	"context"
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/reconcile"
	"github.com/watermill-once/once/schema"
)

var (
	errNoPage      = errors.New("there is no such page")
	errMethod      = errors.New("this page does not accept this HTTP method")
	errInternal    = errors.New("the page failed; the log of the service says why")
	errCrossOrigin = errors.New("the request does not come from this page. " +
		"If you sent it from here, open the console over HTTPS or on localhost: only then browsers say where a request comes from")
)

// inputError means that the query or a form contains a mistake.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// problem is the page that shows an error.
type problem struct {
	Status            int
	Headline, Details string
}

// describe returns the page for an error. The page does not contain errors of the
// database, because they may name hosts and users.
func describe(err error) problem {
	if p, ok := errors.AsType[busyError](err); ok {
		return problem{http.StatusConflict, "Something else is running", p.Error()}
	}
	if _, ok := errors.AsType[refusedError](err); ok {
		return problem{http.StatusForbidden, "Not allowed", err.Error() + "."}
	}
	if _, ok := errors.AsType[inputError](err); ok {
		return problem{http.StatusBadRequest, "Invalid request", err.Error() + "."}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem{http.StatusRequestEntityTooLarge, "Too large", "The form is larger than the console accepts."}
	}
	switch {
	case errors.Is(err, errNoPage):
		return problem{http.StatusNotFound, "No such page", "The address is wrong, or is from another version of the console."}
	case errors.Is(err, errNoJob):
		return problem{http.StatusNotFound, "No such change in this process", err.Error() + "."}
	case errors.Is(err, pending.ErrNotFound), errors.Is(err, deadletter.ErrNotFound):
		return problem{
			http.StatusNotFound, "This message is not here any more",
			"It was sent, replayed, cancelled or discarded. The audit log and the sent log say more.",
		}
	case errors.Is(err, parked.ErrNotFound):
		return problem{
			http.StatusNotFound, "This message is not here any more", "Its consumer may have handled it: look for the message id under Find.",
		}
	case errors.Is(err, poison.ErrNotFound):
		return problem{http.StatusNotFound, "No such entry", "No entry has this ID, or the entry has left the quarantine."}
	case errors.Is(err, poison.ErrReplayNotFound):
		return problem{http.StatusNotFound, "No such replay", "No replay has this ID."}
	case errors.Is(err, reconcile.ErrNotKept):
		return problem{http.StatusNotFound, "No such report", "Only the latest 100 reports of each consumer are kept."}
	case errors.Is(err, errMethod):
		return problem{http.StatusMethodNotAllowed, "Method not allowed", err.Error() + "."}
	case errors.Is(err, errCrossOrigin):
		return problem{http.StatusForbidden, "Refused", "The console refused the request: " + err.Error() + "."}
	case errors.Is(err, errClosed):
		return problem{http.StatusServiceUnavailable, "The process is stopping", "It starts no new changes. Try again in a moment."}
	case errors.Is(err, context.DeadlineExceeded):
		return problem{
			http.StatusGatewayTimeout, "The database took too long",
			"It did not answer in " + readTimeout.String() + ". Use narrower filters, or try again.",
		}
	}
	if errors.Is(err, schema.ErrDialect) {
		return problem{http.StatusInternalServerError, "This is another kind of database", wrongDialect}
	}
	if denied(err) {
		return problem{http.StatusInternalServerError, "The database refused this", noRight}
	}
	if known := expected(err); known != nil {
		return problem{http.StatusConflict, "Not possible now", known.Error() + "."}
	}
	return problem{http.StatusInternalServerError, "The page failed", "The log of the service says why."}
}

// noRight is the text of the page if the database refused a statement because the
// console's user lacks a right.
const noRight = "The database user of the console lacks a right. Grant it the operator role (schema.Roles, once migrate roles). " +
	"The refused statement has changed nothing."

// wrongDialect is the text of the page if the database is not of the configured kind.
const wrongDialect = "Set Config.Schema.Dialect of the console to the kind of its database. The log of the service names both kinds."

// denied reports whether the database refused a statement because its user lacks a
// right.
func denied(err error) bool {
	type stater interface {
		error
		SQLState() string
	}
	refused, ok := errors.AsType[stater](err)
	return ok && refused.SQLState() == "42501" // insufficient_privilege
}

// expected returns err if it is a known error of this module that says why a change is
// not possible now. Otherwise it returns nil. A page may show the text of a known error:
// it may contain names of messages and consumers, but no names of hosts.
func expected(err error) error {
	for _, known := range []error{
		poison.ErrNotRunning, poison.ErrReplayRunning, poison.ErrReplayFinished, poison.ErrReplayLost, poison.ErrReplayStopped,
		poison.ErrClaimed, poison.ErrIDInUse, poison.ErrUndecodable, poison.ErrNotFound,
		deadletter.ErrNeedsForce, deadletter.ErrNotBlocked, deadletter.ErrNotFound,
		pending.ErrNeedsForce, pending.ErrMaybeSent, pending.ErrNotFound,
		parked.ErrNotFound, parked.ErrEnded, parked.ErrHeld, parked.ErrClaimed, parked.ErrHandled,
	} {
		if errors.Is(err, known) {
			return err
		}
	}
	return nil
}

// fail writes the page for an error. It logs errors of the service and the database
// (status 500 and above), but not mistakes in a request. It also does not log that the
// console is closed, or that the browser has canceled the request.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := describe(err)
	if p.Status >= http.StatusInternalServerError && !errors.Is(err, errClosed) && !errors.Is(err, context.Canceled) {
		c.config.Logger.Error("Console page failed", err, watermill.LogFields{"page": r.URL.Path})
	}
	page := page{Title: p.Headline, Template: "problem", Body: p}
	c.writePage(w, r, p.Status, page)
}
