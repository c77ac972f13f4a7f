package durable

import "time"

// SetOneTry sets the timeout for one attempt to store a batch.
func (i *Storage) SetOneTry(d time.Duration) { i.oneTry = d }
