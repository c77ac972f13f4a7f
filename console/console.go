package console

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/audit"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/operate/trace"
	"github.com/watermill-once/once/schema"
)

const readTimeout = 20 * time.Second

// Console is an http.Handler that serves the pages.
type Console struct {
	config     Config
	outbox     *outbox.Messages
	letters    *dead.Letters
	sent       *dead.SentLog
	parked     *parked.Messages
	quarantine *quarantine.Entries
	finder     *trace.Finder
	status     *status.Reader
	audit      *audit.Log
	archive    *reconcile.Archive

	handler http.Handler
	routes  map[string]route
	acts    map[string]act
	jobs    *jobs

	overview struct {
		sync.Mutex

		latest  overview
		until   time.Time // time after which the field latest is too old
		flow    flow
		history history
	}
	sampler sampler
	days    days
	paces   paces
}

// route has the functions for GET and POST. One may be nil.
type route struct{ get, post serving }

type serving func(w http.ResponseWriter, r *http.Request) error

// look serves a page for people who may look.
func (c *Console) look(serve serving) serving {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := c.authorize(r, Look); err != nil {
			return err
		}
		return serve(w, r)
	}
}

func open[Part, Config any](to *Part, create func(*sql.DB, Config) (Part, error), db *sql.DB, config Config) (err error) {
	*to, err = create(db, config)
	return err
}

// Handler returns the console for the tables in db, which must exist, see schema.Up. If config is
// invalid, the error names each invalid field. Mount it under a path that ends in a slash, and call
// [Console.Close] before you close db.
//
// The database user needs the right to operate the tables, see schema.Roles. The console uses one
// connection for each request and each running job.
func Handler(db *sql.DB, config Config) (*Console, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, usercode.Refused("console", err)
	}
	c := &Console{config: config, jobs: newJobs(config.Logger)}
	rows := operate.Config{Schema: config.Schema, InboxRetention: config.InboxRetention, ReplayToAbsent: config.ReplayToAbsent}
	err = errors.Join(
		open(&c.outbox, outbox.New, db, rows),
		open(&c.letters, dead.New, db, rows),
		open(&c.sent, dead.NewSentLog, db, rows),
		open(&c.quarantine, quarantine.New, db, rows),
		open(&c.parked, parked.New, db, rows),
		open(&c.finder, trace.New, db, config.Schema),
		open(&c.status, status.New, db, config.Schema),
		open(&c.audit, audit.New, db, config.Schema),
		open(&c.archive, reconcile.NewArchive, db, config.Schema),
	)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c.sampler.start = func() { c.jobs.background(c.sample) }
	c.acts = c.newActs()
	c.routes = map[string]route{
		"":           {get: c.look(c.getOverview)},
		"days":       {get: c.look(c.getDays)},
		"forwarders": {get: c.look(c.getForwarders)},
		"consumers":  {get: c.look(c.getConsumers)},
		"parked":     {get: c.look(c.getParked)},
		"trace":      {get: c.look(c.getTrace)},
		"audit":      {get: c.look(c.getAudit)},
		"reconcile":  {get: c.look(c.getReconcile)},
		"report":     {get: c.look(c.getReport)},
		"outbox":     {get: c.look(c.getOutbox)},
		"message":    {get: c.look(c.getMessage)},
		"dead":       {get: c.look(c.getDead)},
		"letter":     {get: c.look(c.getLetter)},
		"sent":       {get: c.look(c.getSent)},
		"copy":       {get: c.look(c.getSentMessage)},
		"quarantine": {get: c.look(c.getQuarantine)},
		"entry":      {get: c.look(c.getEntry)},
		"note":       {post: c.postNote},
		"payload":    {get: c.look(c.getPayload)},
		"replays":    {get: c.look(c.getReplays)},
		"replay":     {get: c.look(c.getReplay), post: c.postResume},
		"change":     {get: c.getChange, post: c.postChange},
		"job":        {get: c.look(c.getJob)},
		"stop":       {post: c.postStop},
		"edit":       {get: c.getEdit, post: c.postEdit},

		"parked-message": {get: c.look(c.getParkedMessage)},
	}
	c.handler = c.protect(http.HandlerFunc(c.serve))
	return c, nil
}

// ServeHTTP serves a page.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// Close stops the running changes, and waits for them, also when called again. Replays of the
// quarantine are paused, other changes stop after a batch. Pages can still be read, but new changes
// are refused.
func (c *Console) Close() error {
	c.jobs.close()
	return nil
}

