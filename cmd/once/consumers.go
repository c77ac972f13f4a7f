package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/parked"
)

// consumerJSON describes a consumer of one topic. The counts stop at CountLimit.
type consumerJSON struct {
	Consumer     string             `json:"consumer"`
	Topic        string             `json:"topic"`
	Registered   bool               `json:"registered"`
	Running      bool               `json:"running"`
	Embedded     bool               `json:"embedded"`
	KeyOrder     bool               `json:"key_order"`
	Program      string             `json:"program,omitempty"`
	Handler      string             `json:"handler,omitempty"`
	RegisteredAt time.Time          `json:"registered_at,omitzero"`
	SeenAt       time.Time          `json:"seen_at,omitzero"`
	Instances    []consumerInstance `json:"instances"`
	CountLimit   int                `json:"count_limit"`
	Waiting      int                `json:"waiting"`
	Claimed      int                `json:"claimed"`
	Held         int                `json:"held"`
	Failing      int                `json:"failing"`
	Quarantined  int                `json:"quarantined"`
	LagSeconds   float64            `json:"lag_seconds"`
}

// consumerInstance is an instance of a consumer.
type consumerInstance struct {
	Owner     string    `json:"owner"`
	Program   string    `json:"program"`
	Handler   string    `json:"handler,omitempty"`
	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`
	Running   bool      `json:"running"`
}

// consumersJSON is the JSON output of "once consumers list".
type consumersJSON struct {
	Consumers []consumerJSON `json:"consumers"`
}

// removedJSON is the JSON output of "once consumers remove".
type removedJSON struct {
	Consumer string `json:"consumer"`
	Topic    string `json:"topic"`
}

func (a *app) consumersCommand() *cobra.Command {
	return group("consumers", "Consumers with their instances and messages: list, remove",
		a.consumersListCommand(), a.consumersRemoveCommand())
}

func consumerOf(c *parked.Consumer) consumerJSON {
	j := consumerJSON{
		Consumer: c.Name, Topic: c.Topic, Registered: c.Registered, Running: c.Running, Embedded: c.Embedded, KeyOrder: c.KeyOrder,
		Program: c.Program, Handler: c.Handler, RegisteredAt: c.RegisteredAt, SeenAt: c.SeenAt, Instances: []consumerInstance{},
		CountLimit: c.CountLimit, Waiting: c.Waiting, Claimed: c.Claimed, Held: c.Held, Failing: c.Failing, Quarantined: c.Quarantined,
		LagSeconds: c.Lag.Round(time.Millisecond).Seconds(),
	}
	for _, i := range c.Instances {
		j.Instances = append(j.Instances, consumerInstance(i))
	}
	return j
}

// limited returns a count as text, with a "+" if it has reached the limit.
func limited(n, limit int) string {
	if n >= limit {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

// runs returns the number of running instances as text.
func runs(c *parked.Consumer) string {
	n := 0
	for _, i := range c.Instances {
		if i.Running {
			n++
		}
	}
	return fmt.Sprint(n)
}

func (a *app) consumersListCommand() *cobra.Command {
	instances := false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List consumers, with the instances that run and the messages that wait",
		Long: `List consumers, with the instances that run and the messages that wait. Consumers are
known from the first subscription through retry's Subscriber on, and from their parked
messages. Counts stop at 1000, or at 100 if there are more than 100 consumers: 1000+
stands for at least so many. An instance that died counts as running for two minutes.`,
		Args: noArgs,
		RunE: a.withParked(func(ctx context.Context, m *parked.Messages, _ []string) error {
			consumers, err := m.Consumers(ctx)
			if err != nil {
				return err
			}
			out := consumersJSON{Consumers: []consumerJSON{}}
			var rows, owners [][]string
			for _, c := range consumers {
				out.Consumers = append(out.Consumers, consumerOf(&c))
				seen, lag := at(c.SeenAt), ""
				if !c.Registered {
					seen = "not registered"
				}
				if c.Lag > 0 {
					lag = age(c.Lag)
				}
				rows = append(rows, []string{
					c.Name, c.Topic, runs(&c), seen, limited(c.Waiting, c.CountLimit), limited(c.Claimed, c.CountLimit),
					limited(c.Held, c.CountLimit), limited(c.Failing, c.CountLimit), limited(c.Quarantined, c.CountLimit), lag, c.Handler, c.Program,
				})
				for _, i := range c.Instances {
					state := "runs"
					if !i.Running {
						state = "died"
					}
					owners = append(owners, []string{c.Name, c.Topic, i.Owner, state, at(i.StartedAt), at(i.SeenAt), i.Program})
				}
			}
			if len(rows) == 0 {
				return a.print(out, "No consumer is known.\n")
			}
			text := table(a.width, []string{
				"CONSUMER", "TOPIC", "RUN", "SEEN (UTC)", "WAITING", "CLAIMED", "HELD", "FAILING", "QUARANTINE", "LAG", "HANDLER", "PROGRAM",
			}, rows)
			if instances && len(owners) > 0 {
				text += "\n" + table(a.width, []string{"CONSUMER", "TOPIC", "INSTANCE", "STATE", "STARTED (UTC)", "SEEN (UTC)", "PROGRAM"}, owners)
			}
			return a.print(out, text)
		}),
	}
	cmd.Flags().BoolVar(&instances, "instances", false, "also list the instances; --json always has them")
	return cmd
}

func (a *app) consumersRemoveCommand() *cobra.Command {
	var opts parked.RemoveOptions
	cmd := &cobra.Command{
		Use:   "remove CONSUMER TOPIC",
		Short: "Remove a consumer that nobody runs any more; needs --why",
		Long: `Remove the registration of a consumer that nobody runs any more. It is refused if an
instance was seen in the last two minutes, or if messages of the consumer are waiting,
held or in quarantine.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || args[0] == "" || args[1] == "" {
				return usagef("%s needs the names of a consumer and of its topic", cmd.CommandPath())
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.needWhy(true); err != nil {
			return err
		}
		return a.withParked(func(ctx context.Context, m *parked.Messages, args []string) error {
			actor, err := a.actor()
			if err != nil {
				return err
			}
			err = m.RemoveConsumer(ctx, parked.Act{Actor: actor, Why: a.settings.why}, args[0], args[1], opts)
			if err != nil {
				return err
			}
			return a.print(removedJSON{args[0], args[1]}, fmt.Sprintf("Removed consumer %q of topic %q.\n", args[0], args[1]))
		})(cmd, args)
	}
	cmd.Flags().BoolVar(&opts.Force, "force", false, "also remove a consumer that runs or has messages; the messages stay")
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}
