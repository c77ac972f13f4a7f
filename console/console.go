package console

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/watermill-once/once/audit"
	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/journey"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/reconcile"
	"github.com/watermill-once/once/status"
)

// readTimeout is the maximum time for reading the data of one page.
const readTimeout = 20 * time.Second

// Console is an http.Handler that serves the pages.
type Console struct {
	config     Config
	outbox     *pending.Messages
	letters    *deadletter.Letters
	sent       *deadletter.SentLog
	parked     *parked.Messages
	quarantine *poison.Quarantine
	journeys   *journey.Journeys
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

// route contains the functions that serve GET and POST requests for a page. One of them
// may be nil.
type route struct {
	get, post func(w http.ResponseWriter, r *http.Request) error
}

// Handler returns the console for the tables in db. If config is invalid, the error names
// each invalid field. The tables must exist, see schema.Up. Mount the console under a
// path that ends in a slash, and call [Console.Close] before you close db.
//
// The database user needs the right to operate the tables, see schema.Roles. The console
// uses one connection for each request and one for each job that is running.
func Handler(db *sql.DB, config Config) (*Console, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("console", err)
	}
	c := &Console{config: config, jobs: newJobs(config.Logger)}
	letters := deadletter.Config{Schema: config.Schema, InboxRetention: config.InboxRetention}
	var errs [9]error
	c.outbox, errs[0] = pending.New(db, pending.Config{Schema: config.Schema})
	c.letters, errs[1] = deadletter.New(db, letters)
	c.sent, errs[2] = deadletter.NewSentLog(db, letters)
	c.quarantine, errs[3] = poison.New(db, poison.Config{
		Schema: config.Schema, ReplayToAbsent: config.ReplayToAbsent, Logger: config.Logger,
	})
	c.parked, errs[4] = parked.New(db, parked.Config{Schema: config.Schema})
	c.journeys, errs[5] = journey.New(db, journey.Config{Schema: config.Schema})
	c.status, errs[6] = status.New(db, status.Config{Schema: config.Schema})
	c.audit, errs[7] = audit.New(db, audit.Config{Schema: config.Schema})
	c.archive, errs[8] = reconcile.NewArchive(db, config.Schema)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c.sampler.start = func() { c.jobs.background(c.sample) }
	c.acts = c.newActs()
	c.routes = map[string]route{
		"":           {get: c.getOverview},
		"days":       {get: c.getDays},
		"forwarders": {get: c.getForwarders},
		"consumers":  {get: c.getConsumers},
		"parked":     {get: c.getParked},
		"life":       {get: c.getLife},
		"audit":      {get: c.getAudit},
		"reconcile":  {get: c.getReconcile},
		"report":     {get: c.getReport},
		"outbox":     {get: c.getOutbox},
		"message":    {get: c.getMessage},
		"dead":       {get: c.getDead},
		"letter":     {get: c.getLetter},
		"sent":       {get: c.getSent},
		"copy":       {get: c.getSentMessage},
		"quarantine": {get: c.getQuarantine},
		"entry":      {get: c.getEntry},
		"note":       {post: c.postNote},
		"payload":    {get: c.getPayload},
		"replays":    {get: c.getReplays},
		"replay":     {get: c.getReplay, post: c.postResume},
		"change":     {get: c.getChange, post: c.postChange},
		"job":        {get: c.getJob},
		"stop":       {post: c.postStop},
		"edit":       {get: c.getEdit, post: c.postEdit},

		"parked-message": {get: c.getParkedMessage},
	}
	c.handler = c.protect(http.HandlerFunc(c.serve))
	return c, nil
}

// ServeHTTP serves a page.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// Close stops the running changes, and waits until they have ended. Replays of the
// quarantine are paused. Other changes stop after a batch. After Close, pages can still
// be read, but new changes are refused. If you call Close a second time, it also waits.
func (c *Console) Close() error {
	c.jobs.close()
	return nil
}

// serve finds the page by the last segment of the path. Therefore the console does not
// need to know the path under which it is mounted.
func (c *Console) serve(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if r.URL.Path == "" { // StripPrefix has removed the whole path, and relative links need the slash
		c.addSlash(w, r)
		return
	}
	if file, ok := assets[name]; ok {
		file.serve(w, r)
		return
	}
	page, ok := c.routes[name]
	if !ok {
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

// addSlash redirects to the same path with a slash at its end.
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
