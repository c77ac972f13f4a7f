package parkedrows

import "slices"

// classes are the priority classes with their shares of the claimed rows, while all classes have
// due rows.
var classes = [...]struct {
	name  string
	share int
}{
	{"live", 4},   // rows that have not waited for a delay
	{"retry", 2},  // rows that have waited for a delay
	{"replay", 1}, // rows that were replayed from quarantine
}

const retryClass = 1

// TenantTurns remembers, for a subscription in this process, which tenant is next. It affects only
// the order of claims.
type TenantTurns struct {
	after  [len(classes)]string // the tenant after which the next walk begins
	credit [len(classes)]int
}

// Due is the result of [Store.Due], which walks through the tenants of each priority
// class.
type Due struct {
	Crashed bool // some due rows were claimed by a process that died
	Full    bool // a tenant has due rows, and as many claimed ones as it may have

	tenants [len(classes)][]string // tenants with due rows, in the order of their turns
	walked  [len(classes)]int      // how many elements of tenants come from the walk; the tenants of overdue rows follow them
	last    [len(classes)]string   // the last tenant of the walk
	partial [len(classes)]bool     // the walk ended before it reached all tenants
}

// TenantTurn identifies the rows of one tenant in one priority class.
type TenantTurn struct{ PriorityClass, Tenant string }

// Fresh reports whether there are due rows that were not claimed by a process that
// died.
func (d *Due) Fresh() bool {
	return slices.ContainsFunc(d.tenants[:], func(tenants []string) bool { return len(tenants) > 0 })
}

// Partial reports whether further tenants may have due rows, because Store.Due has not
// examined all tenants.
func (d *Due) Partial() bool { return slices.Contains(d.partial[:], true) }

// scan adds a row of the query of Store.Due. Most retries are usually not due yet, so in their class
// the tenants of the rows that are overdue the longest follow those of the walk.
func (d *Due) scan(scan func(dest ...any) error) error {
	var (
		name, tenant string
		n            int
		due          bool
	)
	if err := scan(&name, &n, &tenant, &due); err != nil {
		return err
	}
	for class := range classes {
		switch {
		case classes[class].name != name:
		case n > maxTenants:
			d.addOverdue(class, tenant)
		default:
			d.addWalked(class, n, tenant, due)
		}
	}
	d.Crashed = d.Crashed || name == "" && due
	return nil
}

// addWalked records that the nth step of the walk through a class has visited a tenant.
func (d *Due) addWalked(class, n int, tenant string, due bool) {
	d.last[class], d.partial[class] = tenant, n == maxTenants
	if due {
		d.tenants[class] = append(d.tenants[class], tenant)
		d.walked[class]++
	}
}

func (d *Due) addOverdue(class int, tenant string) {
	if !slices.Contains(d.tenants[class], tenant) {
		d.tenants[class] = append(d.tenants[class], tenant)
	}
}

type share struct {
	class  int
	tenant string
	rows   int
}

// shares distributes rows among the classes by their shares, and within a class among the tenants
// by turns.
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

// advance sets the tenant after which the next walk of a class begins. Usually this is the last
// tenant that got a row. In two cases it is the last tenant that this walk has visited:
//
//   - The walk found no tenant with due rows.
//   - The walk ended before it reached all tenants, and every tenant with due rows that
//     the walk found got a row.
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

// nextClass returns the class of the next row, or -1 if no class has due rows. Each class with due
// rows receives its share as credit. The class with the most credit gets the row, and pays the sum
// of these shares.
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

// removeExhausted removes the tenants that got fewer rows than planned, because they have no more
// due rows.
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
		d.remove(s.class, at)
	}
}

func (d *Due) remove(class, at int) {
	d.tenants[class] = slices.Delete(d.tenants[class], at, at+1)
	if at < d.walked[class] {
		d.walked[class]--
	}
}
