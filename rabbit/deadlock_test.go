package rabbit_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// TestTrap15_NotificationsWaitForNobody has nobody take note of returns and of
// the close of channel and connection: whoever should is stuck in a done
// function, which may not be so but happens. The connection is made anew all
// the same.
func TestTrap15_NotificationsWaitForNobody(t *testing.T) {
	const window = 50
	broker := testkit.Rabbit(t)
	queue := declareQueue(t, broker.URL, nil)
	h := new(heard)
	cfg := impatient
	cfg.Window = window + 1
	cfg.Logger = h
	p := newPublisher(t, queueConfig(broker.URL), cfg)
	connected := func() (n int) {
		for _, line := range h.all() {
			if strings.HasPrefix(line, "Connected") {
				n++
			}
		}
		return n
	}

	stuck, released := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // or Close waits, too
	var outstanding sync.WaitGroup
	outstanding.Add(1)
	p.PublishAsync(queue, newMessage("first"), func(err error) {
		close(stuck)
		<-released
		if err != nil {
			t.Error(err)
		}
		outstanding.Done()
	})
	<-stuck
	var all outcomes
	nowhere := uniqueName("nowhere")
	for _, msg := range numbered("m", window) {
		all.publish(p, nowhere, msg)
	}
	if n := all.reported(); n != 0 {
		t.Fatalf("%d were reported meanwhile", n)
	}
	before := connected()
	broker.Ctl(t, "close_all_connections", "--vhost", broker.VHost, "test")
	eventually(t, "connected again", func() bool { return connected() > before })
	release()
	outstanding.Wait()
	for id, err := range all.wait(t) {
		if got := verdict(err); got != "refused" && got != "unknown" {
			t.Errorf("%s is %s (%v)", id, got, err)
		}
	}
	eventually(t, "published again", func() bool { return p.Publish(queue, newMessage("after")) == nil })
}
