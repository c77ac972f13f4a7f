package sequence

import (
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
)

const maxName = 255 // in bytes; parked.CheckName has the same limit

// aggregate contains the type, the id and the version of an aggregate, as they are in
// the metadata of a message.
type aggregate struct {
	kind, id string
	version  int64
}

// aggregateOf returns the aggregate in the metadata of msg. The result ok is false if
// the metadata contains no aggregate.
func (c Config) aggregateOf(msg *message.Message) (a aggregate, ok bool, err error) {
	a.kind, a.id = msg.Metadata[meta.AggregateType], msg.Metadata[meta.AggregateID]
	version := msg.Metadata[meta.AggregateVersion]
	if a.kind == "" || a.id == "" || version == "" {
		return a, false, nil
	}
	for key, text := range map[string]string{meta.AggregateType: a.kind, meta.AggregateID: a.id} {
		if parked.CheckName(text) != nil {
			return a, false, fmt.Errorf("sequence: %w: %s is longer than %d bytes, or not valid text", ErrInvalidVersion, key, maxName)
		}
	}
	a.version, err = strconv.ParseInt(version, 10, 64)
	if err != nil || a.version < c.first() {
		return a, false, fmt.Errorf("sequence: %w: %s is %.40q, not a whole number of at least %d, where versions begin (Config.First)",
			ErrInvalidVersion, meta.AggregateVersion, version, c.first())
	}
	return a, true, nil
}

// sequence returns a string that identifies the aggregate by its type and id.
func (a aggregate) sequence() string { return strconv.Itoa(len(a.kind)) + ":" + a.kind + a.id }
