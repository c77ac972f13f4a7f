// Package slot says in which part of the outbox a message belongs. Whatever
// writes to the outbox must agree on it, or two forwarders would send messages
// of one key.
package slot

// Count is the number of rows of once_slots, fixed by the migration. A change
// would move keys between owners while their messages wait.
const Count = 64

// Of returns the slot of a message: that of its ordering key or, if key is
// empty, of its id. It is FNV-1a, modulo Count: the same in every version of
// this module.
func Of(id, key string) int {
	of := key
	if of == "" {
		of = id
	}
	hash := uint32(2166136261)
	for i := range len(of) {
		hash = (hash ^ uint32(of[i])) * 16777619
	}
	return int(hash % Count)
}
