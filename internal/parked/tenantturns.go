package parked

import "slices"

// classes are the priority classes. While all of them have due rows, each gets
// its share of the claimed rows. Within a class the tenants take turns.
var classes = [...]struct {
	name  string
	share int
}{
	{"live", 4},   // rows that did not wait before
	{"retry", 2},  // rows that waited for a delay
	{"replay", 1}, // rows that were replayed from quarantine
}

const retryClass = 1

// TenantTurns remembers which tenant of a subscription is next, in this process.
// Only the order of the rows depends on it: each process has turns of its own,
// and a new process may begin with any tenant.
type TenantTurns struct {
	after  [len(classes)]string // the tenant that was served last
	credit [len(classes)]int
}

// Due is the result of [Store.Due].
type Due struct {
	Crashed bool // some due rows were claimed by a process that ended

	tenants [len(classes)][]string // tenants with due rows, in the order of their turns
	walked  [len(classes)]int      // how many of them the walk found, at the front; the others were the overdue ones
	last    [len(classes)]string   // the last tenant of the walk
	partial [len(classes)]bool     // the walk ended before it had seen all tenants
}

// TenantTurn identifies the rows of one tenant in one priority class.
type TenantTurn struct{ PriorityClass, Tenant string }

// Fresh reports whether rows without a crash are due.
func (d *Due) Fresh() bool {
	return slices.ContainsFunc(d.tenants[:], func(tenants []string) bool { return len(tenants) > 0 })
}

// Partial reports whether there may be more due rows, of tenants that Store.Due
// has not looked at.
func (d *Due) Partial() bool { return slices.Contains(d.partial[:], true) }

// addWalked adds the nth tenant of a walk through a class.
func (d *Due) addWalked(class, n int, tenant string, due bool) {
	d.last[class], d.partial[class] = tenant, n == maxTenants
	if due {
		d.tenants[class] = append(d.tenants[class], tenant)
		d.walked[class]++
	}
}

// addOverdue adds a tenant with due rows, unless the walk has found it.
func (d *Due) addOverdue(class int, tenant string) {
	if !slices.Contains(d.tenants[class], tenant) {
		d.tenants[class] = append(d.tenants[class], tenant)
	}
}

// share is the number of rows of a tenant to claim.
type share struct {
	class  int
	tenant string
	rows   int
}

// shares distributes rows one by one: among the classes by their shares, and
// within a class among its tenants in turn.
func (t *TenantTurns) shares(d *Due, rows int) []share {
	var given [len(classes)]int
	for range rows {
		class := t.nextClass(d)
		if class < 0 {
			break
		}
		given[class]++
	}
	var all []share
	for i, tenants := range d.tenants {
		for n, tenant := range tenants {
			if each := (given[i] + len(tenants) - 1 - n) / len(tenants); each > 0 {
				all = append(all, share{class: i, tenant: tenant, rows: each})
			}
		}
		t.advance(d, i, given[i])
	}
	return all
}

// advance sets the tenant after which the next walk of a class begins: the last
// one that got a row. If all tenants of a partial walk got one, the next walk
// begins where this one ended.
func (t *TenantTurns) advance(d *Due, class, given int) {
	switch walked := d.walked[class]; {
	case given >= walked && d.partial[class], walked == 0:
		t.after[class] = d.last[class]
	case given > 0:
		if last := (given - 1) % len(d.tenants[class]); last < walked {
			t.after[class] = d.tenants[class][last]
		}
	}
}

// nextClass returns the class of the next row, or -1 if no class has due rows.
// Each class with due rows gets its share as credit, and the class with the most
// credit pays the sum of the shares.
func (t *TenantTurns) nextClass(d *Due) int {
	best, sum := -1, 0
	for i, class := range classes {
		if len(d.tenants[i]) == 0 {
			t.credit[i] = 0
			continue
		}
		sum += class.share
		t.credit[i] += class.share
		if best < 0 || t.credit[i] > t.credit[best] {
			best = i
		}
	}
	if best >= 0 {
		t.credit[best] -= sum
	}
	return best
}

// removeExhausted removes the tenants that had fewer rows than their shares.
func (d *Due) removeExhausted(shares []share, claimed []Claimed) {
	got := map[TenantTurn]int{}
	for _, c := range claimed {
		got[c.Turn]++
	}
	for _, s := range shares {
		at := slices.Index(d.tenants[s.class], s.tenant)
		if got[TenantTurn{classes[s.class].name, s.tenant}] >= s.rows {
			continue
		}
		d.tenants[s.class] = slices.Delete(d.tenants[s.class], at, at+1)
		if at < d.walked[s.class] {
			d.walked[s.class]--
		}
	}
}
