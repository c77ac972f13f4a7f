// Package console is a web page on which people look at the messages that wait, failed
// or were sent, and replay, edit, cancel or discard them. Mount it in a service:
//
//	pages, err := console.Handler(db, console.Config{Authorize: console.ReadOnly})
//	...
//	mux.Handle("/ops/once/", pages)
//
// The console has no SQL and no tables of its own. It calls packages pending,
// deadletter and poison, so everything that it shows or changes can also be done in
// code, or with the command line.
//
// Each page is one path segment, and all links are relative. So the console works under
// any path that ends in a slash, with and without http.StripPrefix. All filters are in the
// query. Pages can be read without JavaScript.
//
// Changes run in the process that serves the console, not in the browser:
//
//	form ── POST ──▶ Authorize ──▶ job ──▶ ReplayMatching, DiscardMatching, ...
//	                                │
//	browser ◀── progress ───────────┘
//
// Closing the browser stops nothing. [Console.Close] ends the jobs: a replay of the
// quarantine is paused and can be resumed, any other job stops after a batch.
//
// To read the code, start with config.go, action.go and console.go (routes). security.go
// has the protections. Each page is a file: overview.go, outbox.go, dead.go, sent.go,
// quarantine.go, groups.go, replays.go, edit.go. Changes are in change.go, change_outbox.go,
// change_quarantine.go (one value for each act) and jobs.go.
package console
