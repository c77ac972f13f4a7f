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
	errMethod      = errors.New("the page does not take this method")
	errInternal    = errors.New("the page failed; the log of the service says why")
	errCrossOrigin = errors.New("the request does not come from this page. " +
		"If you sent it from here, open the console over HTTPS or on localhost: only then browsers say where a request comes from")
)

// inputError is a mistake in the query or in a form.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// problem is the page of an error.
type problem struct {
	Status            int
	Headline, Details string
}

// describe turns an error into a page. Errors of the database are not shown: they may
// name hosts and users.
func describe(err error) problem {
	if p, ok := errors.AsType[busyError](err); ok {
		return problem{http.StatusConflict, "Something else is running", p.Error()}
	}
	if _, ok := errors.AsType[refusedError](err); ok {
		return problem{http.StatusForbidden, "Not allowed", err.Error() + "."}
	}
	if _, ok := errors.AsType[inputError](err); ok {
		return problem{http.StatusBadRequest, "That cannot be used", err.Error() + "."}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem{http.StatusRequestEntityTooLarge, "Too large", "The form is larger than the console accepts."}
	}
	switch {
	case errors.Is(err, errNoPage):
		return problem{http.StatusNotFound, "No such page", "The address is wrong, or is from another version of the console."}
	case errors.Is(err, errNoJob):
		return problem{http.StatusNotFound, "This change is unknown here", err.Error() + "."}
	case errors.Is(err, pending.ErrNotFound), errors.Is(err, deadletter.ErrNotFound):
		return problem{
			http.StatusNotFound, "This message is not here any more",
			"It was sent, replayed, cancelled or discarded. The audit log and the sent log say more.",
		}
	case errors.Is(err, parked.ErrNotFound):
		return problem{http.StatusNotFound, "This message is not here any more", "Its consumer may have handled it: look at its life."}
	case errors.Is(err, poison.ErrNotFound):
		return problem{http.StatusNotFound, "No such entry", "There is no entry of this ID, or it has left the quarantine."}
	case errors.Is(err, poison.ErrReplayNotFound):
		return problem{http.StatusNotFound, "No such replay", "There is no replay of this ID."}
	case errors.Is(err, reconcile.ErrNotKept):
		return problem{http.StatusNotFound, "No such report", "Only the latest 100 reports of each consumer are kept."}
	case errors.Is(err, errMethod):
		return problem{http.StatusMethodNotAllowed, "Not possible here", err.Error() + "."}
	case errors.Is(err, errCrossOrigin):
		return problem{http.StatusForbidden, "Refused", "The console refused the request: " + err.Error() + "."}
	case errors.Is(err, errClosed):
		return problem{http.StatusServiceUnavailable, "The process is stopping", "It begins no more changes. Try again soon."}
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

// noRight is what a page says if the database refused a statement.
const noRight = "The database user of the console lacks a right. Grant it the role of an operator (schema.Roles, once migrate roles). " +
	"Nothing was changed by the refused statement."

// wrongDialect is what a page says if the database is not of the configured kind.
const wrongDialect = "Set Config.Schema.Dialect of the console to the kind of its database. The log of the service names both kinds."

// denied reports whether the database refused a statement because its user lacks a right.
func denied(err error) bool {
	type stater interface {
		error
		SQLState() string
	}
	refused, ok := errors.AsType[stater](err)
	return ok && refused.SQLState() == "42501" // insufficient_privilege
}

// expected returns err if a package of this module says with it why a change is not
// possible now, else nil. Such a text names messages and consumers, but no hosts.
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

// fail writes the page of an error, and logs errors that are nobody's mistake.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := describe(err)
	if p.Status >= http.StatusInternalServerError && !errors.Is(err, errClosed) && !errors.Is(err, context.Canceled) {
		c.config.Logger.Error("Console page failed", err, watermill.LogFields{"page": r.URL.Path})
	}
	page := page{Title: p.Headline, Template: "problem", Body: p}
	c.writePage(w, r, p.Status, page)
}
