package roles

import (
	"strings"

	"github.com/watermill-once/once/audit"
	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/reconcile"
	"github.com/watermill-once/once/sequence"
	"github.com/watermill-once/once/status"
)

// watchLists reads the lists without contents, and the data of a status screen.
func (p *part) watchLists() {
	p.Helper()
	ctx := p.Context()
	reader, err := status.New(p.db, status.Config{Schema: tables})
	p.must(err)
	_, err = reader.Read(ctx)
	p.must(err)
	_, err = reader.Slots(ctx)
	p.must(err)
	messages, err := pending.New(p.db, pending.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	page, err := messages.List(ctx, pending.Filter{})
	p.must(err)
	_, err = messages.BlockedKeys(ctx, pending.KeyFilter{})
	p.must(err)
	letters, err := deadletter.New(p.db, deadletter.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	dead, err := letters.List(ctx, deadletter.Filter{})
	p.must(err)
	log, err := deadletter.NewSentLog(p.db, deadletter.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	sent, err := log.List(ctx, deadletter.Filter{})
	p.must(err)
	_, err = log.SettledID(ctx)
	p.must(err)
	quarantine, err := poison.New(p.db, poison.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	listed, err := quarantine.List(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Groups(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Replayed(ctx, poison.Filter{})
	p.must(err)
	acts, err := audit.New(p.db, audit.Config{Schema: tables})
	p.must(err)
	acted, err := acts.List(ctx, audit.Filter{})
	p.must(err)
	versions, err := sequence.NewVersions(p.db, sequence.VersionsConfig{Schema: tables})
	p.must(err)
	applied, err := versions.List(ctx, sequence.VersionFilter{}, sequence.Version{})
	p.must(err)
	_, err = versions.Waiting(ctx, sequence.VersionFilter{}, sequence.Waiting{})
	p.must(err)
	if len(page.Messages) == 0 || len(dead.Letters) == 0 || len(sent.Messages) == 0 ||
		len(listed.Entries) == 0 || len(acted.Records) == 0 || len(applied) == 0 {
		p.Errorf("%d pending, %d dead, %d sent, %d in quarantine, %d acts, %d versions: an empty list proves little",
			len(page.Messages), len(dead.Letters), len(sent.Messages), len(listed.Entries), len(acted.Records), len(applied))
	}
}

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
	messages, err := pending.New(p.db, pending.Config{Schema: tables})
	p.must(err)
	_, err = messages.Count(ctx, pending.Filter{State: pending.BackingOff})
	p.must(err)
	_, err = messages.Backlog(ctx, pending.Filter{Topic: "fine"})
	p.must(err)
	waiting, err := parked.New(p.db, parked.Config{Schema: tables})
	p.must(err)
	_, err = waiting.Count(ctx, parked.Filter{Consumer: "plain", State: parked.Waiting})
	p.must(err)
	withoutContent, err := parked.New(p.db, parked.Config{Schema: tables, WithoutContent: true})
	p.must(err)
	_, err = withoutContent.List(ctx, parked.Filter{Consumer: "plain"})
	p.must(err)
	_, err = waiting.Consumers(ctx)
	p.must(err)
	_, err = reconcile.Ledger(ctx, p.db, reconcile.LedgerConfig{Schema: tables, By: []reconcile.Column{reconcile.ByDay, reconcile.ByTopic}})
	p.must(err)
	p.reconcile()
	quarantine, err := poison.New(p.db, poison.Config{Schema: tables})
	p.must(err)
	_, err = quarantine.Count(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Replays(ctx, 0)
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
