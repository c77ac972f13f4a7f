// Package handled reads the inbox: which messages each consumer has handled, and when.
// [Log.Export] writes the rows as JSON lines, so that they can be kept for longer than
// the retention of the inbox.
//
//	once_inbox ─── Export ───▶ {"message_id": ..., "consumer": ..., "handled_at": ...}
//
// An archive is made of many exports. Each one continues at the [Cursor] of the one
// before, and ends at [Log.Settled], so that it contains each row once.
//
// To read the code, start with log.go, then export.go and settled.go.
package handled
