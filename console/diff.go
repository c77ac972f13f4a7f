package console

import (
	"slices"
	"strings"
)

// diffLine is a line of a side-by-side comparison. If one side has no line here, the line
// number of this side is 0.
type diffLine struct {
	OldNumber, NewNumber int
	Old, New             diffText
	Changed              bool
	Gap                  int // number of equal lines that are left out at this place
	Rest                 int // number of changed lines that are left out at this place
}

// diffText is a line that is split into three parts. The line on the other side has the
// same Before and After, but another Middle.
type diffText struct{ Before, Middle, After string }

const (
	// mostCompared is the maximum number of lines of a text that are compared one by one.
	// Lines of a longer text are shown as removed and added, and no more than
	// mostCompared of them.
	mostCompared = 1500

	// contextLines is the number of equal lines that are shown before and after a
	// change.
	contextLines = 3

	// lineEnd is shown at the end of the last line if the text ends with a newline.
	lineEnd = "\u23ce"
)

// diff compares two strings line by line. If only one of the strings ends with a newline,
// diff shows this as a difference, too. Of the equal lines at the beginning and at the
// end it makes only those that are shown.
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

// splitLines returns the lines of a text. If the text ends with a newline, it appends
// lineEnd to the last line.
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

// differ collects the lines of a comparison. It keeps removed and added lines back until
// the next equal line. Then it can show them side by side.
type differ struct {
	lines            []diffLine
	oldLine, newLine int
	removed, added   []string
}

// compare compares two lists of lines. It finds their longest common subsequence. For
// long lists this would take too long: if a list has more than mostCompared lines, all
// lines count as changed.
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

// fold leaves out equal lines that are more than contextLines away from a change. A line
// with the field Gap takes their place.
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
