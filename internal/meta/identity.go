package meta

import (
	"crypto/sha256"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// digestPrefix begins the identities that are digests. No id that is stored contains it.
const digestPrefix = "\x00"

// Identity returns the id of msg, or a digest of its payload if it has no id. Use it to count the
// calls for a message.
func Identity(msg *message.Message) string {
	if msg.UUID != "" {
		return msg.UUID
	}
	digest := sha256.Sum256(msg.Payload)
	return digestPrefix + string(digest[:])
}

// IsID reports whether an [Identity] is an id.
func IsID(identity string) bool { return !strings.HasPrefix(identity, digestPrefix) }
