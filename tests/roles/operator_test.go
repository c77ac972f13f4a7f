package roles

import (
	"bytes"
	"errors"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/archive"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/operate/trace"
	"github.com/watermill-once/once/sequence"
)

var act = operate.Act{Actor: "ann", Why: "a test"}

// operate runs every operation of an operator while the consumer runs.
func (p *part) operate() {
	p.Helper()
	entries, err := quarantine.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	p.look(entries)
	p.change(entries)
	p.deadLetters()
	p.pendingMessages()
	p.parkedMessages()
	p.searches()
	p.reports()
	p.permitted()

	var lines int
	p.must(p.db.QueryRowContext(p.Context(), `SELECT COUNT(*) FROM (SELECT at, actor, action, why FROM app.mine_audit) AS a`).Scan(&lines))
	if lines < 12 {
		p.Errorf("%d lines are in the audit", lines)
	}
}

// searches reads the status and the versions, looks for messages in all tables, and reads envelopes
// with SQL.
func (p *part) searches() {
	p.Helper()
	reader, err := status.New(p.db, tables)
	p.must(err)
	_, err = reader.Read(p.Context())
	p.must(err)
	versions, err := sequence.NewVersions(p.db, sequence.VersionsConfig{Schema: tables})
	p.must(err)
	_, err = versions.List(p.Context(), sequence.VersionFilter{}, sequence.Version{})
	p.must(err)
	finder, err := trace.New(p.db, tables)
	p.must(err)
	for _, q := range []trace.Query{{MessageID: "fails 3", Causes: true}, {AggregateID: "none"}, {Tenant: "none"}} {
		_, err = finder.Find(p.Context(), q)
		p.must(err)
	}
	var n int
	p.must(p.db.QueryRowContext(p.Context(), `SELECT COUNT(headers) FROM app.mine_parked_messages`).Scan(&n))
	if n == 0 {
		p.Error("the view shows no message")
	}
}

// reports exports the rows of the inbox, stores a report of a reconciliation, and reads it again.
func (p *part) reports() {
	p.Helper()
	log, err := archive.New(p.db, tables)
	p.must(err)
	rows, _, err := log.Export(p.Context(), archive.Filter{}, io.Discard)
	p.must(err)
	if rows == 0 {
		p.Error("no row of the inbox is exported")
	}
	archive, err := reconcile.NewArchive(p.db, tables)
	p.must(err)
	p.must(archive.Keep(p.Context(), reconcile.Report{Consumer: "plain"}))
	kept, err := archive.List(p.Context(), 0)
	p.must(err)
	if len(kept) != 1 || kept[0].Report.Consumer != "plain" {
		p.Errorf("kept %+v", kept)
	}
}

func (p *part) must(err error) {
	p.Helper()
	kit.OK(p, err)
}

func (p *part) look(entries *quarantine.Entries) {
	p.Helper()
	ctx := p.Context()
	page, err := entries.List(ctx, operate.Filter{})
	p.must(err)
	_, err = entries.Count(ctx, operate.Filter{})
	p.must(err)
	_, err = entries.Groups(ctx, operate.Filter{})
	p.must(err)
	_, err = entries.Get(ctx, page.Rows[0].ID)
	p.must(err)
	_, err = entries.DryRun(ctx, operate.Filter{All: true}, operate.Plan{})
	p.must(err)
	var file bytes.Buffer
	_, err = entries.Export(ctx, operate.Filter{}, &file)
	p.must(err)
	p.exec(p.admin, `DELETE FROM app.mine_parked WHERE message_id = 'fails 3' AND consumer = 'plain'`)
	imported, _, err := entries.Import(ctx, act, &file)
	p.must(err)
	if imported != 1 {
		p.Errorf("imported: %+v", imported)
	}
}

