package parked

import "slices"

// lanes are what rows wait in, with the parts that they have of what is claimed
// while all of them have something. In each the tenants take turns.
var lanes = [...]struct {
	name  string
	parts int
}{
	{"live", 4},   // due since it is there
	{"retry", 2},  // was to wait for a while
	{"replay", 1}, // was in quarantine
}

const retryLane = 1

// Turns is whose turn it is next, of one subscription in one process. Nothing
// depends on it but who is first: several processes each go round on their own,
// and a new one begins anywhere.
type Turns struct {
	after  [len(lanes)]string // the tenant that was served last
	credit [len(lanes)]int
}

// Due is what a look at the table has found.
type Due struct {
	Suspect bool // rows under which a process has ended before

	tenants [len(lanes)][]string // that have rows, in the order of their turns
	walked  [len(lanes)]int      // the first of them, which the walk came to; the others were asked for
	last    [len(lanes)]string   // that the walk came to
	partly  [len(lanes)]bool     // it may have ended before it was round
}

// Turn is what takes turns with others.
type Turn struct{ Lane, Tenant string }

// Fresh says whether rows are due under which no process has ended.
func (d *Due) Fresh() bool {
	return slices.ContainsFunc(d.tenants[:], func(tenants []string) bool { return len(tenants) > 0 })
}

// Partly says whether there may be others that have not been looked at.
func (d *Due) Partly() bool { return slices.Contains(d.partly[:], true) }

// walk takes what a walk through a lane has come to.
func (d *Due) walk(lane, n int, tenant string, due bool) {
	d.last[lane], d.partly[lane] = tenant, n == looked
	if due {
		d.tenants[lane] = append(d.tenants[lane], tenant)
		d.walked[lane]++
	}
}

// also takes a tenant that has rows, whether the walk came to it or not.
func (d *Due) also(lane int, tenant string) {
	if !slices.Contains(d.tenants[lane], tenant) {
		d.tenants[lane] = append(d.tenants[lane], tenant)
	}
}

// share is how many rows of a tenant to claim.
type share struct {
	lane   int
	tenant string
	rows   int
}

// shares gives out so many rows, one after another: to the lanes by their parts,
// and in a lane to one tenant after the other.
func (t *Turns) shares(d *Due, rows int) []share {
	var given [len(lanes)]int
	for range rows {
		lane := t.next(d)
		if lane < 0 {
			break
		}
		given[lane]++
	}
	var all []share
	for i, tenants := range d.tenants {
		for n, tenant := range tenants {
			if each := (given[i] + len(tenants) - 1 - n) / len(tenants); each > 0 {
				all = append(all, share{lane: i, tenant: tenant, rows: each})
			}
		}
		t.goOn(d, i, given[i])
	}
	return all
}

// goOn has the next walk of a lane begin behind whom this one has served last.
// When all whom it came to were served it is the turn of those after them.
func (t *Turns) goOn(d *Due, lane, given int) {
	switch walked := d.walked[lane]; {
	case given >= walked && d.partly[lane], walked == 0:
		t.after[lane] = d.last[lane]
	case given > 0:
		if last := (given - 1) % len(d.tenants[lane]); last < walked {
			t.after[lane] = d.tenants[lane][last]
		}
	}
}

// next returns the lane that is to have the next row, or -1. Each that has rows
// is credited its parts, and the one with most pays for all.
func (t *Turns) next(d *Due) int {
	best, parts := -1, 0
	for i, lane := range lanes {
		if len(d.tenants[i]) == 0 {
			t.credit[i] = 0
			continue
		}
		parts += lane.parts
		t.credit[i] += lane.parts
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
		at := slices.Index(d.tenants[s.lane], s.tenant)
		if got[Turn{lanes[s.lane].name, s.tenant}] >= s.rows {
			continue
		}
		d.tenants[s.lane] = slices.Delete(d.tenants[s.lane], at, at+1)
		if at < d.walked[s.lane] {
			d.walked[s.lane]--
		}
	}
}
