package dead

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// SentMessage is a message that the broker confirmed.
type SentMessage struct {
	Message

	// SentAt is when the forwarder recorded the confirm.
	SentAt time.Time
}

// SentLog is the log of the sent messages, which forwarders with forwarder.Config.KeepSent write.
type SentLog struct {
	table *table
}

// NewSentLog returns the sent log in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func NewSentLog(db *sql.DB, config operate.Config) (*SentLog, error) {
	t, err := sentTable(db, config)
	if err != nil {
		return nil, err
	}
	return &SentLog{t}, nil
}

// List returns a page of the messages that match f, without their payloads. It reads at most 50,000
// rows above Filter.AfterID, with Filter.SentAfter from shortly before the first row that was sent
// after it. With Filter.MessageID, an index finds the messages in the whole log, with
// Filter.AggregateID if the aggregate has at most 5,000.
func (s *SentLog) List(ctx context.Context, f operate.Filter) (operate.Page[SentMessage], error) {
	p, err := s.list(ctx, f, false)
	if err != nil {
		return operate.Page[SentMessage]{}, fmt.Errorf("dead: sent log: list: %w", err)
	}
	return p, nil
}

// Get returns one message with its payload, or [operate.ErrNotFound].
func (s *SentLog) Get(ctx context.Context, id int64) (SentMessage, error) {
	p, err := s.list(ctx, operate.Filter{IDs: []int64{id}}, false)
	if err == nil && len(p.Rows) == 0 {
		err = s.table.notFound(id)
	}
	if err == nil {
		p.Rows[0].Payload, err = s.table.payload(ctx, id)
	}
	if err != nil {
		return SentMessage{}, fmt.Errorf("dead: sent log: get: %w", err)
	}
	return p.Rows[0], nil
}

// Count counts the messages that match among those that List looks at, and at most Filter.Limit if
// it is set. Count.Next says where the next call continues.
func (s *SentLog) Count(ctx context.Context, f operate.Filter) (operate.Count, error) {
	n, err := s.table.Count(ctx, f)
	if err != nil {
		return operate.Count{}, fmt.Errorf("dead: sent log: count: %w", err)
	}
	return n, nil
}

func (s *SentLog) list(ctx context.Context, f operate.Filter, everywhere bool) (operate.Page[SentMessage], error) {
	return list(ctx, s.table, f, everywhere, `{millis sent_at}`, nil, func(scan func(dest ...any) error) (m SentMessage, _ int64, err error) {
		var sent int64
		m.Message, err = scanMessage(scan, &sent)
		m.SentAt = rows.Millis(sent)
		return m, m.ID, err
	})
}

// SentGroup describes the sent messages of one topic.
type SentGroup struct {
	Topic string

	Count int

	FirstSentAt, LastSentAt time.Time

	// Skipped contains the IDs of messages that a replay skips without Plan.Force, ascending.
	Skipped []int64
}

// DryRun returns the messages that ReplayMatching would replay or skip with the same Filter and
// Plan, as groups in ascending order of topics, and changes nothing.
func (s *SentLog) DryRun(ctx context.Context, f operate.Filter, plan operate.Plan) ([]SentGroup, error) {
	groups := map[string]*SentGroup{}
	err := s.table.dryRun(ctx, f, plan, s.replay(), `topic, {millis sent_at}`, func(scan func(dest ...any) error, id, force *int64) error {
		var (
			topic  string
			millis int64
		)
		if err := scan(id, force, &topic, &millis); err != nil {
			return err
		}
		sent := rows.Millis(millis)
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
		return nil, fmt.Errorf("dead: sent log: dry run: %w", err)
	}
	var found []SentGroup
	for _, topic := range slices.Sorted(maps.Keys(groups)) {
		found = append(found, *groups[topic])
	}
	return found, nil
}

// Replay puts copies of messages into the outbox in one transaction, see [SentLog.ReplayMatching].
// If one does not exist ([operate.ErrNotFound]) or needs force ([operate.ErrNeedsForce]), it
// replays none.
func (s *SentLog) Replay(ctx context.Context, act operate.Act, ids ...int64) error {
	return s.table.replayIDs(ctx, act, ids, s.replay())
}

// ReplayMatching puts copies of the messages that match f into the outbox, in ascending order of
// their IDs and with the same message ids. A consumer whose inbox still contains the id skips the
// copy. Copies are sent after the messages that are already in the outbox, and so after later
// messages of their keys.
//
// Messages that are sent while it runs are not replayed. When ctx ends, it stops after a batch. The
// Report counts the replayed messages even after an error, but not those of a commit with an
// unknown outcome.
//
// The progress is stored as by [Letters.ReplayMatching]. [SentLog.Resume] continues the replay, and
// sends no message twice.
func (s *SentLog) ReplayMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Replay, error) {
	return s.table.replayMatching(ctx, act, f, plan, s.replay())
}

