package console

import (
	"encoding/json"
	"time"
)

// series is a list of samples for a chart. Its length is limited. When it is full, every
// second sample is removed, and from then on samples are taken half as often. If the
// series has a window, samples that are older than the window are removed instead.
type series struct {
	window time.Duration
	times  []int64     // Unix time in seconds
	values [][]float64 // one list for each line of the chart
	every  time.Duration
	last   time.Time
}

const (
	mostSamples = 600
	sampleEvery = 2 * time.Second
)

// add adds a sample. If less time than s.every has passed since the last sample, add does
// nothing.
func (s *series) add(at time.Time, numbers ...float64) {
	if s.every == 0 {
		s.every, s.values = sampleEvery, make([][]float64, len(numbers))
		if s.window > 0 {
			s.every = s.window / mostSamples
		}
	}
	if at.Sub(s.last) < s.every {
		return
	}
	s.last = at
	for s.window > 0 && len(s.times) > 0 && s.times[0] < at.Add(-s.window).Unix() {
		s.times = s.times[1:]
		for i := range s.values {
			s.values[i] = s.values[i][1:]
		}
	}
	if len(s.times) == mostSamples {
		s.every *= 2
		s.times = everySecond(s.times)
		for i := range s.values {
			s.values[i] = everySecond(s.values[i])
		}
	}
	s.times = append(s.times, at.Unix())
	for i, n := range numbers {
		s.values[i] = append(s.values[i], n)
	}
}

func everySecond[T any](list []T) []T {
	kept := list[:0]
	for i := 0; i < len(list); i += 2 {
		kept = append(kept, list[i])
	}
	return kept
}

// chart is the data of a chart as JSON. The script console.js reads it from an attribute
// of the page.
type chart struct {
	Labels []string `json:"labels"`
	Data   []any    `json:"data"`
}

// chart returns the series as JSON, or "" if it has fewer than two samples.
func (s *series) chart(labels ...string) string {
	if len(s.times) < 2 {
		return ""
	}
	c := chart{Labels: labels, Data: []any{s.times}}
	for _, numbers := range s.values {
		c.Data = append(c.Data, numbers)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	return string(text)
}
