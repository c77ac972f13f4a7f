package mover

import (
	"errors"

	"github.com/watermill-once/once/schema"
)

var (
	// ErrNoTable says that a stock table is not there: the names in the Config
	// are wrong, or the stock forwarder never ran in this database.
	ErrNoTable = errors.New("mover: no such table")

	// ErrUnknownGroup says that the stock table has offsets of other consumer
	// groups and none of this one, which then would get everything that was
	// ever sent once more. If that is meant, put the offset there by hand:
	// consumer_group, offset_acked 0, last_processed_transaction_id '0'.
	ErrUnknownGroup = errors.New("mover: the consumer group has no offset, but others have")
)

// wrong says that trying again does not help.
func wrong(err error) bool {
	for _, one := range []error{ErrNoTable, ErrUnknownGroup, schema.ErrMissing, schema.ErrOutdated, schema.ErrNewer, schema.ErrDialect} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}
