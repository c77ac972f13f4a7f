package inbox

import "time"

// SetOneTry has a try to store a batch end after d.
func (i *Intake) SetOneTry(d time.Duration) { i.oneTry = d }
