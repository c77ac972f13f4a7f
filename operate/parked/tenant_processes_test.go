package parked_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once" //nolint:depguard // the test runs processes of a whole service
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

const (
	tenantConcurrency = 2
	gate              = 1 // an advisory lock
)

// beTenanted is a durable consumer that handles few messages of a tenant at the same time.
func beTenanted(db *sql.DB) error {
	db.SetMaxIdleConns(20)
	return beHandling(db, once.ConsumerConfig{
		Retry:            retry.Config{Lease: 3 * time.Second, Concurrency: 8},
		DurableConsumers: []string{consumer}, Durable: durable.Config{TenantConcurrency: tenantConcurrency},
	}, 0, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		tenant := msg.Metadata.Get(meta.TenantID)
		var began time.Time
		if err := tx.QueryRowContext(ctx, `SELECT clock_timestamp()`).Scan(&began); err != nil {
			return nil, err
		}
		if tenant == "large" { // until the test opens the gate
			if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock_shared($1)`, gate); err != nil {
				return nil, err
			}
		}
		_, err := tx.ExecContext(ctx, `
			INSERT INTO effects (message_id, tenant, began, ended)
			SELECT $1, $2, $3, clock_timestamp() FROM pg_sleep(0.02)`, msg.UUID, tenant, began)
		return nil, err
	})
}

// Trap 122. Three processes handle at most two messages of a tenant at the same time, also while one
// of them is killed and another one starts. The handlers of a tenant with many messages, which stand,
// do not hold up those of the others.
func TestTenantHasFewHandlersInThreeProcesses(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	b := newFleet(t, "tenanted", ", tenant text NOT NULL, began timestamptz NOT NULL, ended timestamptz NOT NULL")
	closed, err := b.Conn(b.Context())
	kit.OK(t, err)
	defer closed.Close()
	_, err = closed.ExecContext(b.Context(), `SELECT pg_advisory_lock($1)`, gate)
	kit.OK(t, err)
	kills := b.startThree()
	const large, small, tenants = 400, 20, 20
	publish := func(tenant string, n int) {
		t.Helper()
		for i := range n {
			b.publish(fmt.Sprint(tenant, "-", i), tenant)
		}
	}
	publish("large", large)
	for n := range tenants - 1 {
		publish(fmt.Sprint("small-", n), small)
	}
	effects := func(where string) int { return b.Count(`effects ` + where) }
	b.eventually("some are handled", func() bool { return effects(`WHERE tenant <> 'large'`) > 20 })
	killOne(kills)
	b.start()
	b.eventually("those of the small tenants are handled", func() bool {
		return effects(`WHERE tenant <> 'large'`) == (tenants-1)*small
	})
	b.WantNumber(0, `SELECT COUNT(*) FROM effects WHERE tenant = 'large'`)
	_, err = closed.ExecContext(b.Context(), `SELECT pg_advisory_unlock($1)`, gate)
	kit.OK(t, err)
	b.eventually("all are handled", func() bool {
		return effects(``) == (tenants-1)*small+large && b.Count(`once_parked`) == 0
	})
	most := func(of string) int {
		return b.Number(`SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM effects AS a JOIN effects AS b ON ` + of + `
			AND b.began <= a.began AND b.ended > a.began GROUP BY a.message_id) AS together`)
	}
	t.Logf("%d at once, %d of one tenant", most(`true`), most(`a.tenant = b.tenant`))
	if n := most(`a.tenant = b.tenant`); n > tenantConcurrency {
		t.Errorf("%d messages of a tenant were handled at the same time, want at most %d", n, tenantConcurrency)
	}
	if n := b.Number(`SELECT COUNT(*) - COUNT(DISTINCT message_id) FROM effects`); n != 0 {
		t.Errorf("%d messages took effect twice", n)
	}
}
