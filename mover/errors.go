package mover

import (
	"errors"

	"github.com/watermill-once/once/schema"
)

var (
	// ErrNoTable is the error for a missing stock table: a name in the Config is
	// wrong, or the stock forwarder has never run in this database.
	ErrNoTable = errors.New("mover: no such table")

	// ErrUnknownGroup is the error for a consumer group without an offset if other
	// groups have one: the mover would move every message that was ever sent. If you
	// want that, insert the offset yourself: consumer_group, offset_acked 0,
	// last_processed_transaction_id '0'.
	ErrUnknownGroup = errors.New("mover: the consumer group has no offset, but others have")
)

// permanent reports whether a repeated attempt would fail with the same error.
func permanent(err error) bool {
	for _, target := range []error{ErrNoTable, ErrUnknownGroup, schema.ErrMissing, schema.ErrOutdated, schema.ErrNewer, schema.ErrDialect} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
