package console

import (
	"slices"
	"strings"
)

// diffLine is a line of a side-by-side comparison. The number of a missing line is 0.
type diffLine struct {
	OldNumber, NewNumber int
	Old, New             diffText
	Changed              bool
	Gap                  int // number of equal lines that are left out at this place
	Rest                 int // number of changed lines that are left out at this place
}

// diffText differs from the other side in Middle.
type diffText struct{ Before, Middle, After string }

const (
	// mostCompared limits the lines that are compared one by one. Those of a longer text are shown
	// as removed and added, and no more of them.
	mostCompared = 1500

	// contextLines is the number of equal lines around a change.
	contextLines = 3

	// lineEnd is shown at the end of the last line if the text ends with a newline.
	lineEnd = "\u23ce"
)

// A newline at the end of only one string is a difference, too. Of the equal lines at the ends,
// only those that are shown are made.
func diff(before, after string) (lines []diffLine) {
	if before == after {
		return nil
	}
	a, b := splitLines(before), splitLines(after)
	head, tail := common(a, b)
	skipped := max(0, head-contextLines)
	d := differ{oldLine: skipped, newLine: skipped}
	for _, line := range a[skipped:head] {
		d.equal(line)
	}
	d.compare(a[head:len(a)-tail], b[head:len(b)-tail])
	d.flush()
	shown := min(tail, contextLines)
	for _, line := range a[len(a)-tail:][:shown] {
		d.equal(line)
	}
	if skipped > 0 {
		lines = append(lines, diffLine{Gap: skipped})
	}
	lines = append(lines, fold(d.lines)...)
	if tail > shown {
		lines = append(lines, diffLine{Gap: tail - shown})
	}
	return lines
}

func common[T comparable](a, b []T) (head, tail int) {
	shorter := min(len(a), len(b))
	for head < shorter && a[head] == b[head] {
		head++
	}
	for tail < shorter-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head, tail
}

// splitLines appends lineEnd if the text ends with a newline.
func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	if last := len(lines) - 1; lines[last] == "" {
		lines = lines[:last]
		lines[last-1] += lineEnd
	}
	return lines
}

// differ keeps removed and added lines back until the next equal line, to show them side by side.
type differ struct {
	lines            []diffLine
	oldLine, newLine int
	removed, added   []string
}

// compare finds the longest common subsequence, except for a list with more than mostCompared
// lines, for which this takes too long: then all lines count as changed.
func (d *differ) compare(a, b []string) {
	if len(a) > mostCompared || len(b) > mostCompared {
		d.removed, d.added = a[:min(len(a), mostCompared)], b[:min(len(b), mostCompared)]
		d.flush()
		rest := max(len(a), len(b)) - mostCompared
		d.lines = append(d.lines, diffLine{Changed: true, Rest: rest})
		d.oldLine, d.newLine = len(a)+d.oldLine-min(len(a), mostCompared), len(b)+d.newLine-min(len(b), mostCompared)
		return
	}
	longest := make([][]int16, len(a)+1) // lengths of the longest common subsequences of a[i:] and b[j:]
	for i := range longest {
		longest[i] = make([]int16, len(b)+1)
	}
	for i := range slices.Backward(a) {
		for j := range slices.Backward(b) {
			if a[i] == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			d.flush()
			d.equal(a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && longest[i+1][j] >= longest[i][j+1]:
			d.removed = append(d.removed, a[i])
			i++
		default:
			d.added = append(d.added, b[j])
			j++
		}
	}
}

func (d *differ) equal(line string) {
	d.oldLine++
	d.newLine++
	same := diffText{Before: line}
	d.lines = append(d.lines, diffLine{OldNumber: d.oldLine, NewNumber: d.newLine, Old: same, New: same})
}

func (d *differ) flush() {
	for i := range max(len(d.removed), len(d.added)) {
		line := diffLine{Changed: true}
		switch {
		case i >= len(d.added):
			line.Old.Middle = d.removed[i]
		case i >= len(d.removed):
			line.New.Middle = d.added[i]
		default:
			line.Old, line.New = mark(d.removed[i], d.added[i])
		}
		if i < len(d.removed) {
			d.oldLine++
			line.OldNumber = d.oldLine
		}
		if i < len(d.added) {
			d.newLine++
			line.NewNumber = d.newLine
		}
		d.lines = append(d.lines, line)
	}
	d.removed, d.added = nil, nil
}

func mark(before, after string) (diffText, diffText) {
	a, b := []rune(before), []rune(after)
	head, tail := common(a, b)
	part := func(r []rune) diffText {
		return diffText{string(r[:head]), string(r[head : len(r)-tail]), string(r[len(r)-tail:])}
	}
	return part(a), part(b)
}

// A line with Gap takes the place of equal lines more than contextLines away from a change.
func fold(lines []diffLine) []diffLine {
	near := make([]bool, len(lines))
	for i, line := range lines {
		if line.Changed {
			for k := max(0, i-contextLines); k <= min(len(lines)-1, i+contextLines); k++ {
				near[k] = true
			}
		}
	}
	var kept []diffLine
	gap := 0
	for i, line := range lines {
		if !near[i] {
			gap++
			continue
		}
		if gap > 0 {
			kept = append(kept, diffLine{Gap: gap})
			gap = 0
		}
		kept = append(kept, line)
	}
	if gap > 0 && len(kept) > 0 {
		kept = append(kept, diffLine{Gap: gap})
	}
	return kept
}
