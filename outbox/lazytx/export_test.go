package lazytx

import (
	"fmt"
	"time"
)

// Limits of this package, see maxIdle and maxLate.
const (
	MaxIdle = maxIdle
	MaxLate = maxLate
)

// SetAlive sets the time of the server's last answer on a connection of this package.
func SetAlive(raw any, at time.Time) error {
	c, ok := raw.(*conn)
	if !ok {
		return fmt.Errorf("the connection is a %T", raw)
	}
	c.alive = at
	return nil
}
