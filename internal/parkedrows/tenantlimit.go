package parkedrows

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/dialect"
)

// tenantRoom is how many more rows of a tenant may be claimed. A nil tenantRoom has no limit.
type tenantRoom struct {
	perTenant int

	// Rows that were claimed when a process died count as claimed, although their leases have ended.
	// Otherwise other rows of the tenant would take their places again and again, and each search
	// for them would hold up the other tenants, because they run alone.
	claimed map[string]int

	busy []string // tenants whose rows of dead processes may not be claimed either
}

// freeOf counts the rows that all processes have claimed. The lock, until the end of tx, keeps other
// processes from claiming more at the same time.
func (s *Store) freeOf(ctx context.Context, tx *sql.Tx, sel Select) (*tenantRoom, error) {
	if sel.PerTenant == 0 {
		return nil, nil //nolint:nilnil // there is no limit
	}
	if s.sql.lockTimeout != "" {
		if _, err := tx.ExecContext(ctx, s.sql.lockTimeout); err != nil {
			return nil, err
		}
	}
	if err := s.lockKeys(ctx, tx, []Key{{sel.Consumer, sel.Topic, ""}}); err != nil {
		return nil, fmt.Errorf("wait for the claims of other processes: %w", err)
	}
	room := &tenantRoom{perTenant: sel.PerTenant, claimed: map[string]int{}}
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			tenant    string
			n, leased int
		)
		err := scan(&tenant, &n, &leased)
		room.claimed[tenant] = n
		if leased >= sel.PerTenant {
			room.busy = append(room.busy, tenant)
		}
		return err
	}, s.sql.claimedOf, sel.Consumer, sel.Topic)
	return room, err
}

func (r *tenantRoom) isFull(tenant string) bool {
	return r != nil && tenant != "" && r.claimed[tenant] >= r.perTenant
}

// busyTenants is for claims of rows that were claimed when a process died.
func (r *tenantRoom) busyTenants() []string {
	if r == nil {
		return nil
	}
	return r.busy
}

// limit makes the shares of a tenant in all classes together as small as its room.
func (r *tenantRoom) limit(shares []share) []share {
	if r == nil {
		return shares
	}
	given := map[string]int{}
	for i, s := range shares {
		if s.tenant != "" {
			shares[i].rows = min(s.rows, r.perTenant-r.claimed[s.tenant]-given[s.tenant])
			given[s.tenant] += shares[i].rows
		}
	}
	return slices.DeleteFunc(shares, func(s share) bool { return s.rows <= 0 })
}

func (r *tenantRoom) use(claimed []Claimed) {
	if r == nil {
		return
	}
	for _, c := range claimed {
		r.claimed[c.Turn.Tenant]++
	}
}

// removeFull removes the tenants without room. Their rows stay due.
func (d *Due) removeFull(r *tenantRoom) {
	if r == nil {
		return
	}
	for class := range d.tenants {
		for at, tenant := range slices.Backward(d.tenants[class]) {
			if r.isFull(tenant) {
				d.Full = true
				d.remove(class, at)
			}
		}
	}
}
