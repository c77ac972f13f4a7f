package deadletter

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// SentGroup describes the sent messages of one topic.
type SentGroup struct {
	Topic string

	// Count is the number of messages.
	Count int

	// FirstSentAt and LastSentAt are the earliest and the latest SentAt of these messages.
	FirstSentAt, LastSentAt time.Time

	// Skipped contains the IDs of the messages that a replay skips because they need
	// Plan.Force, in ascending order.
	Skipped []int64
}

// DryRun returns the messages that ReplayMatching would replay or skip with the same
// Filter and Plan. It changes nothing. It returns the messages as groups, in ascending
// order of their topics.
func (s *SentLog) DryRun(ctx context.Context, f Filter, plan Plan) ([]SentGroup, error) {
	groups := map[string]*SentGroup{}
	err := s.table.dryRun(ctx, f, s.replay(Act{}, plan), `topic, {millis sent_at}`, func(rows *sql.Rows, id, force *int64) error {
		var (
			topic  string
			millis int64
		)
		if err := rows.Scan(id, force, &topic, &millis); err != nil {
			return err
		}
		sent := fromMillis(millis)
		g, ok := groups[topic]
		if !ok {
			g = &SentGroup{Topic: topic, FirstSentAt: sent, LastSentAt: sent}
			groups[topic] = g
		}
		g.Count++
		if sent.Before(g.FirstSentAt) {
			g.FirstSentAt = sent
		}
		if sent.After(g.LastSentAt) {
			g.LastSentAt = sent
		}
		if *force != noForce && !plan.Force {
			g.Skipped = append(g.Skipped, *id)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("deadletter: sent log: dry run: %w", err)
	}
	return sorted(groups, func(a, b *SentGroup) int { return strings.Compare(a.Topic, b.Topic) }), nil
}

// Replay puts copies of messages into the outbox in one transaction. For the copies,
// see [SentLog.ReplayMatching]. If one of the messages does not exist ([ErrNotFound])
// or needs force ([ErrNeedsForce]), it replays none.
func (s *SentLog) Replay(ctx context.Context, act Act, ids ...int64) error {
	err := act.Validate()
	if err == nil {
		err = s.table.changeIDs(ctx, ids, s.replay(act, Plan{}))
	}
	if err != nil {
		return fmt.Errorf("deadletter: sent log: replay: %w", err)
	}
	return nil
}

// ReplayMatching puts copies of the messages that match f into the outbox, in ascending
// order of their IDs and with the same message ids. If the inbox of a consumer still
// contains the id, the consumer skips the copy. The copies are sent after the messages
// that are already in the outbox, and so after later messages of their keys.
//
// ReplayMatching does not replay messages that are sent while it runs. When ctx ends,
// it stops after a batch. The Report contains the number of replayed messages, even
// after an error. This number does not include the messages of a commit with an unknown
// outcome.
//
// The replay stores its progress in the table of replays, as [Letters.ReplayMatching]
// does. [SentLog.Resume] continues the replay, and sends no message twice.
func (s *SentLog) ReplayMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	report, err := s.table.replayMatching(ctx, act, f, s.replay(act, plan))
	if err != nil {
		return report, fmt.Errorf("deadletter: sent log: replay: %w", err)
	}
	return report, nil
}

// Resume continues a replay, as [Letters.Resume] does.
func (s *SentLog) Resume(ctx context.Context, act Act, id int64, progress func(Report)) (Report, error) {
	report, err := s.table.resume(ctx, act, id, progress, s.replay)
	if err != nil {
		return report, fmt.Errorf("deadletter: sent log: resume: %w", err)
	}
	return report, nil
}

func (s *SentLog) replay(act Act, plan Plan) operation {
	return operation{
		Plan: plan, act: act, name: "replay", unsure: "1 = 1", unfit: "1 = 0",
		do: func(ctx context.Context, tx *sql.Tx, messages []row) error {
			_, err := s.table.copyToOutbox(ctx, tx, "1 = 1", messages)
			return err
		},
	}
}
