package dedup_test

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
)

// asOther returns a handler that calls h and then changes to a role that may read all
// tables but write to none.
func asOther(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if err != nil {
			return nil, err
		}
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err = tx.ExecContext(msg.Context(), `SET LOCAL ROLE pg_read_all_data`)
		return produced, err
	}
}

func asItself(h message.HandlerFunc) message.HandlerFunc { return h }

// publishing returns a handler that calls h, and publishes the messages of h itself, in
// place of the inbox.
func publishing(b *bench, h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if err != nil {
			return nil, err
		}
		tx, _ := dedup.TxFromContext(msg.Context())
		return nil, b.box.Publisher(tx).Publish("payments.captured", produced...)
	}
}

// If a consumer cannot write to the outbox, for example because its database role lacks
// the right, the message is not at fault. So no attempt may be counted, and the message
// must not end in quarantine.
func TestUnwritableOutboxCountsAsNoAttempt(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct {
		prepare string
		wrap    func(message.HandlerFunc) message.HandlerFunc
	}{
		"permission denied for table once_outbox": {`SELECT 1`, asOther},
		`relation "once_outbox" does not exist`: {
			`ALTER TABLE once_outbox RENAME TO elsewhere`, asItself,
		},
		`column "due_at" of relation`: {`ALTER TABLE once_outbox RENAME due_at TO due`, asItself},
	} {
		t.Run(says, func(t *testing.T) {
			b := newBench(t, testkit.Postgres(t), nil)
			b.exec(c.prepare)
			h := c.wrap(produce("e1", nil))
			for how, handle := range map[string]message.HandlerFunc{
				"returned":             b.inbox.Middleware(h),
				"returned in a batch":  b.inbox.BatchMiddleware(h),
				"published by handler": b.inbox.Middleware(publishing(b, h)),
			} {
				_, err := handle(message.NewMessage("m1", nil))
				kindOf(t, err, disposition.Undecided)
				for _, part := range []string{says, "once_outbox", "docs/roles.md", "schema.Check"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: %q is not in: %v", how, part, err)
					}
				}
			}
			if n := b.count("effects") + b.count("once_inbox"); n != 0 {
				t.Errorf("%d rows of effects and inbox are left", n)
			}
		})
	}
}

// If the database refuses the produced message itself, the handler has failed.
func TestProducedMessageThatTheDatabaseRefusesFailsTheHandler(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), nil)
	b.exec(`ALTER TABLE once_outbox ADD CHECK (topic <> 'payments.captured')`)
	for _, h := range []message.HandlerFunc{produce("e1", nil), publishing(b, produce("e1", nil))} {
		_, err := b.inbox.Middleware(h)(message.NewMessage("m1", nil))
		kindOf(t, err, disposition.Failed)
	}
	b.expect(0, 0, 0)
}

// If a handler has no permission for one of its own tables, it has failed.
func TestMissingRightOnTheHandlersTableFailsTheHandler(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), nil)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := asOther(apply)(msg)
		if err != nil {
			return nil, err
		}
		return nil, write(msg.Context(), msg)
	})(message.NewMessage("m1", nil))
	kindOf(t, err, disposition.Failed)
	b.expect(0, 0, 0)
}
