// Command charts prints the chart of the default retry policy for the docs, as SVG. make charts
// writes it to docs/img/retry-policy.svg.
package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/watermill-once/once/retry"
)

const (
	width, height = 720, 190
	left, right   = 40, 680 // ends of the time axis
	axis          = 130
	end           = 20 * time.Minute
)

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "charts:", err)
		os.Exit(1)
	}
}

// x returns the horizontal position of a point on the time axis. at is the
// time since the first attempt. Times below half a second are at the left end of the
// axis. From there on the axis is logarithmic.
func x(at time.Duration) float64 {
	const begin = 500 * time.Millisecond
	if at < begin {
		return left
	}
	return left + 30 + math.Log(float64(at)/float64(begin))/math.Log(float64(end)/float64(begin))*(right-left-30)
}

// after returns the time from the first round of attempts to the given round.
// jitter is the fraction by which jitter makes each pause shorter.
func after(round int, jitter float64) time.Duration {
	if round == 0 {
		return 0
	}
	longest := retry.Config{Policy: retry.Policy{Delayed: round}}.LongestDelay()
	return time.Duration(float64(longest) * (1 - jitter))
}

// write prints the chart. It uses the colour of the surrounding text, so that it
// is readable on a light and on a dark page.
func write(w io.Writer) error {
	const rounds, tries, jitter = 5, 3, 0.2
	var text string
	add := func(format string, args ...any) { text += fmt.Sprintf(format+"\n", args...) }
	add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="sans-serif" font-size="12">`, width, height)
	add(`<title>Default retry policy: %d rounds of %d attempts within about %v</title>`, rounds+1, tries, after(rounds, 0).Round(time.Minute))
	add(`<style>text{fill:#57606a}line{stroke:#8b949e}.try{fill:#1f6feb}.jitter{fill:#1f6feb;opacity:.2}.end{fill:#cf222e}</style>`)
	add(`<line x1="%d" y1="%d" x2="%d" y2="%d"/>`, left, axis, right, axis)
	for _, tick := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute} {
		add(`<line x1="%.0f" y1="%d" x2="%.0f" y2="%d"/>`, x(tick), axis, x(tick), axis+5)
		add(`<text x="%.0f" y="%d" text-anchor="middle">%s</text>`, x(tick), axis+20, label(tick))
	}
	add(`<text x="%d" y="%d" text-anchor="middle">time since the first attempt (logarithmic)</text>`, width/2, axis+45)
	for round := range rounds + 1 {
		latest, earliest := x(after(round, 0)), x(after(round, jitter))
		add(`<rect class="jitter" x="%.1f" y="50" width="%.1f" height="%d"/>`, earliest, latest-earliest, axis-50)
		for try := range tries {
			add(`<circle class="try" cx="%.1f" cy="%d" r="5"/>`, latest, axis-15-22*try)
		}
		add(`<text x="%.1f" y="40" text-anchor="middle">round %d</text>`, latest, round+1)
	}
	add(`<text x="%.1f" y="18" text-anchor="end" class="end">then: quarantine</text>`, x(after(rounds, 0))+20)
	add(`</svg>`)
	_, err := io.WriteString(w, text)
	return err
}

func label(d time.Duration) string {
	if d >= time.Minute {
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
