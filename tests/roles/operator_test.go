package roles

import (
	"bytes"
	"errors"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/poison"
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
	p.permitted()

	var lines int
	p.must(p.db.QueryRowContext(p.Context(), `SELECT COUNT(*) FROM (SELECT at, actor, action, why FROM app.mine_audit) AS a`).Scan(&lines))
	if lines < 12 {
		p.Errorf("%d lines are in the audit", lines)
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
	entries, err := quarantine.List(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Count(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Groups(ctx, poison.Filter{})
	p.must(err)
	_, err = quarantine.Get(ctx, entries[0].ID)
	p.must(err)
	_, err = quarantine.DryRun(ctx, poison.Filter{All: true})
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
	entries, err := quarantine.List(ctx, poison.Filter{Consumer: "durable"})
	p.must(err)
	ids := map[string]int64{}
	for _, e := range entries {
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
	p.becomes(0, `SELECT COUNT(*) FROM app.mine_parked WHERE state = 'held' AND consumer = 'durable'`)
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
	_, err = quarantine.Resume(ctx, act, replay.ID, nil)
	p.must(err)
	_, err = quarantine.Replays(ctx, 0)
	p.must(err)
}

func (p *part) deadLetters() {
	p.Helper()
	ctx := p.Context()
	letters, err := deadletter.New(p.db, deadletter.Config{Schema: tables})
	p.must(err)
	dead, err := letters.List(ctx, deadletter.Filter{})
	p.must(err)
	_, err = letters.Get(ctx, dead[0].ID)
	p.must(err)
	_, err = letters.Groups(ctx, deadletter.Filter{})
	p.must(err)
	_, err = letters.DryRun(ctx, deadletter.Filter{All: true}, deadletter.Plan{})
	p.must(err)
	_, err = letters.Export(ctx, deadletter.Filter{}, io.Discard)
	p.must(err)
	p.must(letters.Release(ctx, deadletter.Act(act), "dead key"))
	replayed, err := letters.ReplayMatching(ctx, deadletter.Act(act), deadletter.Filter{OrderingKey: "dead key too"}, deadletter.Plan{})
	p.must(err)
	discarded, err := letters.DiscardMatching(ctx, deadletter.Act(act), deadletter.Filter{MessageID: "8"})
	p.must(err)
	sent, err := deadletter.NewSentLog(p.db, deadletter.Config{Schema: tables})
	p.must(err)
	_, err = sent.List(ctx, deadletter.Filter{})
	p.must(err)
	_, err = sent.DryRun(ctx, deadletter.Filter{All: true}, deadletter.Plan{})
	p.must(err)
	_, err = sent.Export(ctx, deadletter.Filter{}, io.Discard)
	p.must(err)
	resent, err := sent.ReplayMatching(ctx, deadletter.Act(act), deadletter.Filter{MessageID: "1"}, deadletter.Plan{})
	p.must(err)
	if replayed.Replayed != 1 || discarded != 1 || resent.Replayed != 1 {
		p.Errorf("replayed %+v, discarded %d, resent %+v", replayed, discarded, resent)
	}
}
