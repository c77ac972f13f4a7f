package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Pause describes the pause of a consumer for one topic: the person, the time and the
// reason.
type Pause struct {
	Actor, Why string

	// Since is the time of the pause, by the database's clock.
	Since time.Time

	// Breaker reports whether a breaker has begun the pause, and ends it when a message succeeds, see
	// retry.Breaker. PauseConsumer makes it a pause of the operator.
	Breaker bool
}

// ErrNotPaused means that the consumer is not paused.
var ErrNotPaused = errors.New("the consumer is not paused")

// PauseConsumer stops all instances of a consumer from starting to handle messages, until
// [Messages.ResumeConsumer]. If topic is "", it pauses the consumer for each of its
// topics. It returns the topics whose pause begins with this call. Topics that an
// operator had already paused are left out, and keep their reason. Act.Why is required.
//
// Each instance sees the pause within a second, and an instance that starts later sees it
// when it subscribes. Handlers that run finish, with their immediate retries. No attempt
// and no crash is counted. New messages stay in the broker, because each instance closes
// its subscription. Parked and replayed messages stay in the table.
//
// If no consumer has this name, or the consumer does not have this topic, the error wraps
// [ErrConsumerNotFound] and lists the known consumers.
func (m *Messages) PauseConsumer(ctx context.Context, act operate.Act, name, topic string) (topics []string, err error) {
	err = act.Validate()
	if act.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the messages must wait"))
	}
	if name == "" {
		err = errors.Join(err, errors.New("the name of the consumer is empty"))
	}
	name, topic = store.Clean(name, store.MaxName), store.Clean(topic, store.MaxName)
	if err == nil {
		pause := func(ctx context.Context, tx *sql.Tx, topic string) (bool, error) {
			n, err := dialect.Affected(tx.ExecContext(ctx, m.db.SQL(`
				INSERT INTO {consumer_pauses} AS p (topic, consumer, actor, why) VALUES ($1, $2, $3, $4)
				ON CONFLICT (topic, consumer) DO UPDATE
				SET actor = excluded.actor, why = excluded.why, paused_at = {now}, probe_at = NULL, probes = 0, prober = '', fingerprint = ''
				WHERE p.probe_at IS NOT NULL`), topic, name,
				store.Clean(act.Actor, store.MaxName), store.Clean(act.Why, store.MaxError)))
			return n > 0, err
		}
		topics, err = m.changeConsumer(ctx, act, "consumer.paused", name, topic, pause)
	}
	if err != nil {
		return nil, fmt.Errorf("parked: pause consumer: %w", err)
	}
	return topics, nil
}

// ResumeConsumer ends the pause of a consumer for a topic, or for all its topics if topic
// is "". It returns these topics. If the consumer is not paused, it returns
// [ErrNotPaused].
func (m *Messages) ResumeConsumer(ctx context.Context, act operate.Act, name, topic string) (topics []string, err error) {
	err = act.Validate()
	if name == "" {
		err = errors.Join(err, errors.New("the name of the consumer is empty"))
	}
	name, topic = store.Clean(name, store.MaxName), store.Clean(topic, store.MaxName)
	if err == nil {
		remove := func(ctx context.Context, tx *sql.Tx, topic string) (bool, error) {
			n, err := dialect.Affected(tx.ExecContext(ctx, m.db.SQL(
				`DELETE FROM {consumer_pauses} WHERE topic = $1 AND consumer = $2`), topic, name))
			return n > 0, err
		}
		topics, err = m.changeConsumer(ctx, act, "consumer.resumed", name, topic, remove)
	}
	if err == nil && len(topics) == 0 {
		err = fmt.Errorf("%w: %s", ErrNotPaused, consumerText(name, topic))
	}
	if err != nil {
		return nil, fmt.Errorf("parked: resume consumer: %w", err)
	}
	return topics, nil
}

// changeConsumer writes a row of the audit log for each topic whose row change has changed.
func (m *Messages) changeConsumer(
	ctx context.Context, act operate.Act, action, name, topic string, change func(ctx context.Context, tx *sql.Tx, topic string) (bool, error),
) (topics []string, err error) {
	err = m.db.Write(ctx, func(tx *sql.Tx) error {
		topics = nil
		of, err := m.topicsOf(ctx, tx, name, topic)
		if err != nil {
			return err
		}
		for _, topic := range of {
			changed, err := change(ctx, tx, topic)
			if err != nil {
				return err
			}
			if !changed {
				continue
			}
			failpoint.Hit("parked/pause-changed")
			if err := rows.AuditConsumer(ctx, tx, m.db.Dialect, act.Actor, act.Why, action, "topic:"+topic, name); err != nil {
				return err
			}
			topics = append(topics, topic)
		}
		return nil
	})
	failpoint.Hit("parked/pause-committed")
	return topics, err
}

// topicsOf returns the topics of a consumer that is registered, has messages, or is paused or limited.
func (m *Messages) topicsOf(ctx context.Context, tx *sql.Tx, name, topic string) (topics []string, err error) {
	of, args, limit := `consumer = $1`, []any{name}, maxConsumers
	if topic != "" {
		of, args, limit = of+` AND topic = $2`, append(args, topic), 1
	}
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var found string
		err := scan(&found)
		topics = append(topics, found)
		return err
	}, m.db.SQL(walks(` AND `+of, `p.topic > s.topic`, limit)+`
		SELECT topic FROM {consumers} WHERE `+of+`
		UNION SELECT topic FROM {consumer_pauses} WHERE `+of+`
		UNION SELECT topic FROM {consumer_limits} WHERE `+of+` AND per_second IS NOT NULL
		UNION SELECT topic FROM fresh UNION SELECT topic FROM crashed UNION SELECT topic FROM held UNION SELECT topic FROM quarantined
		ORDER BY topic`), args...)
	if err != nil || len(topics) > 0 {
		return topics, err
	}
	all, err := m.names(ctx, tx)
	if err != nil {
		return nil, err
	}
	known := make([]string, len(all))
	for i, c := range all {
		known[i] = consumerText(c.Name, c.Topic)
	}
	const most = 20
	if more := len(known) - most; more > 0 {
		known = append(known[:most], fmt.Sprintf("and %d more", more))
	}
	if len(known) == 0 {
		known = []string{"none"}
	}
	return nil, fmt.Errorf("%w: %s; known are %s", ErrConsumerNotFound, consumerText(name, topic), strings.Join(known, ", "))
}

func consumerText(name, topic string) string {
	if topic == "" {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q of topic %q", name, topic)
}