func (p *part) change(entries *quarantine.Entries) {
	p.Helper()
	ctx := p.Context()
	page, err := entries.List(ctx, operate.Filter{Consumer: "durable"})
	p.must(err)
	ids := map[string]int64{}
	for _, e := range page.Rows {
		ids[e.MessageID] = e.ID
	}
	p.must(entries.Replay(ctx, act, ids["fails 1"]))
	_, err = entries.Edit(ctx, act, ids["fine"], func(msg *message.Message) error {
		msg.Payload = []byte("mended")
		return nil
	}, quarantine.EditOptions{})
	p.must(err)
	p.must(entries.Discard(ctx, act, ids["fails 2"]))
	p.must(entries.Discard(ctx, act, ids["fails with a key"])) // and the next message of the key continues
	p.awaitNumber(0, `SELECT COUNT(*) FROM app.mine_parked WHERE state = 'held' AND consumer = 'durable'`)
	_, err = entries.DiscardMatching(ctx, act, operate.Filter{Consumer: "plain", MessageID: "fails 2"})
	p.must(err)

	replay, err := entries.ReplayMatching(ctx, act, operate.Filter{Consumer: "plain", Reason: "permanent"}, operate.Plan{Force: true})
	p.must(err)
	if replay.Resolved != 3 {
		p.Errorf("replayed: %+v", replay)
	}
	// Collisions fail again after a replay.
	replay, err = entries.ReplayMatching(ctx, act, operate.Filter{All: true}, operate.Plan{StopOnFailure: true})
	if !errors.Is(err, operate.ErrReplayStopped) {
		p.Fatal(err)
	}
	p.exec(p.admin, `UPDATE app.mine_replays SET state = 'running', lease_until = now()`) // as if its process had died
	_, err = entries.StopReplay(ctx, act, replay.ID)
	p.must(err)
	_, err = entries.Resume(ctx, act, replay.ID, nil)
	p.must(err)
	_, err = entries.Replays(ctx, 0)
	p.must(err)
}

// pendingMessages cancels a message that blocks its key, and retries and cancels the
// next message of this key. It also pauses and resumes a topic and a tenant.
func (p *part) pendingMessages() {
	p.Helper()
	ctx := p.Context()
	p.exec(p.admin, `INSERT INTO app.mine_outbox (message_id, topic, ordering_key, slot, payload, metadata, due_at, failing_since)
		VALUES ('first', 'stuck', 'stuck', 0, '', '{}', now() + interval '1 hour', now()), ('next', 'stuck', 'stuck', 0, '', '{}', NULL, NULL)`)
	p.exec(p.admin, `INSERT INTO app.mine_blocked_keys SELECT ordering_key, position, position, 'refused' FROM app.mine_outbox
		WHERE message_id = 'first'`)
	messages, err := outbox.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	page, err := messages.List(ctx, operate.Filter{Topic: "stuck"})
	p.must(err)
	_, err = messages.Get(ctx, page.Rows[0].ID)
	p.must(err)
	_, err = messages.Backlog(ctx, operate.Filter{})
	p.must(err)
	stuck := operate.Filter{State: outbox.BackingOff, Topic: "stuck"}
	count, err := messages.Count(ctx, stuck)
	p.must(err)
	_, err = messages.DryRun(ctx, stuck, operate.Plan{})
	p.must(err)
	p.must(messages.Cancel(ctx, act, page.Rows[0].ID))
	p.must(messages.Retry(ctx, act, page.Rows[1].ID))
	left, err := messages.CancelMatching(ctx, act, operate.Filter{Topic: "stuck"}, operate.Plan{Force: true})
	p.must(err)
	if count.N != 1 || left.Changed != 1 {
		p.Errorf("%d back off, then %+v", count.N, left)
	}
	for _, scope := range []outbox.Scope{{Topic: "nobody's"}, {Tenant: "nobody"}} {
		p.must(messages.Pause(ctx, act, scope))
		_, err = messages.ListPaused(ctx)
		p.must(err)
		p.must(messages.Resume(ctx, act, scope))
	}
}

