// Package console is a web page on which people look at messages that wait, have failed or were
// sent. They can also replay, edit, cancel or discard messages. Mount the console in a service:
//
//	pages, err := console.Handler(db, console.Config{Authorize: console.ReadOnly})
//	...
//	mux.Handle("/ops/once/", pages)
//
// The console has no SQL and no tables of its own. It calls packages such as operate/outbox,
// operate/dead, operate/parked and operate/quarantine, so you can do all of its work in code, or
// with the command line.
//
// Each page is one path segment, and all links are relative, so the console works under any path
// that ends in a slash, with and without http.StripPrefix. Pages can be read without JavaScript.
//
// Changes run in the process that serves the console, not in the browser:
//
//	form ── POST ──▶ Authorize ──▶ job ──▶ ReplayMatching, DiscardMatching, ...
//	                                │
//	browser ◀── progress ───────────┘
//
// If you close the browser, the changes continue. [Console.Close] ends the jobs: a replay of the
// quarantine is paused and can be resumed, any other stops after a batch.
package console
