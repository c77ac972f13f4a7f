package roles

import (
	"bytes"
	"errors"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/handled"
	"github.com/watermill-once/once/journey"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/reconcile"
	"github.com/watermill-once/once/sequence"
	"github.com/watermill-once/once/status"
)

var act = poison.Act{Actor: "ann", Why: "a test"}

// operate runs every operation of an operator while the consumer runs.
func (p *part) operate() {
	p.Helper()
	quarantine, err := poison.New(p.db, poison.Config{Schema: tables})
	p.must(err)
	p.look(quarantine)
	p.change(quarantine)
	p.deadLetters()
	p.pendingMessages()
	p.parkedMessages()
	p.journeys()
	p.reports()
	p.permitted()

	var lines int
	p.must(p.db.QueryRowContext(p.Context(), `SELECT COUNT(*) FROM (SELECT at, actor, action, why FROM app.mine_audit) AS a`).Scan(&lines))
	if lines < 12 {
		p.Errorf("%d lines are in the audit", lines)
	}
}

// journeys reads the status and the versions, looks for messages in all tables, and reads envelopes
// with SQL.
func (p *part) journeys() {
	p.Helper()
	reader, err := status.New(p.db, status.Config{Schema: tables})
	p.must(err)
	_, err = reader.Read(p.Context())
	p.must(err)
	versions, err := sequence.NewVersions(p.db, sequence.VersionsConfig{Schema: tables})
	p.must(err)
	_, err = versions.List(p.Context(), sequence.VersionFilter{}, sequence.Version{})
	p.must(err)
	journeys, err := journey.New(p.db, journey.Config{Schema: tables})
	p.must(err)
	for _, q := range []journey.Query{{MessageID: "fails 3", Causes: true}, {AggregateID: "none"}, {Tenant: "none"}} {
		_, err = journeys.Find(p.Context(), q)
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
	log, err := handled.New(p.db, handled.Config{Schema: tables})
	p.must(err)
	rows, _, err := log.Export(p.Context(), handled.Filter{}, io.Discard)
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
	if err != nil {
		p.Fatal(err)
	}
}

func (p *part) look(quarantine *poison.Quarantine) {
	p.Helper()
	ctx := p.Context()
	page, err := quarantine.List(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Count(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Groups(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Get(ctx, page.Entries[0].ID)
	p.must(err)
	_, err = quarantine.DryRun(ctx, poison.Filter{All: true}, poison.Plan{})
	p.must(err)
	var file bytes.Buffer
	_, err = quarantine.Export(ctx, poison.Filter{}, &file)
	p.must(err)
	p.exec(p.admin, `DELETE FROM app.mine_parked WHERE message_id = 'fails 3' AND consumer = 'plain'`)
	imported, _, err := quarantine.Import(ctx, act, &file)
	p.must(err)
	if imported != 1 {
		p.Errorf("imported: %+v", imported)
	}
}

func (p *part) change(quarantine *poison.Quarantine) {
	p.Helper()
	ctx := p.Context()
	page, err := quarantine.List(ctx, poison.Filter{Consumer: "durable"})
	p.must(err)
	ids := map[string]int64{}
	for _, e := range page.Entries {
		ids[e.MessageID] = e.ID
	}
	p.must(quarantine.Replay(ctx, act, ids["fails 1"]))
	_, err = quarantine.Edit(ctx, act, ids["fine"], func(msg *message.Message) error {
		msg.Payload = []byte("mended")
		return nil
	}, poison.EditOptions{})
	p.must(err)
	p.must(quarantine.Discard(ctx, act, ids["fails 2"]))
	p.must(quarantine.Discard(ctx, act, ids["fails with a key"])) // and the next message of the key continues
	p.awaitNumber(0, `SELECT COUNT(*) FROM app.mine_parked WHERE state = 'held' AND consumer = 'durable'`)
	_, err = quarantine.DiscardMatching(ctx, act, poison.Filter{Consumer: "plain", MessageID: "fails 2"})
	p.must(err)

	replay, err := quarantine.ReplayMatching(ctx, act, poison.Filter{Consumer: "plain", Reason: "permanent"}, poison.Plan{Force: true})
	p.must(err)
	if replay.Resolved != 3 {
		p.Errorf("replayed: %+v", replay)
	}
	// Collisions fail again after a replay.
	replay, err = quarantine.ReplayMatching(ctx, act, poison.Filter{All: true}, poison.Plan{StopOnFailure: true})
	if !errors.Is(err, poison.ErrReplayStopped) {
		p.Fatal(err)
	}
	p.exec(p.admin, `UPDATE app.mine_replays SET state = 'running', lease_until = now()`) // as if its process had died
	_, err = quarantine.StopReplay(ctx, act, replay.ID)
	p.must(err)
	_, err = quarantine.Resume(ctx, act, replay.ID, nil)
	p.must(err)
	_, err = quarantine.Replays(ctx, 0)
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
	messages, err := pending.New(p.db, pending.Config{Schema: tables})
	p.must(err)
	page, err := messages.List(ctx, pending.Filter{Topic: "stuck"})
	p.must(err)
	_, err = messages.Get(ctx, page.Messages[0].ID)
	p.must(err)
	_, err = messages.Backlog(ctx, pending.Filter{})
	p.must(err)
	stuck := pending.Filter{State: pending.BackingOff, Topic: "stuck"}
	count, err := messages.Count(ctx, stuck)
	p.must(err)
	_, err = messages.DryRun(ctx, stuck, pending.Plan{})
	p.must(err)
	p.must(messages.Cancel(ctx, act, page.Messages[0].ID))
	p.must(messages.Retry(ctx, act, page.Messages[1].ID))
	left, err := messages.CancelMatching(ctx, act, pending.Filter{Topic: "stuck"}, pending.Plan{Force: true})
	p.must(err)
	if count.N != 1 || left.Changed != 1 {
		p.Errorf("%d back off, then %+v", count.N, left)
	}
	for _, scope := range []pending.Scope{{Topic: "nobody's"}, {Tenant: "nobody"}} {
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
	messages, err := parked.New(p.db, parked.Config{Schema: tables})
	p.must(err)
	gone := parked.Filter{Consumer: "gone"}
	page, err := messages.List(ctx, gone)
	p.must(err)
	_, err = messages.Get(ctx, page.Messages[0].ID)
	p.must(err)
	_, err = messages.DryRun(ctx, parked.Cancel, gone)
	p.must(err)
	p.must(messages.RunNow(ctx, act, page.Messages[1].ID))
	p.must(messages.Discard(ctx, act, page.Messages[2].ID))
	report, err := messages.CancelMatching(ctx, act, gone, parked.Plan{})
	p.must(err)
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
	letters, err := deadletter.New(p.db, deadletter.Config{Schema: tables})
	p.must(err)
	dead, err := letters.List(ctx, deadletter.Filter{})
	p.must(err)
	_, err = letters.Get(ctx, dead.Letters[0].ID)
	p.must(err)
	_, err = letters.Groups(ctx, deadletter.Filter{})
	p.must(err)
	_, err = letters.DryRun(ctx, deadletter.Filter{All: true}, deadletter.Plan{})
	p.must(err)
	_, err = letters.Export(ctx, deadletter.Filter{}, io.Discard)
	p.must(err)
	p.must(letters.Release(ctx, act, "dead key"))
	replayed, err := letters.ReplayMatching(ctx, act, deadletter.Filter{OrderingKey: "dead key too"}, deadletter.Plan{})
	p.must(err)
	discarded, err := letters.DiscardMatching(ctx, act, deadletter.Filter{MessageID: "8"})
	p.must(err)
	sent, err := deadletter.NewSentLog(p.db, deadletter.Config{Schema: tables})
	p.must(err)
	_, err = sent.List(ctx, deadletter.Filter{})
	p.must(err)
	_, err = sent.DryRun(ctx, deadletter.Filter{All: true}, deadletter.Plan{})
	p.must(err)
	_, err = sent.Export(ctx, deadletter.Filter{}, io.Discard)
	p.must(err)
	_, err = sent.SettledID(ctx)
	p.must(err)
	resent, err := sent.ReplayMatching(ctx, act, deadletter.Filter{MessageID: "1"}, deadletter.Plan{})
	p.must(err)
	if replayed.Replayed != 1 || discarded != 1 || resent.Replayed != 1 {
		p.Errorf("replayed %+v, discarded %d, resent %+v", replayed, discarded, resent)
	}
}
