package main

import (
	"fmt"
	"io"
	"time"

	"github.com/watermill-once/once/poison"
)

// progress shows the progress of a replay on standard error.
type progress struct {
	out      io.Writer
	terminal bool
	shown    time.Time
}

// progressEvery is the shortest time between two lines if there is no terminal.
const progressEvery = 10 * time.Second

func (a *app) progress() *progress {
	return &progress{out: a.stderr, terminal: a.width > 0, shown: time.Now()}
}

func (p *progress) show(r poison.Report) {
	p.line(fmt.Sprintf("replay %d: %d of %d replayed, %d resolved, %d failed, %d stale",
		r.ID, r.Replayed, r.Total, r.Resolved, r.Failed, r.Stale))
}

// line overwrites the current line of a terminal. If there is no terminal, it writes a
// new line, but at most one line in each period of progressEvery.
func (p *progress) line(text string) {
	switch {
	case p.terminal:
		fmt.Fprintf(p.out, "\r%s\x1b[K", text)
	case time.Since(p.shown) >= progressEvery:
		p.shown = time.Now()
		fmt.Fprintln(p.out, text)
	}
}

// end clears the line of a terminal.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
