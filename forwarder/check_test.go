package forwarder_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/schema"
)

// choosy is a broker that knows which messages it cannot take.
type choosy struct{ *broker }

func (c choosy) Check(topic string, msg *message.Message) error {
	if msg.Metadata["x-delay"] != "" {
		return errors.New(`metadata "x-delay" would control ` + topic)
	}
	return nil
}

// Trap 32. A message that the publisher cannot send as it is becomes a dead letter with
// the reason, and is not published without its metadata.
func TestMessageThatThePublisherCannotSendBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		start(t, db, choosy{b}, quick(config))
		steering := msg("steering", "key")
		steering.Metadata["x-delay"] = "1000"
		put(t, db, config, "t", steering, msg("successor", "key"), msg("other", ""))
		drained(t, db)
		if !b.has("successor", "other") || b.tries("steering") != 0 {
			t.Errorf("stored %q; published the other %d times", b.ids(nil), b.tries("steering"))
		}
		var id, reason, last string
		err := db.QueryRowContext(t.Context(), `SELECT message_id, reason, last_error FROM once_outbox_dead`).Scan(&id, &reason, &last)
		if err != nil {
			t.Fatal(err)
		}
		const want = `forwarder: the publisher cannot send this message: metadata "x-delay" would control t`
		if id != "steering" || reason != "unacceptable" || last != want {
			t.Errorf("dead letter %s, %s, %s", id, reason, last)
		}
	})
}