// Resume continues a replay, as [Letters.Resume] does.
func (s *SentLog) Resume(ctx context.Context, act operate.Act, id int64, progress func(operate.Report)) (operate.Replay, error) {
	return s.table.resume(ctx, act, id, progress, s.replay())
}

func (s *SentLog) replay() operation {
	return operation{
		name: "replay", unsure: "1 = 1", unfit: "1 = 0",
		do: func(ctx context.Context, tx *sql.Tx, messages []row) error {
			_, err := s.table.copyToOutbox(ctx, tx, "1 = 1", messages)
			return err
		},
	}
}

// ErrNotByDay means that the sent log has no partitions by day, see schema.Config.Sent.
var ErrNotByDay = errors.New("the sent log is not partitioned by day")

// ErrNotOwner means that the database user does not own the sent log.
var ErrNotOwner = errors.New("the database user does not own the sent log")

// SweepDays creates the partitions of the next days, drops the days that ended longer than keep ago
// (forwarder.Config.KeepSent), and returns their number. An old day in use is left to a later call.
//
// A forwarder whose database user owns the log does the same. Otherwise call SweepDays as the owner
// once a day or more often. It fails with [ErrNotOwner] for other users, and with [ErrNotByDay] if
// the log has no partitions, because then forwarders delete the old rows.
func (s *SentLog) SweepDays(ctx context.Context, keep time.Duration) (dropped int, err error) {
	if keep < time.Minute {
		return 0, fmt.Errorf("dead: sent log: sweep days: keep is %v: must be at least a minute", keep)
	}
	r, err := outboxrow.SweepSentDays(ctx, s.table.DB.DB, s.table.Dialect, keep)
	switch {
	case err != nil:
	case !r.ByDay:
		err = ErrNotByDay
	case !r.Owner:
		err = ErrNotOwner
	}
	if err != nil {
		return r.Dropped, fmt.Errorf("dead: sent log: sweep days: %w", err)
	}
	return r.Dropped, nil
}

const settlePoll = 100 * time.Millisecond

// SettledID returns an ID of the sent log at or below which no further rows will appear, or 0 if
// the log is empty. Forwarders may commit a row after one with a higher ID, so SettledID waits for
// the transactions that were writing to the log. An archive that exports from its last ID to
// SettledID misses no row, see Filter.AfterID and Filter.UntilID.
func (s *SentLog) SettledID(ctx context.Context) (int64, error) {
	id, err := s.settledID(ctx)
	if err != nil {
		return 0, fmt.Errorf("dead: sent log: settled ID: %w", err)
	}
	return id, nil
}

// writers finds the transactions that hold the lock for writing rows, which they take before they
// get the ID of a row.
const writers = `SELECT virtualtransaction FROM pg_locks
	WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	  AND relation = $1::text::regclass AND mode = 'RowExclusiveLock' AND granted`

func (s *SentLog) settledID(ctx context.Context) (id int64, err error) {
	t := s.table
	name := t.SQL(t.Name)
	var writing []string
	err = t.Look(ctx, func(tx *sql.Tx) error {
		writing = nil
		err := tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(id), 0) FROM `+name).Scan(&id)
		if err != nil || t.SQLite() { // SQLite has one writer: its rows are committed in order
			return err
		}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var transaction string
			err := scan(&transaction)
			writing = append(writing, transaction)
			return err
		}, writers, name)
	})
	if err != nil || len(writing) == 0 {
		return id, err
	}
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for {
		var left bool
		err := t.Look(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT EXISTS (`+writers+` AND virtualtransaction = ANY ($2::text::text[]))`,
				name, t.Strings(writing)).Scan(&left)
		})
		switch {
		case ctx.Err() != nil:
		case err != nil, !left:
			return id, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("a transaction that writes to the sent log has not ended: %w", ctx.Err())
		}
	}
}
