package console

import (
	"context"
	"errors"
	"slices"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/pending"
)

func (c *Console) pausePending() act {
	return act{
		Name: "pause", action: PausePending, Section: "outbox", Title: "Pause a topic or a tenant", Button: "Pause",
		One: "topic or tenant", Many: "topics and tenants",
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
		One: "topic or tenant", Many: "topics and tenants",
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

func (s selection) scope() pending.Scope { return pending.Scope{Topic: s.Topic, Tenant: s.Tenant} }

// isPaused reports whether the topic or the tenant in the selection is paused.
func (c *Console) isPaused(ctx context.Context, s selection) (bool, error) {
	if (s.Topic == "") == (s.Tenant == "") {
		return false, inputError{errors.New("enter either a topic or a tenant")}
	}
	all, err := c.outbox.ListPaused(ctx)
	return slices.ContainsFunc(all, func(p pending.Pause) bool { return p.Scope == s.scope() }), err
}

func changedOne(err error) (report, error) {
	if err != nil {
		return report{Total: 1}, err
	}
	return report{Total: 1, Done: 1}, nil
}
