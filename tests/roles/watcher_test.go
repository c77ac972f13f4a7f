package roles

import (
	"strings"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/poison"
)

// watch reads everything except contents, with the functions of the library and
// with the queries of a dashboard.
func (p *part) watch() {
	p.Helper()
	ctx := p.Context()
	f, err := forwarder.New(p.db, &broker{}, forwarder.Config{Schema: tables})
	p.must(err)
	_, err = f.Stats(ctx)
	p.must(err)
	letters, err := deadletter.New(p.db, deadletter.Config{Schema: tables})
	p.must(err)
	_, err = letters.Count(ctx, deadletter.Filter{Topic: "unacceptable"})
	p.must(err)
	quarantine, err := poison.New(p.db, poison.Config{Schema: tables})
	p.must(err)
	_, err = quarantine.Count(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Replays(ctx, 0)
	p.must(err)
	for table, columns := range p.all() {
		text := strings.Join(columns, ", ")
		for right := range strings.SplitSeq(may["watcher"][table], ", ") {
			if some, ok := strings.CutPrefix(right, "SELECT("); ok {
				text = strings.Join(strings.Fields(strings.TrimSuffix(some, ")")), ", ")
			}
		}
		_, err := p.db.ExecContext(ctx, `SELECT `+text+` FROM `+tables.Table(table))
		p.must(err)
	}
}
