package main

import (
	"context"
	"fmt"
	"html"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// sample contains what all processes together, and the tables, use at a time of the run.
type sample struct {
	At          time.Duration `json:"at"`
	Messages    int64         `json:"messages"`
	Memory      int64         `json:"memory"` // bytes, zero where the system does not tell
	Goroutines  int           `json:"goroutines"`
	Files       int           `json:"files"`
	Connections int           `json:"connections"`
	sizes
}

// sizes are in bytes.
type sizes struct {
	Outbox        int64 `json:"outbox"`
	OutboxIndexes int64 `json:"outbox_indexes"`
	Parked        int64 `json:"parked"`
	ParkedIndexes int64 `json:"parked_indexes"`
	Inbox         int64 `json:"inbox"` // with its indexes
}

const sampleEvery = 5 * time.Second

// watch takes samples until ctx ends. While PostgreSQL does not answer, the values of its tables are
// the latest ones.
func (w *world) watch(ctx context.Context, began time.Time) (samples []sample) {
	var last sample
	for ctx.Err() == nil {
		s := sample{At: time.Since(began), Messages: last.Messages, sizes: last.sizes}
		for _, m := range w.members {
			b := m.beat()
			s.Memory += b.Memory
			s.Goroutines += b.Goroutines
			s.Files += b.Files
		}
		for _, p := range w.proxies() {
			s.Connections += p.open()
		}
		if sizes, err := w.sizes(ctx); err == nil {
			s.sizes = sizes
			s.Messages = max(last.Messages, w.number(ctx, `SELECT COUNT(*) FROM business`))
		}
		samples = append(samples, s)
		last = s
		rest(ctx, sampleEvery)
	}
	return samples
}

func (w *world) sizes(ctx context.Context) (s sizes, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // some faults lock the tables
	defer cancel()
	err = w.db.QueryRowContext(ctx, `
		SELECT pg_table_size('once_outbox'), pg_indexes_size('once_outbox'), pg_table_size('once_parked'), pg_indexes_size('once_parked'),
		       (SELECT SUM(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'once\_inbox%' AND relkind = 'r')`).
		Scan(&s.Outbox, &s.OutboxIndexes, &s.Parked, &s.ParkedIndexes, &s.Inbox)
	return s, err
}

// line is a line of a panel.
type line struct {
	name, color string
	of          func(s sample) float64
}

const (
	blue, red, green, orange = "#1f6feb", "#cf222e", "#1a7f37", "#bc4c00"

	megabyte = 1 << 20
)

type panel struct {
	title string
	lines []line
}

func panels() []panel {
	mega := func(name, color string, of func(s sample) int64) line {
		return line{name, color, func(s sample) float64 { return float64(of(s)) / megabyte }}
	}
	return []panel{
		{"Committed messages", []line{{"messages", blue, func(s sample) float64 { return float64(s.Messages) }}}},
		{"Memory of all processes, MiB", []line{mega("resident", blue, func(s sample) int64 { return s.Memory })}},
		{"Goroutines of all processes", []line{{"goroutines", blue, func(s sample) float64 { return float64(s.Goroutines) }}}},
		{"Open files and connections of all processes", []line{
			{"open files", red, func(s sample) float64 { return float64(s.Files) }},
			{"connections", green, func(s sample) float64 { return float64(s.Connections) }},
		}},
		{"Tables, MiB", []line{
			mega("once_outbox", blue, func(s sample) int64 { return s.Outbox }),
			mega("its indexes", red, func(s sample) int64 { return s.OutboxIndexes }),
			mega("once_parked", green, func(s sample) int64 { return s.Parked }),
			mega("its indexes", orange, func(s sample) int64 { return s.ParkedIndexes }),
		}},
	}
}

// draw returns the samples of a report as an SVG. It contains about as many points as pixels.
func (r *report) draw(on string) string {
	const width, height, left, top, gap = 640, 110, 70, 80, 50
	var out strings.Builder
	all := panels()
	bottom := top + len(all)*(height+gap) - gap
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
<text x="%d" y="20">%s</text>
<text x="%d" y="38">%s</text>
`, left+width+20, bottom+30, left, html.EscapeString(r.verdict()), left, html.EscapeString(on))
	var end time.Duration
	for _, s := range r.Samples {
		end = max(end, s.At)
	}
	fmt.Fprintf(&out, `<text x="%d" y="%d">0</text><text x="%d" y="%d" text-anchor="end">%v</text>`+"\n",
		left, bottom+18, left+width, bottom+18, end.Round(time.Second))
	for i, p := range all {
		y, most := top+i*(height+gap), 1.0
		for _, l := range p.lines {
			for _, s := range r.Samples {
				most = max(most, l.of(s))
			}
		}
		fmt.Fprintf(&out, `<text x="%d" y="%d" font-weight="bold">%s</text>
<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#ccc"/>
<text x="%d" y="%d" text-anchor="end">%.0f</text>
`, left, y-8, p.title, left, y, width, height, left-6, y+10, most)
		at := left + width
		for _, l := range slices.Backward(p.lines) {
			fmt.Fprintf(&out, `<text x="%d" y="%d" fill="%s" text-anchor="end">%s</text>`+"\n", at, y-8, l.color, l.name)
			at -= 7*len(l.name) + 14
		}
		every := len(r.Samples)/width + 1
		for _, l := range p.lines {
			fmt.Fprintf(&out, `<polyline fill="none" stroke="%s" points="`, l.color)
			for n := 0; n < len(r.Samples); n += every {
				s := r.Samples[n]
				fmt.Fprintf(&out, " %.0f,%.1f", left+width*float64(s.At)/float64(max(end, 1)), float64(y)+height*(1-l.of(s)/most))
			}
			out.WriteString(`"/>` + "\n")
		}
	}
	return out.String() + "</svg>\n"
}

// plot draws the samples to a file, with the date, this machine, and what the run was on.
func (r *report) plot(name string) error {
	on := fmt.Sprintf("%s, %d cores, %s, %s", time.Now().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), r.servers)
	return os.WriteFile(name, []byte(r.draw(on)), 0o600)
}

// versions returns the names and versions of the servers.
func (w *world) versions(ctx context.Context) (string, error) {
	var postgres string
	if err := w.db.QueryRowContext(ctx, `SHOW server_version`).Scan(&postgres); err != nil {
		return "", err
	}
	conn, err := amqp.Dial(w.rabbit.URL("/"))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	kind := "classic"
	if w.quorum {
		kind = "quorum"
	}
	return fmt.Sprintf("PostgreSQL %s, RabbitMQ %v, %s queues", postgres, conn.Properties["version"], kind), nil
}
