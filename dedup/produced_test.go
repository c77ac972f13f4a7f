package dedup_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
)

func produce(id string, err error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		event := message.NewMessage(id, []byte(`{}`))
		outbox.SetTopic(event, "payments.captured")
		return []*message.Message{event}, errors.Join(write(msg.Context(), msg), err)
	}
}

// Trap 37. Produced messages must be stored in the handler's transaction. The router
// must not get them, because it would publish them after the commit.
func TestProducedMessagesAreCommittedWithTheEffect(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		for range 2 { // the duplicate must not produce messages again
			msg := message.NewMessage("m1", nil)
			outbox.SetTenant(msg, "acme")
			returned, err := b.inbox.Middleware(produce("e1", nil))(msg)
			kit.OK(t, err)
			if len(returned) != 0 {
				t.Fatalf("%d messages are returned to the router", len(returned))
			}
		}
		b.expect(1, 1, 1)

		var topic, metadata string
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT topic, metadata FROM once_outbox`).Scan(&topic, &metadata))
		var got map[string]string
		kit.OK(t, json.Unmarshal([]byte(metadata), &got))
		if topic != "payments.captured" || got["once_causation_id"] != "m1" || got["once_tenant_id"] != "acme" {
			t.Fatalf("topic %q, metadata %v", topic, got)
		}
	})
}

// Trap 37. If the commit is refused, the produced messages must not be sent.
func TestProducedMessagesOfARefusedCommitAreNotSent(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	b.Exec(`CREATE TABLE unique_later (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	b.Exec(`INSERT INTO unique_later VALUES (1)`)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		if _, err := tx.ExecContext(msg.Context(), `INSERT INTO unique_later VALUES (1)`); err != nil {
			return nil, err
		}
		return produce("e1", nil)(msg)
	})(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Failed)
	b.expect(0, 0, 0)
}

// If the handler has set a causation id or tenant, the inbox must not overwrite it.
func TestProducedMessagesKeepTheirOwnCauseAndTenant(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	msg := message.NewMessage("m1", nil)
	outbox.SetTenant(msg, "acme")
	_, err := b.inbox.Middleware(func(*message.Message) ([]*message.Message, error) {
		event := &message.Message{UUID: "e1"}
		outbox.SetTopic(event, "t")
		outbox.SetTenant(event, "other")
		outbox.SetCausation(event, "m0")
		return []*message.Message{event}, nil
	})(msg)
	kit.OK(t, err)
	b.WantCount(1, `once_outbox WHERE metadata LIKE '%"once_causation_id":"m0"%' AND metadata LIKE '%"once_tenant_id":"other"%'`)
	b.expect(0, 1, 1)
}

func TestInboxStoresTheTenant(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		msg := message.NewMessage("m1", nil)
		outbox.SetTenant(msg, "ac\x00me")
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(msg)))
		b.handle(apply, "m2")
		if n := b.Count(`once_inbox WHERE message_id = 'm1' AND tenant = 'ac�me' OR message_id = 'm2' AND tenant IS NULL`); n != 2 {
			t.Fatalf("%d of 2 rows have their tenant", n)
		}
	})
}

func TestProducedMessagesAreRolledBackWithTheEffect(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		if _, err := b.inbox.Middleware(produce("e1", errHandler))(message.NewMessage("m1", nil)); !errors.Is(err, errHandler) {
			t.Fatal(err)
		}
		b.expect(0, 0, 0)
	})
}

// No attempt can store a message that the outbox refuses. So the error is permanent,
// whether the handler returns such a message or publishes it.
func TestProducedMessagesThatCannotBeStoredArePermanent(t *testing.T) {
	t.Parallel()
	with := func(key, value string) *message.Message {
		msg := message.NewMessage("e1", nil)
		msg.Metadata[key] = value
		return msg
	}
	same := with(outbox.Topic, "t")
	invalid := map[string][]*message.Message{
		"no id":          {message.NewMessage("", nil)},
		"NUL in id":      {message.NewMessage("a\x00b", nil)},
		"long id":        {message.NewMessage(strings.Repeat("x", 256), nil)},
		"bad metadata":   {with("a", "\xff")},
		"unknown key":    {with("once_mine", "x")},
		"long topic":     {with(outbox.Topic, strings.Repeat("x", 256))},
		"large payload":  {message.NewMessage("e1", make([]byte, 16<<20+1))},
		"nil":            {nil},
		"returned twice": {same, with("b", "c"), same},
	}
	eachDatabase(t, func(t *testing.T, b *bench) {
		for name, produced := range invalid {
			returns := func(msg *message.Message) ([]*message.Message, error) {
				for _, p := range produced {
					if p != nil && p.Metadata[outbox.Topic] == "" {
						outbox.SetTopic(p, "t")
					}
				}
				return produced, write(msg.Context(), msg)
			}
			publishes := func(msg *message.Message) ([]*message.Message, error) {
				tx, _ := dedup.TxFromContext(msg.Context())
				err := b.box.Publisher(tx).Publish(produced[0].Metadata[outbox.Topic], produced...)
				return nil, fmt.Errorf("publish: %w", err)
			}
			handlers := map[string]message.HandlerFunc{
				"returns":          b.inbox.Middleware(returns),
				"returns in batch": b.inbox.BatchMiddleware(returns),
				"publishes":        b.inbox.Middleware(publishes),
			}
			if produced[0] == nil || len(produced) > 1 { // the topics of published messages are known
				delete(handlers, "publishes")
			}
			for how, h := range handlers {
				_, err := h(message.NewMessage("m1", nil))
				if v := chain.Of(err); err == nil || v.Kind != chain.Permanent || v.Reason != chain.ReasonPermanent {
					t.Errorf("%s %s: the disposition of %v is %d %q, want permanent", how, name, err, v.Kind, v.Reason)
				}
			}
		}
		b.expect(0, 0, 0)
	})
}

