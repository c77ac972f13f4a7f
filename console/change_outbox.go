package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
)

func (c *Console) newActs() map[string]act {
	all := map[string]act{}
	for _, a := range []act{
		c.retryPending(), c.cancelPending(), c.pausePending(), c.resumePending(), c.replayDead(), c.discardDead(), c.releaseKey(), c.replaySent(),
		c.runParked(), c.cancelParked(), c.discardParked(), c.pauseConsumer(), c.resumeConsumer(), c.replayQuarantined(), c.discardQuarantined(),
	} {
		a.One, a.Many = cmp.Or(a.One, "message"), cmp.Or(a.Many, "messages")
		if a.filters == nil {
			a.filters = filters[a.Section]
		}
		all[a.Name] = a
	}
	return all
}

// countWindows limits the parts of the outbox, of 20,000 rows, that a preview counts.
const countWindows = 25

func (c *Console) retryPending() act {
	return act{
		Name: "retry", action: RetryPending, Section: "outbox", Title: "Retry messages of the outbox now", Button: "Retry now",
		HasRate: true, states: []string{outbox.BackingOff, outbox.Delayed},
		Warning: "Messages that back off are made due now. Their attempts are not reset. " +
			"Messages that their producer delayed are made due only if you select the state “delayed”.",
		preview: func(ctx context.Context, s selection, _ operate.Plan) (p preview, err error) {
			f := s.filter("outbox")
			f.State, f.All = cmp.Or(f.State, outbox.BackingOff), false
			for range countWindows {
				part, err := c.outbox.Count(ctx, f)
				if err != nil {
					return p, err
				}
				p.Total, p.AtLeast, f.AfterID = p.Total+part.N, part.Next > 0, part.Next
				if part.Next == 0 {
					break
				}
			}
			return p, nil
		},
		run: func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
			p.Progress = func(r operate.Report) { progress(changeReport(s, r)) }
			done, err := c.outbox.RetryMatching(ctx, who, s.filter("outbox"), p)
			return changeReport(s, done), err
		},
	}
}

func (c *Console) cancelPending() act {
	return act{
		Name: "cancel", action: CancelPending, Section: "outbox", Title: "Cancel messages of the outbox", Button: "Cancel",
		HasRate: true, Danger: true, states: pendingStates,
		Warning: "Cancelled messages are not sent. They become dead letters, which you can replay or discard. " +
			"Messages that wait for them are sent.",
		Force: "also cancel messages that a forwarder may be sending; it may still send them",
		preview: func(ctx context.Context, s selection, p operate.Plan) (preview, error) {
			dry, err := c.outbox.DryRun(ctx, s.filter("outbox"), operate.Plan{Force: p.Force})
			return preview{Total: dry.Changed, Skipped: dry.Skipped}, err
		},
		run: func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
			p.Progress = func(r operate.Report) { progress(changeReport(s, r)) }
			done, err := c.outbox.CancelMatching(ctx, who, s.filter("outbox"), p)
			return changeReport(s, done), err
		},
	}
}

// These changes do not count their messages before.
func changeReport(s selection, r operate.Report) report {
	return report{Total: s.Limit, Done: r.Changed, Skipped: slices.Concat(r.Skipped, r.Handled)}
}

func (c *Console) replayDead() act {
	return act{
		Name: "replay-dead", action: ReplayDead, Section: "dead", Title: "Replay dead letters", Button: "Replay",
		HasRate: true, reasons: deadReasons,
		Warning: "The letters go back into the outbox, and forwarders send them. Fix the cause first, or they become dead letters again.",
		Force:   "also replay letters that a consumer could handle a second time, or that the outbox would refuse",
		preview: func(ctx context.Context, s selection, p operate.Plan) (preview, error) {
			groups, err := c.letters.DryRun(ctx, s.filter("dead"), p)
			return previewOf(groups, true), err
		},
		run: func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
			p.Progress = func(r operate.Report) { progress(outboxReport(r)) }
			done, err := c.letters.ReplayMatching(ctx, who, s.filter("dead"), p)
			return outboxReport(done.Report), err
		},
	}
}

func outboxReport(r operate.Report) report {
	return report{Total: r.Total, Done: r.Changed, Skipped: r.Skipped}
}

// The groups include messages that need force, which subtractSkipped subtracts.
func previewOf(groups []operate.Group, subtractSkipped bool) preview {
	p := preview{Groups: groups}
	for _, g := range groups {
		p.Total += g.Count
		if subtractSkipped {
			p.Total -= len(g.Skipped)
			p.Skipped = append(p.Skipped, g.Skipped...)
		}
	}
	return p
}

