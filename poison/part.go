package poison

import "github.com/watermill-once/once/internal/start"

// Part describes the quarantine to once.Plugin.
func (s *Quarantine) Part() start.Part {
	return start.Part{
		Name: "poison", DB: s.parked.DB(), Schema: s.config.Schema, Logger: s.config.Logger,
		Tables: []string{"inbox", "parked", "replays"},
		Outbox: s.config.CopyTo != "",
	}
}
