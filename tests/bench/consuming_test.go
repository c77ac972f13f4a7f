package main

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

func consumerScene(t *testing.T) *scene {
	t.Helper()
	b, _ := tiny(t)
	s, err := b.newConsumerScene(t.Context(), "classic")
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.Check(t, s.Close())
	})
	return s
}

// A measurement fails if its handler writes nothing.
func TestEffectsAreChecked(t *testing.T) {
	lazy := func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil }
	s := consumerScene(t)
	kit.OK(t, kit.Err(s.consume(t.Context(), newMessages(3), chainWith(rabbit.SubscriberConfig{}, lazy))))
	kit.Check(t, s.hasEffects(t.Context(), effects{inbox: 3}))
	if err := s.hasEffects(t.Context(), effects{orders: 3, inbox: 3}); err == nil || !strings.Contains(err.Error(), "orders:3") {
		t.Error(err)
	}
}

func TestNackedMessageIsAnError(t *testing.T) {
	s := consumerScene(t)
	broken := errors.New("broken")
	_, err := s.consume(t.Context(), newMessages(3), func(s *scene, router *message.Router) error {
		return s.handle(router, s.db.DB, func(context.Context, *sql.Tx, *message.Message) error { return broken })
	})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}

// The ids that fill an inbox have the form and the order of the ids that messages would
// have left there.
func TestFilledIDsLookLikeIDsOfMessages(t *testing.T) {
	b, _ := tiny(t)
	for name, kind := range map[string]kindOfID{"7": inOrder, "4": atRandom} {
		i, err := b.newInbox(t.Context(), 1000, kind)
		kit.OK(t, err)
		defer func() {
			kit.Check(t, i.Close())
		}()
		var rows, ids, ofVersion, before, unlike int
		kit.OK(t, i.db.QueryRowContext(t.Context(), `
			SELECT count(*), count(DISTINCT message_id::uuid), count(*) FILTER (WHERE substr(message_id, 15, 1) = $1),
			       count(*) FILTER (WHERE message_id < $2),
			       count(*) FILTER (WHERE (consumer, length(digest), length(message_id)) IS DISTINCT FROM ('bench', 32, 36))
			FROM once_inbox`, name, inOrder.next()).Scan(&rows, &ids, &ofVersion, &before, &unlike))
		if rows != 1000 || ids != 1000 || ofVersion != 1000 || unlike != 0 || (before == 1000) != (name == "7") {
			t.Errorf("version %s: %d rows, %d ids, %d of the version, %d before now, %d unlike", name, rows, ids, ofVersion, before, unlike)
		}
	}
}
