package conformance

import (
	"fmt"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// neighbours is the number of messages before and after the message that ends the
// process.
const neighbours = 20

// Trap 48. If the handler of a message calls os.Exit, the message goes to quarantine
// when its crash budget is used up. Other messages, which were prefetched or claimed
// together with this message, do not go to quarantine. The rest of the queue is
// handled.
func TestMessageThatEndsTheProcessIsQuarantined(t *testing.T) {
	eachMode(t, func(w *world, l life) {
		var ids []string
		for n := range neighbours {
			if n == 3 {
				w.put(l, killer)
			}
			id := fmt.Sprintf("m%02d", n)
			ids = append(ids, id)
			w.put(l, id)
		}
		crashes := 0
		for p := begin(w.T, l); ; p = begin(w.T, l) {
			testkit.Eventually(w.T, patience, "the process has ended, or all messages are settled", func() bool {
				return p.over() || w.settled() && w.count(`effects`) == neighbours && w.count(`once_parked WHERE state = 'quarantined'`) == 1
			})
			if !p.over() {
				p.stop(w.T)
				break
			}
			if status := p.end(w.T); status.ExitStatus() != exitStatus {
				w.Fatalf("the process ended with %v", status)
			}
			if crashes++; crashes > 3*crashBudget {
				w.Fatalf("the process ended %d times", crashes)
			}
		}
		w.checkOnce(ids...)
		if n := w.count(`once_parked`); n != 1 || w.count(`once_parked WHERE message_id = 'killer' AND reason = 'crashed'`) != 1 {
			w.Errorf("%d parked rows are left", n)
		}
		// A broker's first delivery of a message does not count as a crash, unless the
		// message is stored before it is handled.
		if most := crashBudget + 1; crashes < crashBudget || crashes > most {
			w.Errorf("the process ended %d times, want %d or %d", crashes, crashBudget, most)
		}
	})
}
