package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
)

// ErrOtherDestination is returned by Run if another instance forwards the same outbox to another
// destination: each broker would get only a part of the messages. The error names both
// destinations, and says what to do.
var ErrOtherDestination = errors.New("forwarder: another destination")

// destinationNamer is a publisher that knows the name of its destination.
type destinationNamer interface{ Destination() string }

const longestDestination = 1000

var userinfo = regexp.MustCompile(`//[^/\s]*@`)

// destinationOf returns the configured destination, or the one that the publisher reports, or "".
func destinationOf(configured string, publisher message.Publisher) (string, error) {
	destination, from := configured, "Destination"
	if named, ok := publisher.(destinationNamer); ok && destination == "" {
		destination, from = named.Destination(), "the publisher's Destination"
	}
	switch {
	case userinfo.MatchString(destination):
		return "", fmt.Errorf("%s contains a user name or a password (not shown here); leave it out", from)
	case parkedrows.Clean(destination, longestDestination) != destination:
		return "", fmt.Errorf("%s is %.100q: not UTF-8 without NUL of at most %d bytes", from, destination, longestDestination)
	}
	return destination, nil
}

// otherDestinationError describes an instance with another destination and a lease that has not
// ended: it may run, or have died.
type otherDestinationError struct {
	owner, destination string
	until              int64 // end of its lease, in milliseconds of the database's clock
}

func (o *otherDestinationError) Error() string {
	return fmt.Sprintf("instance %q sends to %s", o.owner, shown(o.destination))
}

func (o *otherDestinationError) refusal(own string) error {
	same := "set forwarder.Config.Destination of both to the same name"
	if o.destination != "" {
		same = fmt.Sprintf("set forwarder.Config.Destination to %q here", o.destination)
	}
	return fmt.Errorf("%w: instance %q sends this outbox to %s, and this instance would send it to %s; "+
		"to change the broker, stop all forwarders of the outbox, then start them with the new one; "+
		"if both are the same broker, %s", ErrOtherDestination, o.owner, shown(o.destination), shown(own), same)
}

func shown(destination string) string {
	if destination == "" {
		return "a destination that its publisher does not name"
	}
	return fmt.Sprintf("%q", destination)
}

// enrol records in the database for the given length that this instance runs. It returns the last
// instance if that one had another destination.
//
// All running instances must have the same destination. An instance that joins takes a lock, so
// that no other one joins at the same time, and gets an otherDestinationError if an instance with
// another destination runs. An instance with a row renews it without the lock, because the row
// keeps other destinations from joining.
func (s *store) enrol(ctx context.Context, tx *sql.Tx, length time.Duration) (before *predecessor, err error) {
	result, err := tx.ExecContext(ctx, s.sql.renew, s.owner, length.Milliseconds())
	if err != nil {
		return nil, err
	}
	if renewed, err := result.RowsAffected(); err != nil || renewed > 0 {
		return nil, err
	}
	if s.sql.joinAlone != "" {
		if _, err := tx.ExecContext(ctx, s.sql.joinAlone); err != nil {
			return nil, err
		}
	}
	if before, err = s.replace(ctx, tx); err != nil {
		return nil, err
	}
	var other otherDestinationError
	err = tx.QueryRowContext(ctx, s.sql.elsewhere, s.destination).Scan(&other.owner, &other.destination, &other.until)
	switch {
	case err == nil:
		return nil, &other
	case !errors.Is(err, sql.ErrNoRows):
		return nil, err
	}
	_, err = tx.ExecContext(ctx, s.sql.enrol, s.owner, length.Milliseconds(), s.destination)
	return before, err
}

type predecessor struct{ destination string }

// replace deletes the rows of instances with another destination and an expired lease. It returns
// the one whose lease ended last, or nil. If one is renewing its lease at this moment, replace
// waits, and keeps its row.
func (s *store) replace(ctx context.Context, tx *sql.Tx) (*predecessor, error) {
	var (
		last  *predecessor
		until int64
	)
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			gone  predecessor
			ended int64
		)
		err := scan(&gone.destination, &ended)
		if last == nil || ended > until {
			last, until = &gone, ended
		}
		return err
	}, s.sql.replace, s.destination)
	return last, err
}

// joinAlone prevents other instances from joining until the transaction ends. SQLite lets only one
// transaction write at a time.
func joinAlone(d dialect.Dialect) string {
	if d.SQLite() {
		return ""
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte("once forwarders " + d.Config().Table("forwarders")))
	return fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, int64(h.Sum64()))
}

// giveWay stops sending, because an instance with another destination may run. If that one renews
// its lease, it does, and Run of this instance ends. Otherwise it has died, and this instance takes
// over when its lease has ended.
func (l *loop) giveWay(other *otherDestinationError, sent time.Time) {
	t, s := &l.tenure, l.scheduler
	if len(s.Slots()) > 0 {
		l.recall()
		s.LoseSlots(s.Slots())
	}
	t.fault.until = l.nextTry(sent)
	switch {
	case s.Stopping():
	case t.rival == 0:
		t.rival = other.until
		l.config.Logger.Info("Another instance has another destination, waiting until its lease is renewed or ends", watermill.LogFields{
			"destination": l.store.destination, "other_instance": other.owner, "other_destination": other.destination,
		})
	case other.until > t.rival:
		l.refusal = other.refusal(l.store.destination)
		l.config.Logger.Error("Another instance forwards to another destination, forwarding ends", l.refusal, nil)
		l.stop(sent)
	}
}

func (l *loop) logDestination(before *predecessor) {
	if before == nil {
		return
	}
	l.config.Logger.Info("The destination of the outbox has changed", watermill.LogFields{
		"from": cmp.Or(before.destination, "unknown"), "to": cmp.Or(l.store.destination, "unknown"),
	})
}
