package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/sentdays"
)

// ErrNotByDay means that the sent log has no partitions by day, see schema.Config.Sent.
var ErrNotByDay = errors.New("the sent log is not partitioned by day")

// ErrNotOwner means that the database user does not own the sent log.
var ErrNotOwner = errors.New("the database user does not own the sent log")

// SweepDays creates the partitions of the next days, drops old days, and returns the
// number of dropped days. Pass the value of forwarder.Config.KeepSent as the parameter
// keep. A day is old if it ended longer ago than this duration. If an old day is in
// use, a later call drops it.
//
// A forwarder whose database user owns the log does the same. If there is no such
// forwarder, call SweepDays as the owner once a day or more often. SweepDays fails with
// [ErrNotOwner] for other users, and with [ErrNotByDay] if the log has no partitions,
// because then forwarders delete the old rows.
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
