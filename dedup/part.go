package dedup

import "github.com/watermill-once/once/internal/start"

// Part describes the inbox to once.Plugin.
func (i *Inbox) Part() start.Part {
	part := start.Part{
		Name: "dedup", DB: i.db, Schema: i.config.Schema, Logger: i.config.Logger,
		Tables:   []string{"inbox", "parked", "replays"},
		Consumer: i.config.Consumer, Outbox: i.config.Outbox != nil, Retention: i.config.Retention,
		BatchSize: i.config.Batch.Size, BatchInFlight: i.config.Batch.inFlight(),
	}
	if !i.config.SweptElsewhere {
		part.Run = i.Run
	}
	return part
}
