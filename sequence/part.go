package sequence

import "github.com/watermill-once/once/internal/start"

// Part describes the resequencer to once.Plugin.
func (r *Resequencer) Part() start.Part {
	return start.Part{
		Name: "sequence", Schema: r.config.Schema, Logger: r.config.Logger,
		Tables: []string{"versions", "parked"},
	}
}
