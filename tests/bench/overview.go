package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/watermill-once/once/console"
)

// overview simulates a browser that opens and closes the overview page of a console. The
// console has a pool of its own with one connection.
type overview struct {
	console *console.Console
	pool    *sql.DB
	every   time.Duration // the time between two requests of an open page
	held    *sql.Conn     // the connection, while the page is closed
}

// openOverview opens the page. It returns when the console has counted the messages of
// the last 30 days, because this work is done only once and must not be measured.
func (s *scene) openOverview(ctx context.Context) (_ *overview, err error) {
	o := &overview{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if o.pool, err = open(s.db.dsn); err != nil {
		return nil, err
	}
	o.pool.SetMaxOpenConns(1)
	if o.console, err = newConsole(o.pool); err != nil {
		return nil, err
	}
	text, err := loadPage(ctx, o.console, "")
	if err != nil {
		return nil, err
	}
	if o.every, err = requestsEvery(text); err != nil {
		return nil, err
	}
	return o, o.countDays(ctx)
}

// live matches the attribute that tells htmx how often to load the page again.
var live = regexp.MustCompile(`hx-trigger="every ([0-9]+s)"`)

func requestsEvery(page string) (time.Duration, error) {
	found := live.FindStringSubmatch(page)
	if found == nil {
		return 0, fmt.Errorf("the overview does not say how often it is loaded again: %s", page)
	}
	return time.ParseDuration(found[1])
}

func (o *overview) countDays(ctx context.Context) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		text, err := loadPage(ctx, o.console, "days")
		if err != nil || strings.Contains(text, "<td") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}

// hide closes the page. The console would continue to read the tables for an hour after
// the last request. To prevent this, hide takes away the console's only connection.
func (o *overview) hide(ctx context.Context) (err error) {
	if o.held == nil {
		o.held, err = o.pool.Conn(ctx)
	}
	return err
}

// show opens the page again.
func (o *overview) show() error {
	if o.held == nil {
		return nil
	}
	held := o.held
	o.held = nil
	return held.Close()
}

// look makes the requests that an open page makes during a period. It makes the first
// request immediately.
func (o *overview) look(ctx context.Context, period time.Duration) error {
	for start, at := time.Now(), time.Duration(0); at < period; at += o.every {
		if err := wait(ctx, start.Add(at)); err != nil {
			return err
		}
		if _, err := loadPage(ctx, o.console, ""); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the console and its pool.
func (o *overview) Close() (err error) {
	if o.pool == nil {
		return nil
	}
	err = o.show()
	if o.console != nil {
		err = errors.Join(err, o.console.Close())
	}
	return errors.Join(err, o.pool.Close())
}
