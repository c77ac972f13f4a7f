package durable

import (
	"testing"
	"time"
)

// A message that waits at hand behind others which are held is held as long
// itself, and must go back before RabbitMQ closes the channel under it.
func TestTrap46TheDefaultHoldFitsTwiceIntoTheConsumerTimeout(t *testing.T) {
	const consumerTimeout = 30 * time.Minute // RabbitMQ's default
	if hold := (Config{}).withDefaults().UnackedWait; 2*hold >= consumerTimeout {
		t.Errorf("twice %v is not less than %v", hold, consumerTimeout)
	}
}
