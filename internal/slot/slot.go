// Package slot computes the slot of a message in the outbox. Each forwarder owns some
// slots. All writers of the outbox must compute slots in the same way. Otherwise two
// forwarders could send messages of one ordering key, in the wrong order.
package slot

// Count is the number of slots. Each slot is a row of once_slots. Do not change Count
// after the migration: ordering keys would move to other slots, and so to other
// forwarders, while their messages wait.
const Count = 64

// Of returns the slot of a message with the given id and ordering key. It is the FNV-1a
// hash of the key, or of the id if key is "", modulo Count. The result must be the same
// in every version of this module.
func Of(id, key string) int {
	hashed := key
	if hashed == "" {
		hashed = id
	}
	hash := uint32(2166136261)
	for i := range len(hashed) {
		hash = (hash ^ uint32(hashed[i])) * 16777619
	}
	return int(hash % Count)
}
