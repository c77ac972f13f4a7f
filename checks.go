package once

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/routed"
)

// order lists the parts of a handler's chain in the order in which their middlewares
// must be nested. The outermost part comes first.
var order = []string{"poison", "retry", "dedup", "sequence"}

const (
	module = "github.com/watermill-once/once/"
	stock  = "github.com/ThreeDotsLabs/watermill/message/router/middleware."
)

const batchMiddleware = module + "dedup.(*Inbox).BatchMiddleware-fm"

// methods maps the function names of middlewares to the names of their parts. These
// middlewares are method values, such as retries.Middleware, that services pass to
// AddMiddleware.
var methods = map[string]string{
	module + "poison.(*Quarantine).Middleware-fm":    "poison",
	module + "retry.(*Retries).Middleware-fm":        "retry",
	module + "dedup.(*Inbox).Middleware-fm":          "dedup",
	batchMiddleware:                                  "dedup",
	module + "sequence.(*Resequencer).Middleware-fm": "sequence",
}

// closures describes the functions that our middlewares return. Each entry contains the
// end of the file name, a substring of the function name, and the name of the part to
// which the middleware belongs. The file name is needed because the compiler may name a
// closure after the function into which it was inlined.
var closures = [][3]string{
	{"/poison/middleware.go", "(*Quarantine).Middleware.", "poison"},
	{"/retry/middleware.go", "(*Retries).Middleware.", "retry"},
	{"/dedup/inbox.go", "(*Inbox).middleware.", "dedup"},
	{"/sequence/resequencer.go", "(*Resequencer).Middleware.", "sequence"},
}

// partOf returns the part to which the middleware f belongs, or "" if f is another
// function.
func partOf(f routed.Func) string {
	if part, ok := methods[f.Name]; ok {
		return part
	}
	for _, c := range closures {
		if strings.HasSuffix(f.File, c[0]) && strings.Contains(f.Name, c[1]) {
			return c[2]
		}
	}
	return ""
}

// chain returns the parts whose middlewares it can see around h, from the outside in.
// The doc comment of Plugin says which middlewares it cannot see.
func chain(h routed.Handler) (parts []string) {
	for _, f := range h.Chain {
		if part := partOf(f); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

func hasPart(h routed.Handler, part string) bool { return slices.Contains(chain(h), part) }

// checkSettings returns an error if the parts have different schemas, or if the inbox
// forgets messages that retry may still run.
func (s *starter) checkSettings() error {
	if len(s.parts) == 0 {
		return errors.New("Plugin was called without parts: pass the parts that the handlers use, as Plugin(quarantine, retries, inbox)")
	}
	var errs []error
	for _, part := range s.parts[1:] {
		if first := s.parts[0]; part.Schema != first.Schema {
			errs = append(errs, fmt.Errorf("%s.Config.Schema is %+v and %s.Config.Schema is %+v: the parts share their tables, set the same in all",
				first.Name, first.Schema, part.Name, part.Schema))
		}
	}
	for _, inbox := range s.parts {
		for _, retries := range s.parts {
			if inbox.Retention > 0 && inbox.Retention < retries.LongestDelay {
				errs = append(errs, fmt.Errorf("dedup.Config.Retention is %v, and retry retries for up to %v: "+
					"a late duplicate would be handled again; raise Retention, or lower Policy.Delayed or Policy.Max",
					inbox.Retention, retries.LongestDelay))
			}
		}
	}
	return errors.Join(errs...)
}
