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

// progressEvery is how often a line is written if there is no terminal.
const progressEvery = 10 * time.Second

func (a *app) progress() *progress {
	return &progress{out: a.stderr, terminal: a.width > 0, shown: time.Now()}
}

func (p *progress) show(r poison.Report) {
	p.line(fmt.Sprintf("replay %d: %d of %d replayed, %d resolved, %d failed, %d stale",
		r.ID, r.Replayed, r.Total, r.Resolved, r.Failed, r.Stale))
}

// line overwrites the line of a terminal. Elsewhere it writes a line now and then.
func (p *progress) line(text string) {
	switch {
	case p.terminal:
		fmt.Fprintf(p.out, "\r%s\x1b[K", text)
	case time.Since(p.shown) >= progressEvery:
		p.shown = time.Now()
		fmt.Fprintln(p.out, text)
	}
}

// end leaves the line of a terminal.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
