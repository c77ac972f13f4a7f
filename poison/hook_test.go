package poison_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
)

// A hook that hangs or panics does not delay acks.
func TestSlowOrPanickingHookDelaysNoAck(t *testing.T) {
	release, told := make(chan struct{}), make(chan string, 10)
	b := newBench(t, kit.SQLite(t), func(c *poison.Config) {
		c.OnQuarantine = func(e poison.Entry) {
			<-release
			told <- e.MessageID
			if e.MessageID == "m1" {
				panic("hook")
			}
		}
	})
	b.quarantine("payments", "m1", "m2", "m3") // returns, although the hook has not returned
	close(release)
	for i := range 3 {
		if id := next(t, told); id != fmt.Sprint("m", i+1) {
			t.Errorf("told of %s", id)
		}
	}
}

// next returns the next entry that the hook gets.
func next[T any](t *testing.T, told <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-told:
	case <-time.After(20 * time.Second):
		t.Fatal("the hook is not told")
	}
	return value
}
