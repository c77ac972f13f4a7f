package mover

import (
	"errors"

	"github.com/watermill-once/once/schema"
)

var (
	// ErrNoTable means that a table of Watermill's own forwarder is missing. Either a name
	// in the Config is wrong, or that forwarder has never run with this database.
	ErrNoTable = errors.New("no such table")

	// ErrUnknownGroup means that the consumer group has no offset, but other groups have
	// one. The mover then does not start, because it would move every message that was ever
	// sent. If you want this, insert a row into the offsets table yourself: the name of the
	// group as consumer_group, 0 as offset_acked, and '0' as last_processed_transaction_id.
	ErrUnknownGroup = errors.New("mover: the consumer group has no offset, but others have")
)

// permanent reports whether the same error would occur again if the work were repeated.
func permanent(err error) bool {
	for _, target := range []error{ErrNoTable, ErrUnknownGroup, schema.ErrMissing, schema.ErrOutdated, schema.ErrNewer, schema.ErrDialect} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
