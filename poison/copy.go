package poison

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/messageid"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
)

// Metadata keys of the copies on the topic Config.CopyTo: the reason of the
// quarantine, the consumer that failed and the topic of its subscription, the ID
// of the Entry, the id of the message and the error.
const (
	CopyReason    = meta.QuarantineReason
	CopyConsumer  = meta.QuarantineConsumer
	CopyTopic     = meta.QuarantineTopic
	CopyEntry     = meta.QuarantineEntry
	CopyMessageID = meta.QuarantineMessage
	CopyError     = meta.QuarantineError
)

// maxCopied is the maximum size of each metadata value of a copy, in bytes. Brokers
// have low limits for metadata.
const maxCopied = 1024

// publishCopy publishes a copy of the entry in the transaction of the entry. If the
// outbox refuses the copy, the message is quarantined without a copy.
func (q *Quarantine) publishCopy(ctx context.Context, tx *sql.Tx, e Entry) error {
	if q.config.CopyTo == "" || e.Message == nil {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT once_copy"); err != nil {
		return err
	}
	err := q.config.Outbox(tx).Publish(q.config.CopyTo, copyOf(e))
	if err == nil {
		_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT once_copy")
		failpoint.Hit("poison/copied")
		return err
	}
	q.config.Logger.Error("Message is quarantined without a copy, because the outbox refused the copy", err, watermill.LogFields{
		"entry": e.ID, "consumer": e.Consumer, "copy_to": q.config.CopyTo,
	})
	_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT once_copy")
	return err
}

// copyOf returns a copy of the message that has its own id, and metadata that every
// broker accepts.
func copyOf(e Entry) *message.Message {
	msg := message.NewMessage(messageid.New(), slices.Clone(e.Message.Payload))
	for key, value := range e.Message.Metadata {
		switch {
		case meta.Steering(key), key == meta.DueAt, key == meta.OrderingKey, key == meta.Topic:
		case parked.CheckName(key) != nil, parked.Clean(value, maxCopied) != value:
		default:
			msg.Metadata[key] = value
		}
	}
	for key, value := range map[string]string{
		CopyReason: e.Reason, CopyConsumer: e.Consumer, CopyTopic: e.Topic, CopyEntry: strconv.FormatInt(e.ID, 10),
		CopyMessageID: e.MessageID, CopyError: e.Error,
	} {
		msg.Metadata[key] = strings.TrimSpace(parked.Clean(value, maxCopied))
	}
	return msg
}