// serve finds the page by the last segment of the path, wherever the console is mounted.
func (c *Console) serve(w http.ResponseWriter, r *http.Request) {
	_, name := cutLast(r.URL.Path)
	if r.URL.Path == "" { // StripPrefix has removed the whole path, and relative links need the slash
		c.addSlash(w, r)
		return
	}
	api := inAPI(r)
	if file, ok := assets[name]; ok && !api {
		file.serve(w, r)
		return
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil { // otherwise a part of the query, such as a filter, would be ignored
		c.fail(w, r, errQuery)
		return
	}
	page, ok := c.routes[name]
	if api {
		var err error
		if page, err = c.endpoint(r, name); err != nil {
			c.fail(w, r, err)
			return
		}
	} else if !ok {
		c.fail(w, r, errNoPage)
		return
	}
	serve := page.get
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		serve = page.post
	default:
		serve = nil
	}
	if serve == nil {
		allow := []string{}
		if page.get != nil {
			allow = append(allow, "GET, HEAD")
		}
		if page.post != nil {
			allow = append(allow, "POST")
		}
		w.Header().Set("Allow", strings.Join(allow, ", "))
		c.fail(w, r, errMethod)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	if err := serve(w, r); err != nil {
		c.fail(w, r, err)
	}
}

func (c *Console) addSlash(w http.ResponseWriter, r *http.Request) {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	name := path[strings.LastIndexByte(path, '/')+1:]
	if name == "" {
		c.fail(w, r, errNoPage)
		return
	}
	w.Header().Set("Location", "./"+name+"/")
	w.WriteHeader(http.StatusPermanentRedirect)
}

var (
	errNoPage      = errors.New("there is no such page")
	errMethod      = errors.New("this page does not accept this HTTP method")
	errInternal    = errors.New("the page failed; the log of the service says why")
	errCrossOrigin = errors.New("the request does not come from this page. " +
		"If you sent it from here, open the console over HTTPS or on localhost: only then browsers say where a request comes from")
)

var errQuery error = inputError{errors.New("the part of the address after the question mark cannot be read")}

type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

type problem struct {
	Status            int
	Headline, Details string
}

// The page does not contain errors of the database, which may name hosts and users.
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
	case errors.Is(err, operate.ErrNotFound):
		return problem{
			http.StatusNotFound, "This message is not here any more",
			"It was sent, handled, replayed, cancelled or discarded: look for the message id under Find. The audit log says more.",
		}
	case errors.Is(err, operate.ErrReplayNotFound):
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

// noRight: the database refused a statement because the console's user lacks a right.
const noRight = "The database user of the console lacks a right. Grant it the operator role (schema.Roles, once migrate roles). " +
	"The refused statement has changed nothing."

const wrongDialect = "Set Config.Schema.Dialect of the console to the kind of its database. The log of the service names both kinds."

func denied(err error) bool {
	type stater interface {
		error
		SQLState() string
	}
	refused, ok := errors.AsType[stater](err)
	return ok && refused.SQLState() == "42501" // insufficient_privilege
}

// expected returns a known error of this module that says why a change is not possible now, or nil.
// A page may show it: it may name messages and consumers, but no hosts.
func expected(err error) error {
	for _, known := range []error{
		quarantine.ErrNotRunning, operate.ErrReplayRunning, operate.ErrReplayFinished, operate.ErrReplayLost,
		operate.ErrReplayStopped,
		operate.ErrClaimed, quarantine.ErrIDInUse, quarantine.ErrUndecodable, operate.ErrNotFound,
		operate.ErrNeedsForce, dead.ErrNotBlocked, operate.ErrNotFound,
		operate.ErrNeedsForce, outbox.ErrMaybeSent, operate.ErrNotFound,
		operate.ErrNotFound, parked.ErrEnded, parked.ErrHeld, operate.ErrClaimed, parked.ErrHandled,
	} {
		if errors.Is(err, known) {
			return err
		}
	}
	return nil
}

// fail logs errors of the service and the database (status 500 and above), but neither mistakes in
// a request, nor that the console is closed, or the browser has canceled.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := describe(err)
	if p.Status >= http.StatusInternalServerError && !errors.Is(err, errClosed) && !errors.Is(err, context.Canceled) {
		c.config.Logger.Error("Console page failed", err, watermill.LogFields{"page": r.URL.Path})
	}
	page := page{Title: p.Headline, Template: "problem", Body: p}
	c.writePage(w, r, p.Status, page)
}
