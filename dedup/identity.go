package dedup

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
)

const (
	maxName = 255

	// keyPrefix distinguishes business keys from message ids in the inbox.
	keyPrefix = "key:"
)

type identity struct {
	id     string
	digest [sha256.Size]byte // hash of the content, which tells apart different messages with the same id
}

// identify returns how the inbox remembers msg: not at all for an idempotent consumer.
func (i *Inbox) identify(msg *message.Message, consumer string) ([]identity, error) {
	if consumer == "" {
		return nil, chain.NotCalled(fmt.Errorf("dedup: %w", errNoConsumer))
	}
	if why := chain.Unrunnable(msg.Context()); why != nil { // without poison, no other middleware has refused the message
		return nil, fmt.Errorf("dedup: %w", why)
	}
	if slices.Contains(i.config.Idempotent, consumer) {
		return nil, nil
	}
	if err := i.checkConsumerName(msg, consumer); err != nil {
		return nil, err
	}
	if i.config.Key != nil {
		i.keyConsumers.LoadOrStore(consumer, nil)
	}
	return i.identities(msg)
}

// checkConsumerName logs the first error of each handler.
func (i *Inbox) checkConsumerName(msg *message.Message, consumer string) error {
	first, err := i.consumerNames.check(msg.Context(), consumer)
	if err == nil {
		return nil
	}
	if first {
		i.config.Logger.Error("Two handlers have the same consumer name, messages of the second are nacked", err,
			watermill.LogFields{"consumer": consumer, "topic": message.SubscribeTopicFromCtx(msg.Context())})
	}
	return chain.NotCalled(fmt.Errorf("dedup: %w", err))
}

// identities returns the identities of msg, or ErrInvalidID. Even with a key, a message has its id
// as an identity, because discarded and parked messages are searched by id.
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

func unusable(id string) string {
	switch {
	case id == "":
		return "it is empty" // all such messages would count as duplicates
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
	return chain.Forever(chain.ReasonInvalidID, fmt.Errorf("dedup: %w: %s%s", ErrInvalidID, what, why))
}

// unstorable is permanent: the database's character set cannot encode an id, a key or a tenant.
func unstorable(err error) error {
	return chain.Forever(chain.ReasonInvalidID, fmt.Errorf(
		"dedup: %w: the database is not in UTF-8 and cannot store the id, or the tenant: see schema.Check: %w", ErrInvalidID, err))
}

type consumerNames struct {
	owners   sync.Map // name of the first handler of each consumerTopic
	reported sync.Map // each nameConflict that was reported
}

type consumerTopic struct{ consumer, topic string }

type nameConflict struct {
	consumerTopic

	handler string
}

// check returns an error if another handler uses the consumer name for the same topic, because each
// would skip messages that the other has handled. first is true for the first error of a handler.
// retry's Subscriber has checked its own messages.
func (n *consumerNames) check(ctx context.Context, consumer string) (first bool, err error) {
	if parkedrows.DeliveryOf(ctx).Subscribed {
		return false, nil
	}
	handler, at := message.HandlerNameFromCtx(ctx), consumerTopic{consumer, message.SubscribeTopicFromCtx(ctx)}
	owner, known := n.owners.Load(at)
	if !known {
		owner, known = n.owners.LoadOrStore(at, handler)
	}
	if !known || owner == handler {
		return false, nil
	}
	_, reported := n.reported.LoadOrStore(nameConflict{at, handler}, nil)
	return !reported, fmt.Errorf("%w: handler %q: consumer %q is already used by handler %q on topic %q; "+
		"give each handler its own consumer name", ErrConsumerInUse, handler, consumer, owner, at.topic)
}