// parkedMessages runs, cancels and discards messages of a consumer that is not running, and removes
// the consumer.
func (p *part) parkedMessages() {
	p.Helper()
	ctx := p.Context()
	p.exec(p.admin, `INSERT INTO app.mine_parked (consumer, topic, message_id, ordering_key, digest, envelope, state, token, due_at)
		SELECT 'gone', 'topic', 'm' || n, 'k' || n, '', '', 'waiting', CASE n WHEN 1 THEN 'ended' END,
		       now() + CASE n WHEN 2 THEN interval '1 hour' ELSE interval '-1 hour' END FROM generate_series(1, 3) AS n`)
	p.exec(p.admin, `INSERT INTO app.mine_consumers (consumer, topic, seen_at) VALUES ('gone', 'topic', now() - interval '1 hour')`)
	messages, err := parked.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	gone := operate.Filter{Consumer: "gone"}
	page, err := messages.List(ctx, gone)
	p.must(err)
	_, err = messages.Get(ctx, page.Rows[0].ID)
	p.must(err)
	_, err = messages.DryRun(ctx, parked.Cancel, gone)
	p.must(err)
	p.must(messages.RunNow(ctx, act, page.Rows[1].ID))
	p.must(messages.Discard(ctx, act, page.Rows[2].ID))
	report, err := messages.CancelMatching(ctx, act, gone, operate.Plan{})
	p.must(err)
	_, err = messages.PauseConsumer(ctx, act, "gone", "")
	p.must(err)
	_, err = messages.ResumeConsumer(ctx, act, "gone", "")
	p.must(err)
	for _, limit := range []parked.Limit{{PerSecond: 5}, {}} {
		_, err = messages.LimitConsumer(ctx, act, "gone", "", limit)
		p.must(err)
	}
	_, err = messages.Consumers(ctx)
	p.must(err)
	p.must(messages.RemoveConsumer(ctx, act, "gone", "topic", parked.RemoveOptions{Force: true}))
	if report.Changed != 2 || len(report.Abandoned) != 1 {
		p.Errorf("cancelled: %+v", report)
	}
}

func (p *part) deadLetters() {
	p.Helper()
	ctx := p.Context()
	letters, err := dead.New(p.db, operate.Config{Schema: tables})
	p.must(err)
	page, err := letters.List(ctx, operate.Filter{})
	p.must(err)
	_, err = letters.Get(ctx, page.Rows[0].ID)
	p.must(err)
	_, err = letters.Groups(ctx, operate.Filter{})
	p.must(err)
	_, err = letters.DryRun(ctx, operate.Filter{All: true}, operate.Plan{})
	p.must(err)
	_, err = letters.Export(ctx, operate.Filter{}, io.Discard)
	p.must(err)
	p.must(letters.Release(ctx, act, "dead key"))
	replayed, err := letters.ReplayMatching(ctx, act, operate.Filter{OrderingKey: "dead key too"}, operate.Plan{})
	p.must(err)
	discarded, err := letters.DiscardMatching(ctx, act, operate.Filter{MessageID: "8"})
	p.must(err)
	sent, err := dead.NewSentLog(p.db, operate.Config{Schema: tables})
	p.must(err)
	_, err = sent.List(ctx, operate.Filter{})
	p.must(err)
	_, err = sent.DryRun(ctx, operate.Filter{All: true}, operate.Plan{})
	p.must(err)
	_, err = sent.Export(ctx, operate.Filter{}, io.Discard)
	p.must(err)
	_, err = sent.SettledID(ctx)
	p.must(err)
	resent, err := sent.ReplayMatching(ctx, act, operate.Filter{MessageID: "1"}, operate.Plan{})
	p.must(err)
	if replayed.Changed != 1 || discarded != 1 || resent.Changed != 1 {
		p.Errorf("replayed %+v, discarded %d, resent %+v", replayed, discarded, resent)
	}
}
