// Package archive reads the inbox. The inbox contains the ids of the messages that each consumer
// has handled, and the times at which they were handled. [Log.Export] writes the rows as JSON
// lines, so that you can keep them for longer than the retention of the inbox.
//
//	once_inbox ─── Export ───▶ {"message_id": ..., "consumer": ..., "handled_at": ...}
//
// An archive consists of many exports. Each export begins at the [Cursor] at which the previous
// export ended, and ends at [Log.Settled]. So the archive contains each row once.
package archive
