package main

import (
	"encoding/json"
	"os"
	"slices"
)

// row is a line of the table. If Of is the ID of another row, Ratio is Median divided by
// the median of that row. Floor limits Ratio, or Median if Of is empty. Floor is the
// minimum or, if LowerIsBetter is true, the maximum. Zero means no limit.
type row struct {
	ID            string  `json:"id"`
	What          string  `json:"what"`
	Unit          string  `json:"unit"`
	Median        float64 `json:"median"`
	Min           float64 `json:"min"`
	Max           float64 `json:"max"`
	Ratio         float64 `json:"ratio,omitempty"`
	Of            string  `json:"of,omitempty"`
	Floor         float64 `json:"floor,omitempty"`
	LowerIsBetter bool    `json:"lower_is_better,omitempty"`
}

// missed reports whether the row misses its limit.
func (r row) missed() bool {
	figure := r.Median
	if r.Of != "" {
		figure = r.Ratio
	}
	switch {
	case r.Floor == 0:
		return false
	case r.LowerIsBetter:
		return figure > r.Floor
	default:
		return figure < r.Floor
	}
}

// series contains the values of one measurement, one for each run.
type series struct {
	id, what, unit string

	values []float64
}

const (
	perSecond    = "msg/s"
	milliseconds = "ms"
	megabytes    = "MB"
)

func (s series) median() float64 {
	sorted := slices.Sorted(slices.Values(s.values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func (s series) row() row {
	return row{ID: s.id, What: s.what, Unit: s.unit, Median: s.median(), Min: slices.Min(s.values), Max: slices.Max(s.values)}
}

// against returns the row of the series s. The ratio of the row is the median of s
// divided by the median of other. It should be at least floor.
func (s series) against(other series, floor float64) row {
	r := s.row()
	r.Ratio, r.Of, r.Floor = s.median()/other.median(), other.id, floor
	return r
}

// againstAtMost is like against, but the ratio should be at most limit.
func (s series) againstAtMost(other series, limit float64) row {
	r := s.against(other, limit)
	r.LowerIsBetter = true
	return r
}

// atMost returns the row of the series s. The median of the series should be at most limit.
func (s series) atMost(limit float64) row {
	r := s.row()
	r.Floor, r.LowerIsBetter = limit, true
	return r
}

// named returns a copy of s with another id and description, for a second line in the
// table.
func (s series) named(suffix, what string) series {
	s.id += suffix
	s.what = what
	return s
}

func writeJSON(path string, rows []row) error {
	encoded, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(encoded, '\n'), 0o644)
}
