// Package slot maps messages to the slots of the outbox. Each forwarder owns some
// slots. All writers of the outbox must use the same mapping; otherwise two forwarders
// would send messages of one ordering key.
package slot

// Count is the number of slots: the rows of once_slots. The migration fixes it,
// because a change would move ordering keys to other owners while their messages wait.
const Count = 64

// Of returns the slot of a message with the given id and ordering key. It hashes the
// key, or the id if key is empty, by FNV-1a modulo Count. The result must be the same
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
