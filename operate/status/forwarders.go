package status

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Forwarder is a running instance of a forwarder.
type Forwarder struct {
	// Owner is the name of the instance, also in its slots.
	Owner string

	// Destination is the broker, or "" if it is unknown.
	Destination string

	// LeaseUntil is the end of the lease. The instance renews its lease regularly.
	LeaseUntil time.Time

	// Slots is the number of slots that the instance owns.
	Slots int
}

// Slot is a part of the outbox. One forwarder sends the messages of a slot.
type Slot struct {
	Slot int

	// Owner is the forwarder with the slot, or "", and LeaseUntil the end of its lease, or zero.
	Owner      string
	LeaseUntil time.Time
}

// Forwarders returns the forwarders whose lease has not ended, sorted by owner.
func (r *Reader) Forwarders(ctx context.Context) (all []Forwarder, err error) {
	err = r.db.Look(ctx, func(tx *sql.Tx) (err error) {
		all, err = r.forwarders(ctx, tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("status: forwarders: %w", err)
	}
	return all, nil
}

func (r *Reader) forwarders(ctx context.Context, tx *sql.Tx) (all []Forwarder, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			f     Forwarder
			until int64
		)
		err := scan(&f.Owner, &f.Destination, &until, &f.Slots)
		f.LeaseUntil = time.UnixMilli(until).UTC()
		all = append(all, f)
		return err
	}, r.db.SQL(`
		SELECT f.owner, f.destination, {millis f.lease_until},
		       (SELECT COUNT(*) FROM {slots} AS s WHERE s.owner = f.owner AND s.lease_until >= {now})
		FROM {forwarders} AS f WHERE f.lease_until >= {now} ORDER BY f.owner`))
	return all, err
}

// Slots returns all slots in the order of their numbers. A slot whose lease has ended has no owner.
func (r *Reader) Slots(ctx context.Context) (all []Slot, err error) {
	err = r.db.Look(ctx, func(tx *sql.Tx) error {
		all = nil
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				s     Slot
				until sql.NullInt64
			)
			err := scan(&s.Slot, &s.Owner, &until)
			if s.Owner != "" {
				s.LeaseUntil = time.UnixMilli(until.Int64).UTC()
			}
			all = append(all, s)
			return err
		}, r.db.SQL(`
			SELECT slot, CASE WHEN lease_until >= {now} THEN COALESCE(owner, '') ELSE '' END, {millis lease_until}
			FROM {slots} ORDER BY slot`))
	})
	if err != nil {
		return nil, fmt.Errorf("status: slots: %w", err)
	}
	return all, nil
}

// Pause is a paused topic or tenant, whose messages wait, see outbox.Messages.Pause.
type Pause struct {
	Topic, Tenant string

	// Since is the time of the pause.
	Actor, Why string
	Since      time.Time
}

// PausedConsumer starts to handle no messages of a topic, see parked.Messages.PauseConsumer.
type PausedConsumer struct {
	Consumer, Topic string

	// Since is the time of the pause.
	Actor, Why string
	Since      time.Time
}

func (r *Reader) pausedConsumers(ctx context.Context, tx *sql.Tx) (all []PausedConsumer, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			p     PausedConsumer
			since int64
		)
		err := scan(&p.Consumer, &p.Topic, &p.Actor, &p.Why, &since)
		p.Since = time.UnixMilli(since).UTC()
		all = append(all, p)
		return err
	}, r.db.SQL(`
		SELECT consumer, topic, actor, why, {millis paused_at} FROM {consumer_pauses}
		ORDER BY paused_at, consumer, topic LIMIT $1`), maxPauses)
	return all, err
}

const maxPauses = 100

func (r *Reader) pauses(ctx context.Context, tx *sql.Tx) (all []Pause, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			p          Pause
			kind, name string
			since      int64
		)
		err := scan(&kind, &name, &p.Actor, &p.Why, &since)
		if kind == outboxrow.PausedTenant {
			p.Tenant = name
		} else {
			p.Topic = name
		}
		p.Since = time.UnixMilli(since).UTC()
		all = append(all, p)
		return err
	}, r.db.SQL(`SELECT kind, name, actor, why, {millis paused_at} FROM {pauses} ORDER BY paused_at, kind, name LIMIT $1`), maxPauses)
	return all, err
}
