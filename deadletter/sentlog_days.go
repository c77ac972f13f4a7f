package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/sentdays"
)

// ErrNotByDay says that the sent log is not partitioned by day, see schema.Config.Sent.
var ErrNotByDay = errors.New("the sent log is not partitioned by day")

// ErrNotOwner says that the database user does not own the sent log.
var ErrNotOwner = errors.New("the database user does not own the sent log")

// SweepDays creates the partitions of the coming days, drops the days that ended longer
// ago than keep, and returns how many days it dropped. keep is forwarder.Config.KeepSent.
// If a day is in use, it is left to the next call.
//
// A forwarder whose database user owns the log does the same. If no forwarder does, call
// SweepDays as the owner once a day or more often. It fails with [ErrNotOwner] for other
// users, and with [ErrNotByDay] if the layout of the log is plain: then forwarders delete
// the old rows.
func (s *SentLog) SweepDays(ctx context.Context, keep time.Duration) (dropped int, err error) {
	if keep < time.Minute {
		return 0, fmt.Errorf("deadletter: sent log: sweep days: keep is %v: must be at least a minute", keep)
	}
	r, err := sentdays.Sweep(ctx, s.table.db, s.table.dialect, keep)
	switch {
	case err != nil:
	case !r.ByDay:
		err = ErrNotByDay
	case !r.Owner:
		err = ErrNotOwner
	}
	if err != nil {
		return r.Dropped, fmt.Errorf("deadletter: sent log: sweep days: %w", err)
	}
	return r.Dropped, nil
}
