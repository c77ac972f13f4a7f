package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// RemoveOptions configures [Messages.RemoveConsumer].
type RemoveOptions struct {
	// Force also removes a consumer that runs or has messages. Its messages stay, and Consumers
	// still lists it. If it runs, it registers again within 30 seconds.
	Force bool
}

// RemoveConsumer removes the registration of a consumer for a topic. Call it when no
// process runs the consumer any more. The embedded transport then stores no more
// messages for it. Act.Why is required.
//
// RemoveConsumer fails with [ErrConsumerNotFound] if there is no registration, with
// [ErrRunning] if an instance renewed its row in the last two minutes, and with
// [ErrNotEmpty] if a message of the consumer is waiting, held or in quarantine. In the
// last case, cancel or discard the messages, or run an earlier release of the service
// to handle them. The ids in the inbox, and resolved and discarded messages, stay until
// dedup's retention has passed. The rows in which package sequence remembers the
// applied versions stay forever.
func (m *Messages) RemoveConsumer(ctx context.Context, act operate.Act, name, topic string, opts RemoveOptions) error {
	err := act.ValidateLoss()
	if name == "" {
		err = errors.Join(err, errors.New("the name of the consumer is empty"))
	}
	if topic == "" {
		err = errors.Join(err, errors.New("the topic is empty"))
	}
	if err == nil {
		err = m.db.Write(ctx, func(tx *sql.Tx) error { return m.remove(ctx, tx, act, name, topic, opts) })
	}
	if err != nil {
		return fmt.Errorf("parked: remove consumer %q of topic %q: %w", name, topic, err)
	}
	return nil
}

func (m *Messages) remove(ctx context.Context, tx *sql.Tx, act operate.Act, name, topic string, opts RemoveOptions) error {
	name, topic = store.Clean(name, store.MaxName), store.Clean(topic, store.MaxName)
	existed, err := m.store.Remove(ctx, tx, name, topic, opts.Force)
	if running, ok := errors.AsType[*store.RunningError](err); ok {
		return fmt.Errorf("%w: %w", ErrRunning, running)
	}
	if err == nil && !existed {
		err = ErrConsumerNotFound
	}
	if err == nil && !opts.Force {
		err = m.checkEmpty(ctx, tx, name, topic)
	}
	if err != nil {
		return err
	}
	for _, table := range []string{"{consumer_pauses}", "{consumer_limits}"} {
		if _, err = tx.ExecContext(ctx, m.db.SQL(`DELETE FROM `+table+` WHERE topic = $1 AND consumer = $2`), topic, name); err != nil {
			return err
		}
	}
	failpoint.Hit("parked/consumer-removed")
	return rows.AuditConsumer(ctx, tx, m.db.Dialect, act.Actor, act.Why, "remove", "topic:"+topic, name)
}

func (m *Messages) checkEmpty(ctx context.Context, tx *sql.Tx, name, topic string) error {
	var has []string
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			state string
			some  bool
		)
		err := scan(&state, &some)
		if some {
			has = append(has, state)
		}
		return err
	}, m.db.SQL(`
		SELECT 'waiting', (SELECT 1 FROM {parked} AS p WHERE p.consumer = $1 AND p.topic = $2 AND `+isFresh+` LIMIT 1) IS NOT NULL
		               OR (SELECT 1 FROM {parked} AS p WHERE p.consumer = $1 AND p.topic = $2 AND `+isCrashed+` LIMIT 1) IS NOT NULL
		UNION ALL
		SELECT 'held', (SELECT 1 FROM {parked} AS p WHERE p.consumer = $1 AND p.topic = $2 AND p.state = 'held' LIMIT 1) IS NOT NULL
		UNION ALL
		SELECT 'quarantined', (SELECT 1 FROM {parked} AS p WHERE p.consumer = $1 AND p.topic = $2 AND p.state || '' = 'quarantined' LIMIT 1)
		               IS NOT NULL`), name, topic)
	if err == nil && len(has) > 0 {
		err = fmt.Errorf("%w: %s; cancel or discard them first, or force the removal, which leaves them", ErrNotEmpty, strings.Join(has, ", "))
	}
	return err
}
