package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

func printTable(w io.Writer, rows []row) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nid\twhat\tmedian\tmin..max\tunit\tratio\tof\tasked for\t")
	for _, r := range rows {
		ratio, asked, mark := "", "", ""
		if r.Of != "" {
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Floor > 0 {
			asked, mark = ">= "+number(r.Floor), "below"
			if r.LowerIsBetter {
				asked, mark = "<= "+number(r.Floor), "above"
			}
			if !r.missed() {
				mark = ""
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s..%s\t%s\t%s\t%s\t%s\t%s\n",
			r.ID, r.What, number(r.Median), number(r.Min), number(r.Max), r.Unit, ratio, r.Of, asked, mark)
	}
	_ = table.Flush()
}

// number formats a value with about three significant digits.
func number(value float64) string {
	switch {
	case value >= 100 || value == 0:
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.2f", value)
	}
}
