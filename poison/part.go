package poison

import "github.com/watermill-once/once/internal/start"

// Part describes the quarantine for once.Plugin.
func (q *Quarantine) Part() start.Part {
	return start.Part{
		Name: "poison", DB: q.table.db, Schema: q.config.Schema, Logger: q.config.Logger,
		Tables: []string{"inbox", "parked", "replays"},
		Outbox: q.config.CopyTo != "",
	}
}
