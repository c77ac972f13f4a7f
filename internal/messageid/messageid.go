// Package messageid makes the ids of messages.
package messageid

import "github.com/google/uuid"

// New returns a UUID of version 7: it begins with the time, so that those who
// keep ids find the new ones side by side.
func New() string { return uuid.Must(uuid.NewV7()).String() }
