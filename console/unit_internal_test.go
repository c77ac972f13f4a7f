package console

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/watermill-once/once/status"
)

// sides returns a comparison as lines of both sides.
func sides(lines []diffLine) (old, edited string) {
	text := func(t diffText) string {
		if t.Middle == "" {
			return t.Before + t.After
		}
		return t.Before + "[" + t.Middle + "]" + t.After
	}
	for _, l := range lines {
		if l.Gap > 0 {
			old, edited = old+"…\n", edited+"…\n"
			continue
		}
		old, edited = old+text(l.Old)+"\n", edited+text(l.New)+"\n"
	}
	return old, edited
}

func TestDiff(t *testing.T) {
	for name, c := range map[string]struct{ before, after, old, edited string }{
		"equal":            {"a\nb", "a\nb", "", ""},
		"a character":      {"a\nbcd\ne", "a\nbXd\ne", "a\nb[c]d\ne\n", "a\nb[X]d\ne\n"},
		"a line is added":  {"a\nc", "a\nb\nc", "a\n\nc\n", "a\n[b]\nc\n"},
		"a line is gone":   {"a\nb\nc", "a\nc", "a\n[b]\nc\n", "a\n\nc\n"},
		"the last newline": {"a\n", "a", "a[⏎]\n", "a\n"},
		"everything":       {"", "a\nb", "\n\n", "[a]\n[b]\n"},
		"far lines":        {strings.Repeat("x\n", 20) + "a", strings.Repeat("x\n", 20) + "b", "…\nx\nx\nx\n[a]\n", "…\nx\nx\nx\n[b]\n"},
		"two changes":      {"a\nb\nc\nd", "A\nb\nc\nD", "[a]\nb\nc\n[d]\n", "[A]\nb\nc\n[D]\n"},
	} {
		old, edited := sides(diff(c.before, c.after))
		assert.Equal(t, c.old, old, name)
		assert.Equal(t, c.edited, edited, name)
	}
	large := strings.Repeat("a\n", 5000)
	assert.Len(t, diff(large, strings.ReplaceAll(large, "a", "b")), 5000, "too large to be compared line by line")
}

func TestASeriesIsBounded(t *testing.T) {
	var s series
	now := time.Unix(0, 0)
	assert.Empty(t, s.chart("n"))
	for i := range 10 * mostSamples {
		s.add(now.Add(time.Duration(i)*sampleEvery), float64(i))
	}
	assert.LessOrEqual(t, len(s.times), mostSamples)
	assert.GreaterOrEqual(t, len(s.times), mostSamples/2)
	assert.Equal(t, int64(0), s.times[0])
	for i := 1; i < len(s.times); i++ {
		assert.Less(t, s.times[i-1], s.times[i])
	}
	assert.Contains(t, s.chart("n"), `{"labels":["n"],"data":[[0,`)
}

func TestASeriesWithAWindowForgets(t *testing.T) {
	s := series{window: time.Hour}
	for i := range 3 * 3600 / 5 {
		s.add(time.Unix(int64(i*5), 0), float64(i))
	}
	assert.LessOrEqual(t, len(s.times), mostSamples)
	assert.InDelta(t, 3600, s.times[len(s.times)-1]-s.times[0], 10)
	assert.Len(t, s.values[0], len(s.times))
}

func TestRatesAreAveraged(t *testing.T) {
	var f flow
	at := time.Unix(1000, 0)
	_, _, known := f.add(status.Flow{At: at, Written: 100, Removed: 90})
	assert.False(t, known)
	for i := 1; i <= 60; i++ {
		in, out, known := f.add(status.Flow{At: at.Add(time.Duration(i) * time.Second), Written: int64(100 + 50*i), Removed: int64(90 + 40*i)})
		assert.True(t, known)
		assert.InDelta(t, 50, in, 0.001)
		assert.InDelta(t, 40, out, 0.001)
	}
	assert.Less(t, len(f.samples), 20)
	_, _, known = f.add(status.Flow{At: at.Add(time.Hour), Written: 3}) // the statistics were reset
	assert.False(t, known)
	assert.Equal(t, "<0.1", perSecond(0.01))
	assert.Equal(t, "2.5", perSecond(2.5))
	assert.Equal(t, "1,234", perSecond(1234.5))
	assert.Equal(t, "0", perSecond(0))
}

func TestThePaceOfAReplay(t *testing.T) {
	var p paces
	at := time.Unix(1000, 0)
	assert.Zero(t, p.add(7, at, 0))
	for i := 1; i <= 100; i++ {
		assert.InDelta(t, 20, p.add(7, at.Add(time.Duration(i)*time.Second), 20*i), 0.001)
		p.add(7, at.Add(time.Duration(i)*time.Second+time.Millisecond), 20*i) // a second browser
	}
	assert.LessOrEqual(t, len(p.all[7]), 17)
	assert.Zero(t, p.add(7, at.Add(time.Hour), 3)) // began again
	for id := range int64(1000) {
		p.add(id, at, 0)
	}
	assert.LessOrEqual(t, len(p.all), mostPaces)
}

func TestNumbersAndTimesForPeople(t *testing.T) {
	assert.Equal(t, "1,234,567", count(1234567))
	assert.Equal(t, "-123", count(-123))
	assert.Equal(t, "999", count(999))
	assert.Equal(t, "1 message", plural(1, "message", "messages"))
	assert.Equal(t, "now", ago(0))
	assert.Equal(t, "in 5 min", ago(-5*time.Minute))
	assert.Equal(t, "30 h ago", ago(30*time.Hour))
	assert.Equal(t, "3 days ago", ago(80*time.Hour))
	assert.Equal(t, "1.5 KiB", size(1536))
}
