package dispatch

import (
	"cmp"
	"slices"
)

// ahead returns the rows that the query of a lookahead in package forwarder would
// return.
func (w *world) ahead(r *Read) ([]*Message, Reach) {
	var above []*stored
	late := map[string]bool{}
	for _, row := range w.table {
		if row.Position > r.Late && row.Position <= r.From && !slices.Contains(r.Known, row.Position) {
			late[row.Key] = true
		}
		if row.Position > r.From {
			above = append(above, row)
		}
	}
	slices.SortFunc(above, func(a, b *stored) int { return cmp.Compare(a.Position, b.Position) })
	at := Reach{Covered: Everything}
	if len(above) > 0 {
		at.End = above[len(above)-1].Position
	}
	if len(above) >= r.Examine {
		above = above[:r.Examine]
		at.Covered = above[len(above)-1].Position
	}
	if len(above) > 0 {
		at.Highest = above[len(above)-1].Position
	}
	var found []*Message
	groups := map[Group]int{}
	size := 0
	for _, row := range above {
		hash := hashOf(row.Key)
		blocked := w.blocked[row.Key]
		switch {
		case slices.Contains(r.Known, row.Position):
			continue
		case row.Key != "" && late[row.Key]:
			at.More = true
		case r.Pauses.Include(row.Topic, row.Tenant):
		case !row.due.IsZero(), !slices.Contains(r.Slots, row.Slot), slices.Contains(r.Groups, row.group()):
		case row.Key == "" && slices.Contains(r.Topics, row.Topic), row.Key != "" && slices.Contains(r.Keys, row.Key):
		case blocked != nil && blocked.position != row.Position:
		case len(found) >= r.Limit || size >= r.Bytes || groups[row.group()] >= r.PerGroup:
			at.More = true
		default:
			groups[row.group()]++
			m := row.Message
			if blocked != nil {
				m.BlocksKey, m.SuccessorsAfter = true, blocked.successorsAfter
			}
			m.KeyHash, m.Payload = hash, make([]byte, len(row.Payload))
			size += m.Size()
			found = append(found, &m)
			continue
		}
		if row.Key != "" {
			at.Skipped = append(at.Skipped, Skipped{row.Position, hash})
		}
	}
	for _, row := range w.table {
		if row.Key != "" && row.Position > r.Late && row.Position <= r.Passed && !slices.Contains(r.Known, row.Position) {
			at.Skipped = append(at.Skipped, Skipped{row.Position, hashOf(row.Key)})
		}
	}
	w.foundAhead += len(found)
	return found, at
}

// hashOf returns a hash of a key. Some keys have the same hash.
func hashOf(key string) int64 {
	var hash int64
	for _, c := range key {
		hash = hash*31 + int64(c)
	}
	return hash % 13
}
