package parked

import "slices"

// classes are what rows wait in, with the parts that they have of what is claimed
// while all of them have something. In each the tenants take turns.
var classes = [...]struct {
	name  string
	parts int
}{
	{"live", 4},   // due since it is there
	{"retry", 2},  // was to wait for a while
	{"replay", 1}, // was in quarantine
}

const retryClass = 1

// Turns is whose turn it is next, of one subscription in one process. Nothing
// depends on it but who is first: several processes each go round on their own,
// and a new one begins anywhere.
type Turns struct {
	after  [len(classes)]string // the tenant that was served last
	credit [len(classes)]int
}

// Due is what a look at the table has found.
type Due struct {
	Suspect bool // rows under which a process has ended before

	tenants [len(classes)][]string // that have rows, in the order of their turns
	walked  [len(classes)]int      // the first of them, which the walk came to; the others were asked for
	last    [len(classes)]string   // that the walk came to
	partly  [len(classes)]bool     // it may have ended before it was round
}

// Turn is what takes turns with others.
type Turn struct{ Class, Tenant string }

// Fresh says whether rows are due under which no process has ended.
func (d *Due) Fresh() bool {
	return slices.ContainsFunc(d.tenants[:], func(tenants []string) bool { return len(tenants) > 0 })
}

// Partly says whether there may be others that have not been looked at.
func (d *Due) Partly() bool { return slices.Contains(d.partly[:], true) }

// walk takes what a walk through a class has come to.
func (d *Due) walk(class, n int, tenant string, due bool) {
	d.last[class], d.partly[class] = tenant, n == looked
	if due {
		d.tenants[class] = append(d.tenants[class], tenant)
		d.walked[class]++
	}
}

// also takes a tenant that has rows, whether the walk came to it or not.
func (d *Due) also(class int, tenant string) {
	if !slices.Contains(d.tenants[class], tenant) {
		d.tenants[class] = append(d.tenants[class], tenant)
	}
}

// share is how many rows of a tenant to claim.
type share struct {
	class  int
	tenant string
	rows   int
}

// shares gives out so many rows, one after another: to the classes by their parts,
// and in a class to one tenant after the other.
func (t *Turns) shares(d *Due, rows int) []share {
	var given [len(classes)]int
	for range rows {
		class := t.next(d)
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
		t.goOn(d, i, given[i])
	}
	return all
}

// goOn has the next walk of a class begin behind whom this one has served last.
// When all whom it came to were served it is the turn of those after them.
func (t *Turns) goOn(d *Due, class, given int) {
	switch walked := d.walked[class]; {
	case given >= walked && d.partly[class], walked == 0:
		t.after[class] = d.last[class]
	case given > 0:
		if last := (given - 1) % len(d.tenants[class]); last < walked {
			t.after[class] = d.tenants[class][last]
		}
	}
}

// next returns the class that is to have the next row, or -1. Each that has rows
// is credited its parts, and the one with most pays for all.
func (t *Turns) next(d *Due) int {
	best, parts := -1, 0
	for i, class := range classes {
		if len(d.tenants[i]) == 0 {
			t.credit[i] = 0
			continue
		}
		parts += class.parts
		t.credit[i] += class.parts
		if best < 0 || t.credit[i] > t.credit[best] {
			best = i
		}
	}
	if best >= 0 {
		t.credit[best] -= parts
	}
	return best
}

// without takes tenants away that had less than their shares.
func (d *Due) without(shares []share, claimed []Claimed) {
	got := map[Turn]int{}
	for _, c := range claimed {
		got[c.Turn]++
	}
	for _, s := range shares {
		at := slices.Index(d.tenants[s.class], s.tenant)
		if got[Turn{classes[s.class].name, s.tenant}] >= s.rows {
			continue
		}
		d.tenants[s.class] = slices.Delete(d.tenants[s.class], at, at+1)
		if at < d.walked[s.class] {
			d.walked[s.class]--
		}
	}
}
