// Package rows reads the rows of once_parked for tests. It can also read rows with a
// damaged envelope.
package rows

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
)

// Row is a row of once_parked.
type Row struct {
	ID                                    int64
	Consumer, Topic, MessageID, Tenant    string
	State, PriorityClass                  string
	Attempts, Rounds, Crashes, Replays    int
	Reason, Error, ErrorType, Fingerprint string
	DueAt, CreatedAt                      time.Time
	FirstFailedAt, LastFailedAt           time.Time // zero if NULL
	FinishedAt                            time.Time // zero if NULL
	BlocksKey                             bool      // this is the first message of its ordering key
	Digest                                []byte
	Message                               *message.Message // nil if the envelope is damaged
}

// Parked returns the rows that are in one of the states, in the order of their ids.
// Without states, or if the first state is "", it returns all rows.
func Parked(t testing.TB, store *parkedrows.Store, states ...string) []Row {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // functions of t.Cleanup read rows, too
	d := store.Dialect()
	condition := ""
	if len(states) > 0 && states[0] != "" {
		condition = ` WHERE state IN ('` + strings.Join(states, `', '`) + `')`
	}
	found, err := store.DB().QueryContext(ctx, d.SQL(`
		SELECT id, consumer, topic, message_id, tenant, state, priority_class, attempts, rounds, crashes, replays,
		       reason, error, error_type, fingerprint, {millis due_at}, {millis created_at},
		       {millis first_failed_at}, {millis last_failed_at}, {millis finished_at},
		       ordering_key IS NOT NULL AND state IN ('waiting', 'quarantined'), digest, envelope
		FROM {parked}`+condition+` ORDER BY id`))
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	var all []Row
	for found.Next() {
		var (
			r                       Row
			due, created            int64
			first, latest, finished sql.NullInt64
			envelope                []byte
		)
		err := found.Scan(&r.ID, &r.Consumer, &r.Topic, &r.MessageID, &r.Tenant, &r.State, &r.PriorityClass,
			&r.Attempts, &r.Rounds, &r.Crashes, &r.Replays, &r.Reason, &r.Error, &r.ErrorType, &r.Fingerprint,
			&due, &created, &first, &latest, &finished, &r.BlocksKey, &r.Digest, &envelope)
		if err != nil {
			t.Fatal(err)
		}
		r.DueAt, r.CreatedAt = time.UnixMilli(due), time.UnixMilli(created)
		r.FirstFailedAt, r.LastFailedAt, r.FinishedAt = timeOf(first), timeOf(latest), timeOf(finished)
		r.Message, _ = parkedrows.Decode(envelope)
		all = append(all, r)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func timeOf(millis sql.NullInt64) time.Time {
	if !millis.Valid {
		return time.Time{}
	}
	return time.UnixMilli(millis.Int64)
}
