package roles

import (
	"strings"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/audit"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/sequence"
)

// watchLists reads the lists without contents, and the data of a status screen.
func (p *part) watchLists() {
	p.Helper()
	ctx := p.Context()
	reader, err := status.New(p.db, tables)
	p.must(err)
	_, err = reader.Read(ctx)
	p.must(err)
	_, err = reader.Slots(ctx)
	p.must(err)
	messages, err := outbox.New(p.db, operate.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	page, err := messages.List(ctx, operate.Filter{})
	p.must(err)
	_, err = messages.BlockedKeys(ctx, outbox.KeyFilter{})
	p.must(err)
	letters, err := dead.New(p.db, operate.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	found, err := letters.List(ctx, operate.Filter{})
	p.must(err)
	log, err := dead.NewSentLog(p.db, operate.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	sent, err := log.List(ctx, operate.Filter{})
	p.must(err)
	_, err = log.SettledID(ctx)
	p.must(err)
	entries, err := quarantine.New(p.db, operate.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	listed, err := entries.List(ctx, operate.Filter{})
	p.must(err)
	_, err = entries.Groups(ctx, operate.Filter{})
	p.must(err)
	_, err = entries.Replayed(ctx, operate.Filter{})
	p.must(err)
	acts, err := audit.New(p.db, tables)
	p.must(err)
	acted, err := acts.List(ctx, audit.Filter{})
	p.must(err)
	versions, err := sequence.NewVersions(p.db, sequence.VersionsConfig{Schema: tables})
	p.must(err)
	applied, err := versions.List(ctx, sequence.VersionFilter{}, sequence.Version{})
	p.must(err)
	_, err = versions.Waiting(ctx, sequence.VersionFilter{}, sequence.Waiting{})
	p.must(err)
	if len(page.Rows) == 0 || len(found.Rows) == 0 || len(sent.Rows) == 0 ||
		len(listed.Rows) == 0 || len(acted.Rows) == 0 || len(applied) == 0 {
		p.Errorf("%d pending, %d dead, %d sent, %d in quarantine, %d acts, %d versions: an empty list proves little",
			len(page.Rows), len(found.Rows), len(sent.Rows), len(listed.Rows), len(acted.Rows), len(applied))
	}
}

// watch reads everything except contents, with the functions of the library and
// with the queries of a dashboard.
func (p *part) watch() {
	p.Helper()
	ctx := p.Context()
	letters, err := dead.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	_, err = letters.Count(ctx, operate.Filter{Topic: "unacceptable"})
	p.must(err)
	messages, err := outbox.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	_, err = messages.Count(ctx, operate.Filter{State: outbox.BackingOff})
	p.must(err)
	_, err = messages.Backlog(ctx, operate.Filter{Topic: "fine"})
	p.must(err)
	waiting, err := parked.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	_, err = waiting.Count(ctx, operate.Filter{Consumer: "plain", State: parked.Waiting})
	p.must(err)
	withoutContent, err := parked.New(p.db, operate.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	_, err = withoutContent.List(ctx, operate.Filter{Consumer: "plain"})
	p.must(err)
	_, err = waiting.Consumers(ctx)
	p.must(err)
	_, err = reconcile.Ledger(ctx, p.db, reconcile.LedgerConfig{Schema: tables, By: []string{"day", "topic"}})
	p.must(err)
	p.reconcile()
	entries, err := quarantine.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	_, err = entries.Count(ctx, operate.Filter{})
	p.must(err)
	_, err = entries.Replays(ctx, 0)
	p.must(err)
	p.watchLists()
	for table, columns := range p.all() {
		if table == "parked_messages" { // shows contents
			continue
		}
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

// reconcile compares the sent messages with the messages that a consumer has handled. Some messages
// are missing, and some were never sent.
func (p *part) reconcile() {
	p.Helper()
	for n, ago := range []string{"50 hours", "3 hours"} {
		_, err := p.admin.ExecContext(p.Context(), `
			WITH sent AS (INSERT INTO app.mine_outbox_sent (id, position, message_id, topic, payload, metadata, created_at, sent_at)
				OVERRIDING SYSTEM VALUE VALUES ($1 - 10, 1, 'sent ' || $1, 'compared', '', '{}', now() - $2::interval, now() - $2::interval))
			INSERT INTO app.mine_inbox (message_id, consumer, processed_at, digest) VALUES ('handled ' || $1, 'compared', now() - $2::interval, '')`,
			n, ago)
		p.must(err)
	}
	s, err := reconcile.NewSender(p.db, reconcile.SenderConfig{Schema: tables, Topics: []string{"compared"}})
	p.must(err)
	r, err := reconcile.NewReceiver(p.db, reconcile.ReceiverConfig{Schema: tables, Consumers: []string{"compared"}})
	p.must(err)
	reports, err := reconcile.Compare(p.Context(), s, r)
	p.must(err)
	if len(reports) != 1 || len(reports[0].Missing) != 1 || len(reports[0].Phantoms) != 1 {
		p.Errorf("got %+v", reports)
	}
}
