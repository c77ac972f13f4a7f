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

// Metadata of the copies that go to Config.CopyTo: why the message is in
// quarantine, the consumer that failed and what it had subscribed to, the
// Entry's ID, the message's own id and the error.
const (
	CopyReason    = meta.QuarantineReason
	CopyConsumer  = meta.QuarantineConsumer
	CopyTopic     = meta.QuarantineTopic
	CopyEntry     = meta.QuarantineEntry
	CopyMessageID = meta.QuarantineMessage
	CopyError     = meta.QuarantineError
)

// maxCopied bounds the metadata of a copy, where brokers have narrow limits.
const maxCopied = 1024

// copyOut publishes a copy of the entry in its transaction. Quarantine is not
// to fail for it: if the outbox refuses the copy, there is none.
func (s *Quarantine) copyOut(ctx context.Context, tx *sql.Tx, e parked.Entry) error {
	if s.config.CopyTo == "" || e.Message == nil {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT once_copy"); err != nil {
		return err
	}
	err := s.config.Outbox(tx).Publish(s.config.CopyTo, copyOf(e))
	if err == nil {
		_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT once_copy")
		failpoint.Hit("poison/copied")
		return err
	}
	s.config.Logger.Error("The message is quarantined without a copy to the topic", err, watermill.LogFields{
		"entry": e.ID, "consumer": e.Consumer, "copy_to": s.config.CopyTo,
	})
	_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT once_copy")
	return err
}

// copyOf returns the message under an id of its own, with the metadata that any
// broker takes.
func copyOf(e parked.Entry) *message.Message {
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
