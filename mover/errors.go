package mover

import (
	"errors"

	"github.com/watermill-once/once/schema"
)

var (
	// ErrNoTable reports that a stock table is missing. Either a name in the Config is
	// wrong, or the stock forwarder has never run in this database.
	ErrNoTable = errors.New("no such table")

	// ErrUnknownGroup reports that the consumer group has no offset, although other
	// groups have one. The mover does not start then, because it would move every
	// message that was ever sent. If you want this, insert the offset yourself:
	// consumer_group, offset_acked 0, last_processed_transaction_id '0'.
	ErrUnknownGroup = errors.New("mover: the consumer group has no offset, but others have")
)

// permanent reports whether repeating the work would fail with the same error.
func permanent(err error) bool {
	for _, target := range []error{ErrNoTable, ErrUnknownGroup, schema.ErrMissing, schema.ErrOutdated, schema.ErrNewer, schema.ErrDialect} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
