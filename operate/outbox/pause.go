package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Scope is either a topic or a tenant, see outbox.SetTenant.
type Scope struct{ Topic, Tenant string }

// String returns the scope as it is written to the audit log, such as "topic:orders".
func (s Scope) String() string {
	kind, name := s.row()
	return kind + ":" + name
}

// includes reports whether messages of a topic and tenant are in the scope.
func (s Scope) includes(topic, tenant string) bool {
	return s.Topic != "" && s.Topic == topic || s.Tenant != "" && s.Tenant == outboxrow.Label(tenant)
}

func (s Scope) row() (kind, name string) {
	if s.Tenant != "" {
		return outboxrow.PausedTenant, s.Tenant
	}
	return outboxrow.PausedTopic, s.Topic
}

func (s Scope) validate() error {
	if (s.Topic == "") == (s.Tenant == "") {
		return fmt.Errorf("Scope is topic %q and tenant %q: set exactly one of the two", s.Topic, s.Tenant)
	}
	if _, name := s.row(); parkedrows.Clean(name, len(name)) != name || outboxrow.Label(s.Tenant) != s.Tenant {
		return fmt.Errorf("Scope is %.300q: no message has this name", s.String())
	}
	return nil
}

// Pause describes a paused topic or tenant.
type Pause struct {
	Scope

	// Since is the time of the pause, by the database's clock.
	Actor, Why string
	Since      time.Time
}

// Pause stops the forwarders from sending messages of a topic or a tenant, until [Messages.Resume].
// Later messages with the same ordering keys also wait, whatever their topic and tenant are.
// Act.Why is required.
//
// A forwarder sees the pause at its next read, usually within forwarder.Config.PollMax, and may
// still send what it had passed to its publisher. If the scope is already paused, Pause changes
// nothing and returns nil.
func (m *Messages) Pause(ctx context.Context, act operate.Act, scope Scope) error {
	err := errors.Join(act.Validate(), scope.validate())
	if act.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the messages must wait"))
	}
	if err == nil {
		kind, name := scope.row()
		err = m.changePause(ctx, act, "pause", scope, `INSERT INTO {pauses} (kind, name, actor, why) VALUES ($1, $2, $3, $4)
			ON CONFLICT (kind, name) DO NOTHING`, kind, name,
			parkedrows.Clean(act.Actor, parkedrows.MaxName), parkedrows.Clean(act.Why, parkedrows.MaxError))
	}
	if err != nil && !errors.Is(err, errUnchanged) {
		return fmt.Errorf("outbox: pause: %w", err)
	}
	return nil
}

// Resume ends a pause, or returns [ErrNotPaused]. At their next read, the forwarders send the
// messages in their order.
func (m *Messages) Resume(ctx context.Context, act operate.Act, scope Scope) error {
	err := errors.Join(act.Validate(), scope.validate())
	if err == nil {
		kind, name := scope.row()
		err = m.changePause(ctx, act, "resume", scope, `DELETE FROM {pauses} WHERE kind = $1 AND name = $2`, kind, name)
	}
	if errors.Is(err, errUnchanged) {
		err = fmt.Errorf("%s: %w", scope, ErrNotPaused)
	}
	if err != nil {
		return fmt.Errorf("outbox: resume: %w", err)
	}
	return nil
}

// errUnchanged rolls back a transaction that has nothing to change.
var errUnchanged = errors.New("unchanged")

func (m *Messages) changePause(ctx context.Context, act operate.Act, action string, scope Scope, query string, args ...any) error {
	err := m.db.Write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, m.db.SQL(query), args...)
		if err != nil {
			return err
		}
		if changed, err := result.RowsAffected(); err != nil || changed == 0 {
			return errors.Join(err, errUnchanged)
		}
		failpoint.Hit("operate/outbox/pause-changed")
		return rows.Audit(ctx, tx, m.db.Dialect, act.Actor, act.Why, action, 0, []string{scope.String()}, []string{""})
	})
	failpoint.Hit("operate/outbox/pause-committed")
	return err
}

// ListPaused returns the paused topics and tenants, with the oldest pause first.
func (m *Messages) ListPaused(ctx context.Context) ([]Pause, error) {
	var all []Pause
	err := m.db.Look(ctx, func(tx *sql.Tx) (err error) {
		all, err = m.pauses(ctx, tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: list paused: %w", err)
	}
	return all, nil
}

func (m *Messages) pauses(ctx context.Context, tx *sql.Tx) (all []Pause, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			p          Pause
			kind, name string
			since      int64
		)
		if err := scan(&kind, &name, &p.Actor, &p.Why, &since); err != nil {
			return err
		}
		if p.Topic = name; kind == outboxrow.PausedTenant {
			p.Scope = Scope{Tenant: name}
		}
		p.Since = rows.Millis(since)
		all = append(all, p)
		return nil
	}, m.db.SQL(`SELECT kind, name, actor, why, {millis paused_at} FROM {pauses} ORDER BY paused_at, kind, name`))
	return all, err
}