// A produced message without a topic of its own gets the publish topic of the router's
// handler. The router does not publish it.
func TestProducedMessageGetsThePublishTopicOfTheRouter(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(t, err)
	router.AddMiddleware(b.inbox.Middleware)
	in := newHand()
	router.AddHandler("payments", "orders.placed", in, "payments.captured", unused{t},
		func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("e1", nil), toTopic("e2")}, nil
		})
	ended := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
	<-router.Running()
	msg := message.NewMessage("m1", nil)
	in <- msg
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
		t.Error("the message was nacked")
	}
	kit.Check(t, errors.Join(router.Close(), <-ended))
	if n := b.Count(`once_outbox WHERE message_id = 'e1' AND topic = 'payments.captured' OR message_id = 'e2' AND topic = 't'`); n != 2 {
		t.Errorf("%d of 2 messages have their topic", n)
	}
}

// unused is a publisher that the router must not use.
type unused struct{ t *testing.T }

// Publish fails the test.
func (u unused) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) > 0 {
		u.t.Errorf("the router publishes %d messages to %s", len(msgs), topic)
	}
	return nil
}

// Close does nothing.
func (unused) Close() error { return nil }

func TestProducedMessagesWithoutTopicOrOutboxFailPermanently(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	b := newBench(t, db, nil)
	_, err := b.inbox.Middleware(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("e1", nil)}, nil
	})(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Permanent)
	if !errors.Is(err, dedup.ErrNoTopic) {
		t.Errorf("got %v, want ErrNoTopic", err)
	}

	bare, err := dedup.New(db.DB, dedup.Config{Schema: b.Config, Consumer: consumer})
	kit.OK(t, err)
	_, err = bare.Middleware(produce("e1", nil))(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Permanent)
	if !errors.Is(err, dedup.ErrNoOutbox) {
		t.Errorf("got %v, want ErrNoOutbox", err)
	}
	b.expect(0, 0, 0)
}

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
		`relation "public.once_outbox" does not exist`: {
			`ALTER TABLE once_outbox RENAME TO elsewhere`, asItself,
		},
		`column "due_at" of relation`: {`ALTER TABLE once_outbox RENAME due_at TO due`, asItself},
	} {
		t.Run(says, func(t *testing.T) {
			b := newBench(t, kit.Postgres(t), nil)
			b.Exec(c.prepare)
			h := c.wrap(produce("e1", nil))
			for how, handle := range map[string]message.HandlerFunc{
				"returned":             b.inbox.Middleware(h),
				"returned in a batch":  b.inbox.BatchMiddleware(h),
				"published by handler": b.inbox.Middleware(publishing(b, h)),
			} {
				_, err := handle(message.NewMessage("m1", nil))
				kindOf(t, err, chain.Undecided)
				for _, part := range []string{says, "once_outbox", "docs/roles.md", "schema.Check"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: %q is not in: %v", how, part, err)
					}
				}
			}
			if n := b.Count("effects") + b.Count("once_inbox"); n != 0 {
				t.Errorf("%d rows of effects and inbox are left", n)
			}
		})
	}
}

// If the database refuses the produced message itself, the handler has failed.
func TestProducedMessageThatTheDatabaseRefusesFailsTheHandler(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	b.Exec(`ALTER TABLE once_outbox ADD CHECK (topic <> 'payments.captured')`)
	for _, h := range []message.HandlerFunc{produce("e1", nil), publishing(b, produce("e1", nil))} {
		_, err := b.inbox.Middleware(h)(message.NewMessage("m1", nil))
		kindOf(t, err, chain.Failed)
	}
	b.expect(0, 0, 0)
}

// If a handler has no permission for one of its own tables, it has failed.
func TestMissingRightOnTheHandlersTableFailsTheHandler(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := asOther(apply)(msg)
		if err != nil {
			return nil, err
		}
		return nil, write(msg.Context(), msg)
	})(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Failed)
	b.expect(0, 0, 0)
}
