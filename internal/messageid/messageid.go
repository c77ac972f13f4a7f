// Package messageid creates the ids of messages.
package messageid

import "github.com/google/uuid"

// New returns a UUID of version 7. It begins with the time, so new ids are next to each
// other in an index.
func New() string { return uuid.Must(uuid.NewV7()).String() }
