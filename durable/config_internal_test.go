package durable

import (
	"testing"
	"time"
)

// Trap 46. A prefetched message may wait behind other messages for UnackedWait, and
// then for UnackedWait once more until it is nacked. It must be nacked before RabbitMQ
// closes the channel.
func TestTrap46DefaultUnackedWaitIsLessThanHalfTheConsumerTimeout(t *testing.T) {
	const consumerTimeout = 30 * time.Minute // RabbitMQ's default
	if hold := (Config{}).withDefaults().UnackedWait; 2*hold >= consumerTimeout {
		t.Errorf("twice %v is not less than %v", hold, consumerTimeout)
	}
}
