package durable

import "time"

// SetOneTry sets the timeout of one try to store a batch.
func (i *Storage) SetOneTry(d time.Duration) { i.oneTry = d }
