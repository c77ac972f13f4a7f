package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestPlotHasAPointForEachSampleAndTheVerdict(t *testing.T) {
	r := bitten()
	for n := range 10 {
		r.Samples = append(r.Samples, sample{
			At: time.Duration(n) * time.Minute, Messages: int64(n), Goroutines: 100 - n, sizes: sizes{Parked: int64(n) * megabyte},
		})
	}
	svg := r.draw("2026-01-02, PostgreSQL <18>")
	for _, want := range []string{r.verdict(), "2026-01-02, PostgreSQL &lt;18&gt;", ">9m0s<", ">100<", ">9<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("%q is not in %s", want, svg)
		}
	}
	lines := 0
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
			for _, a := range e.Attr {
				if a.Name.Local == "points" && len(strings.Fields(a.Value)) != len(r.Samples) {
					t.Errorf("%q has not %d points", a.Value, len(r.Samples))
				}
			}
		}
	}
	drawn := 0
	for _, p := range panels() {
		drawn += len(p.lines)
	}
	if lines != drawn {
		t.Errorf("%d lines are drawn, want %d", lines, drawn)
	}
	if svg := (&report{}).draw(""); !strings.HasSuffix(svg, "</svg>\n") {
		t.Errorf("without samples: %s", svg)
	}
}
