package durable

import "time"

// SetOneTry has a try to store a batch end after d.
func (i *Storage) SetOneTry(d time.Duration) { i.oneTry = d }
