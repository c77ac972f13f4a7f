package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// series is one measurement and its runs.
type series struct {
	ID, What, Unit string

	values []float64
}

// row is a line of the table. Ratio is Median over the median of the row Of;
// Floor is the least that it should be, 0 if nothing is asked for.
type row struct {
	ID     string  `json:"id"`
	What   string  `json:"what"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Ratio  float64 `json:"ratio,omitempty"`
	Of     string  `json:"of,omitempty"`
	Floor  float64 `json:"floor,omitempty"`
}

func (s series) median() float64 {
	sorted := slices.Sorted(slices.Values(s.values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func (s series) row() row {
	return row{ID: s.ID, What: s.What, Unit: s.Unit, Median: s.median(), Min: slices.Min(s.values), Max: slices.Max(s.values)}
}

// against returns the row of s with its ratio to other.
func (s series) against(other series, floor float64) row {
	r := s.row()
	r.Ratio, r.Of, r.Floor = s.median()/other.median(), other.ID, floor
	return r
}

// named returns s for another line of the table.
func (s series) named(suffix, what string) series {
	s.ID += suffix
	s.What = what
	return s
}

func printTable(w io.Writer, rows []row) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nwhat\tmedian\tmin..max\tunit\tratio\tof\tfloor\t")
	for _, r := range rows {
		ratio, floor, mark := "", "", ""
		if r.Of != "" {
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Floor > 0 {
			floor = fmt.Sprintf("%.2f", r.Floor)
			if r.Ratio < r.Floor {
				mark = "below"
			}
		}
		fmt.Fprintf(table, "%s\t%.0f\t%.0f..%.0f\t%s\t%s\t%s\t%s\t%s\n", r.What, r.Median, r.Min, r.Max, r.Unit, ratio, r.Of, floor, mark)
	}
	_ = table.Flush()
}
