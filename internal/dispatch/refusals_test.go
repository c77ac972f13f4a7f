package dispatch

import (
	"fmt"
	"testing"
	"time"
)

// An episode ends when the topic has accepted a message and has refused none for a
// minute. The first refusal of each episode is an error in the log.
func TestRefusalsAreAnErrorOncePerEpisode(t *testing.T) {
	var r refusals
	start := time.Now()
	if got := r.accept("t"); got != 0 {
		t.Fatalf(`r.accept("t") is %d, want 0: nothing was refused`, got)
	}
	if !r.refuse("t", start) {
		t.Fatal(`r.refuse("t", start) returned false`)
	}
	if !r.refuse("other", start) {
		t.Fatal(`r.refuse("other", start) returned false`)
	}
	if r.refuse("t", start.Add(time.Hour)) {
		t.Fatal("r.refuse returned true: nothing was accepted meanwhile")
	}
	if got := r.accept("t"); got != 2 {
		t.Fatalf(`r.accept("t") is %d, want 2`, got)
	}
	if got := r.accept("t"); got != 0 {
		t.Fatalf(`r.accept("t") is %d, want 0: it was said`, got)
	}
	if r.refuse("t", start.Add(time.Hour+refusalsQuiet-1)) {
		t.Fatal("r.refuse returned true")
	}
	if got := r.accept("t"); got != 0 {
		t.Fatalf(`r.accept("t") is %d, want 0: it was said`, got)
	}
	if !r.refuse("t", start.Add(time.Hour+2*refusalsQuiet)) {
		t.Fatal("r.refuse returned false")
	}
	if got := r.accept("t"); got != 1 {
		t.Fatalf(`r.accept("t") is %d, want 1`, got)
	}

	for i := range 3 * maxRefusals {
		r.refuse(fmt.Sprint(i), start)
		if len(r) > maxRefusals {
			t.Fatalf("len(r) is %d, want at most %d", len(r), maxRefusals)
		}
	}
}
