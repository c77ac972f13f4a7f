package main

// forwarderGuards are those of the outbox, the forwarder, the mover and the
// publisher.
func forwarderGuards() []guard {
	return []guard{}
}