func (c *Console) discardDead() act {
	return act{
		Name: "discard-dead", action: DiscardDead, Section: "dead", Title: "Discard dead letters", Button: "Discard for good",
		Danger: true, reasons: deadReasons,
		Warning: "The letters are deleted for good, with their messages. You cannot undo this.",
		preview: func(ctx context.Context, s selection, _ operate.Plan) (preview, error) {
			groups, err := c.letters.DryRun(ctx, s.filter("dead"), operate.Plan{Force: true})
			return previewOf(groups, false), err
		},
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			n, err := c.letters.DiscardMatching(ctx, who, s.filter("dead"))
			return report{Total: s.Limit, Done: n}, err
		},
	}
}

func (c *Console) releaseKey() act {
	return act{
		Name: "release", action: ReleaseKey, Section: "dead", Title: "Release an ordering key", Button: "Release the key",
		Danger: true, filters: []string{"key"},
		Warning: "The messages that wait for the dead letter are sent. The letter stays. If you replay it later, it is sent after them: " +
			"the key loses its order.",
		preview: func(ctx context.Context, s selection, _ operate.Plan) (p preview, err error) {
			if s.Key == "" {
				return p, inputError{fmt.Errorf("key is empty: enter the ordering key")}
			}
			keys, err := c.outbox.BlockedKeys(ctx, outbox.KeyFilter{OrderingKey: s.Key})
			if len(keys) == 1 && keys[0].Dead {
				p.Total = 1
			}
			return p, err
		},
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			if err := c.letters.Release(ctx, who, s.Key); err != nil {
				return report{Total: 1}, err
			}
			return report{Total: 1, Done: 1}, nil
		},
	}
}

func (c *Console) replaySent() act {
	return act{
		Name: "replay-sent", action: ReplaySent, Section: "sent", Title: "Send messages again", Button: "Send again",
		HasRate: true,
		Warning: "Copies with the same ids go into the outbox. A consumer whose inbox still has the id ignores its copy.",
		Force:   "also send messages that are so old that a consumer could handle them a second time",
		preview: func(ctx context.Context, s selection, p operate.Plan) (preview, error) {
			topics, err := c.sent.DryRun(ctx, s.filter("sent"), p)
			groups := make([]operate.Group, 0, len(topics))
			for _, t := range topics {
				groups = append(groups, operate.Group{
					Topics: []string{t.Topic}, Count: t.Count, FirstFailedAt: t.FirstSentAt, LastFailedAt: t.LastSentAt, Skipped: t.Skipped,
				})
			}
			return previewOf(groups, true), err
		},
		run: func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
			p.Progress = func(r operate.Report) { progress(outboxReport(r)) }
			done, err := c.sent.ReplayMatching(ctx, who, s.filter("sent"), p)
			return outboxReport(done.Report), err
		},
	}
}

func (c *Console) pausePending() act {
	return act{
		Name: "pause", action: PausePending, Section: "outbox", Title: "Pause a topic or a tenant", Button: "Pause",
		One: "topic or tenant", Many: "topics and tenants", filters: []string{"topic", "tenant"},
		Warning: "Forwarders send no messages of this topic or tenant until somebody resumes it. Later messages of the " +
			"same ordering keys wait too, whatever their topic is. A message that a forwarder has already given to the broker may still be sent.",
		preview: func(ctx context.Context, s selection, _ operate.Plan) (preview, error) {
			paused, err := c.isPaused(ctx, s)
			if err != nil || paused {
				return preview{}, err
			}
			return preview{Total: 1}, nil
		},
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			return changedOne(c.outbox.Pause(ctx, who, s.scope()))
		},
	}
}

func (c *Console) resumePending() act {
	return act{
		Name: "resume", action: ResumePending, Section: "outbox", Title: "Resume a topic or a tenant", Button: "Resume",
		One: "topic or tenant", Many: "topics and tenants", filters: []string{"topic", "tenant"},
		Warning: "Forwarders send the waiting messages of this topic or tenant in order, and then the messages that wait for them.",
		preview: func(ctx context.Context, s selection, _ operate.Plan) (preview, error) {
			paused, err := c.isPaused(ctx, s)
			if err != nil || !paused {
				return preview{}, err
			}
			return preview{Total: 1}, nil
		},
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			return changedOne(c.outbox.Resume(ctx, who, s.scope()))
		},
	}
}

func (s selection) scope() outbox.Scope { return outbox.Scope{Topic: s.Topic, Tenant: s.Tenant} }

func (c *Console) isPaused(ctx context.Context, s selection) (bool, error) {
	if (s.Topic == "") == (s.Tenant == "") {
		return false, inputError{errors.New("enter either a topic or a tenant")}
	}
	all, err := c.outbox.ListPaused(ctx)
	return slices.ContainsFunc(all, func(p outbox.Pause) bool { return p.Scope == s.scope() }), err
}

func changedOne(err error) (report, error) {
	if err != nil {
		return report{Total: 1}, err
	}
	return report{Total: 1, Done: 1}, nil
}
