package dedup

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
)

const (
	maxName = 255

	// keyPrefix stands before a business key, so that it is no message's id.
	keyPrefix = "key:"
)

// identity is one of the things that a message is remembered by.
type identity struct {
	id     string
	digest [sha256.Size]byte // tells two messages of one id apart
}

// identify returns what consumer is to remember msg by: nothing if it may do it
// any number of times.
func (i *Inbox) identify(msg *message.Message, consumer string) ([]identity, error) {
	if consumer == "" {
		return nil, disposition.NotCalled(fmt.Errorf("dedup: %w", ErrNoConsumer))
	}
	if why := disposition.Undecodable(msg.Context()); why != nil { // where no middleware further out has said so
		return nil, disposition.Forever(disposition.ReasonUndecodable, fmt.Errorf("dedup: %w", why))
	}
	if slices.Contains(i.config.Idempotent, consumer) {
		return nil, nil
	}
	if err := i.alone(msg, consumer); err != nil {
		return nil, err
	}
	if i.config.Key != nil {
		i.consumers.LoadOrStore(consumer, nil)
	}
	return i.identities(msg)
}

// alone refuses the messages of a handler that has the consumer's name of
// another, and logs the first of them.
func (i *Inbox) alone(msg *message.Message, consumer string) error {
	if i.config.ShareConsumer {
		return nil
	}
	first, err := i.names.check(msg.Context(), consumer)
	if err == nil {
		return nil
	}
	if first {
		i.config.Logger.Error("Two handlers have one consumer's name, the messages of the second are handed back", err,
			watermill.LogFields{"consumer": consumer, "topic": message.SubscribeTopicFromCtx(msg.Context())})
	}
	return disposition.HandBack(fmt.Errorf("dedup: %w", err))
}

// identities returns what msg is remembered by, or why it cannot be. With a
// key, that is both: a discarded or parked message is known by its id alone.
func (i *Inbox) identities(msg *message.Message) ([]identity, error) {
	key := i.config.Key
	var all []identity
	if key == nil || msg.UUID != "" {
		why := unusable(msg.UUID)
		if key != nil && strings.HasPrefix(msg.UUID, keyPrefix) {
			why = "it begins with " + keyPrefix + ", as keys do"
		}
		if why != "" {
			return nil, invalid("", why)
		}
		all = append(all, identity{msg.UUID, sha256.Sum256(msg.Payload)})
	}
	if key == nil {
		return all, nil
	}
	name, content := key(msg), []byte(msg.Payload)
	if why := unusable(name); why != "" {
		return nil, invalid("Config.Key: ", why)
	}
	if i.config.Content != nil {
		content = i.config.Content(msg)
	}
	return append(all, identity{keyPrefix + name, sha256.Sum256(content)}), nil
}

// unusable says why the inbox could not keep an id, or would confuse it.
func unusable(id string) string {
	switch {
	case id == "":
		return "it is empty" // all such messages would count as one
	case len(id) > maxName:
		return fmt.Sprintf("it is %d bytes long, more than %d", len(id), maxName)
	case !utf8.ValidString(id):
		return "it is not valid UTF-8"
	case strings.ContainsRune(id, 0):
		return "it contains NUL"
	}
	return ""
}

func invalid(what, why string) error {
	return disposition.Forever(disposition.ReasonInvalidID, fmt.Errorf("dedup: %w: %s%s", ErrInvalidID, what, why))
}

// unstorable is for an id, a key or a tenant that the database has no letters
// for. No try can mend that, and the database is not away: the message goes out
// of the way of the others.
func unstorable(err error) error {
	return disposition.Forever(disposition.ReasonInvalidID, fmt.Errorf(
		"dedup: %w: the database is not in UTF-8 and cannot store the id, or the tenant: see schema.Check: %w", ErrInvalidID, err))
}
