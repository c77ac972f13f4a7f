package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/status"
)

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
	Paused       *consumerPauseJSON `json:"paused,omitempty"`
}

type consumerPauseJSON struct {
	Actor string    `json:"actor"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
}

type pausedConsumerJSON struct {
	Consumer string    `json:"consumer"`
	Topic    string    `json:"topic"`
	Actor    string    `json:"actor"`
	Why      string    `json:"why"`
	Since    time.Time `json:"since"`
}

// Topics contains those whose pause was changed.
type pausedTopicsJSON struct {
	Consumer string   `json:"consumer"`
	Topics   []string `json:"topics"`
}

type consumerInstance struct {
	Owner     string    `json:"owner"`
	Program   string    `json:"program"`
	Handler   string    `json:"handler,omitempty"`
	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`
	Running   bool      `json:"running"`
	Failing   bool      `json:"failing"`
}

type consumersJSON struct {
	Consumers []consumerJSON `json:"consumers"`
}

type removedJSON struct {
	Consumer string `json:"consumer"`
	Topic    string `json:"topic"`
}

func (a *app) consumersCommand() *cobra.Command {
	return group("consumers", "Consumers with their instances and messages: list, pause, remove",
		a.consumersListCommand(), a.consumersPauseCommand(), a.consumersResumeCommand(), a.consumersRemoveCommand())
}

func consumerOf(c *parked.Consumer) consumerJSON {
	j := consumerJSON{
		Consumer: c.Name, Topic: c.Topic, Registered: c.Registered, Running: c.Running, Embedded: c.Embedded, KeyOrder: c.KeyOrder,
		Program: c.Program, Handler: c.Handler, RegisteredAt: c.RegisteredAt, SeenAt: c.SeenAt, Instances: []consumerInstance{},
		CountLimit: c.CountLimit, Waiting: c.Waiting, Claimed: c.Claimed, Held: c.Held, Failing: c.Failing, Quarantined: c.Quarantined,
		LagSeconds: c.Lag.Round(time.Millisecond).Seconds(),
	}
	if c.Pause != nil {
		j.Paused = &consumerPauseJSON{c.Pause.Actor, c.Pause.Why, c.Pause.Since}
	}
	for _, i := range c.Instances {
		j.Instances = append(j.Instances, consumerInstance(i))
	}
	return j
}

func limited(n, limit int) string {
	if n >= limit {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

func runs(c *parked.Consumer) string {
	n := 0
	for _, i := range c.Instances {
		if i.Running {
			n++
		}
	}
	if c.Pause != nil {
		return fmt.Sprintf("%d, paused", n)
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
		RunE: with(a, parked.New, nil, func(ctx context.Context, m *parked.Messages, _ []string) error {
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
					switch {
					case !i.Running:
						state = "died"
					case i.Failing:
						state = "calls fail"
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
			text += pausedText(consumers)
			if instances && len(owners) > 0 {
				text += "\n" + table(a.width, []string{"CONSUMER", "TOPIC", "INSTANCE", "STATE", "STARTED (UTC)", "SEEN (UTC)", "PROGRAM"}, owners)
			}
			return a.print(out, text)
		}),
	}
	cmd.Flags().BoolVar(&instances, "instances", false, "also list the instances; --json always has them")
	return cmd
}

func pausedText(consumers []parked.Consumer) string {
	var b strings.Builder
	for _, c := range consumers {
		if p := c.Pause; p != nil {
			fmt.Fprintf(&b, "\nConsumer %q of topic %q is paused since %s UTC, by %s: %s",
				c.Name, c.Topic, at(p.Since), plain(p.Actor), plain(p.Why))
		}
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

// notePaused tells that replayed messages of paused consumers wait, or of consumer if it is not "".
func (a *app) notePaused(ctx context.Context, db database, consumer string) error {
	reader, err := status.New(db.DB, db.tables)
	if err != nil {
		return err
	}
	now, err := reader.Read(ctx)
	if err != nil {
		return err
	}
	for _, p := range now.PausedConsumers {
		if consumer == "" || consumer == p.Consumer {
			fmt.Fprintf(a.stderr, "once: consumer %q of topic %q is paused, by %s: %s. Its replayed messages wait until: once consumers resume %s\n",
				p.Consumer, p.Topic, plain(p.Actor), plain(p.Why), plain(p.Consumer))
		}
	}
	return nil
}

func (a *app) consumersChangePause(
	use, done string, needsWhy bool,
	change func(ctx context.Context, m *parked.Messages, who operate.Act, name, topic string) ([]string, error),
) *cobra.Command {
	topic := ""
	cmd := &cobra.Command{
		Use: use + " CONSUMER",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("%s needs the name of a consumer", cmd.CommandPath())
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.needWhy(needsWhy); err != nil {
			return err
		}
		who, err := a.who()
		if err != nil {
			return err
		}
		return with(a, parked.New, nil, func(ctx context.Context, m *parked.Messages, args []string) error {
			topics, err := change(ctx, m, who, args[0], topic)
			if err != nil {
				return err
			}
			text := fmt.Sprintf("Consumer %q was already paused.\n", args[0])
			for i, topic := range topics {
				if i == 0 {
					text = ""
				}
				text += fmt.Sprintf("%s consumer %q of topic %q.\n", done, args[0], topic)
			}
			return a.print(pausedTopicsJSON{args[0], append([]string{}, topics...)}, text)
		})(cmd, args)
	}
	cmd.Flags().StringVar(&topic, "topic", "", "only this topic of the consumer")
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}

func (a *app) consumersPauseCommand() *cobra.Command {
	cmd := a.consumersChangePause("pause", "Paused", true,
		func(ctx context.Context, m *parked.Messages, who operate.Act, name, topic string) ([]string, error) {
			return m.PauseConsumer(ctx, who, name, topic)
		})
	cmd.Short = "Let a consumer start no messages until it is resumed; needs --why"
	cmd.Long = `Let a consumer start no messages until it is resumed, for example because a service that
its handler calls is down. Every instance sees the pause within a second, and after a
restart too. Handlers that run finish. No attempts are counted. New messages stay in the
broker, and parked and replayed messages stay in the table.

  once consumers pause payments --why "the payment provider is down"
  once consumers resume payments`
	return cmd
}

func (a *app) consumersResumeCommand() *cobra.Command {
	cmd := a.consumersChangePause("resume", "Resumed", false,
		func(ctx context.Context, m *parked.Messages, who operate.Act, name, topic string) ([]string, error) {
			topics, err := m.ResumeConsumer(ctx, who, name, topic)
			if errors.Is(err, parked.ErrNotPaused) {
				err = fmt.Errorf("%w (once consumers list shows the pauses)", err)
			}
			return topics, err
		})
	cmd.Short = "Let a paused consumer handle its messages again"
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
		return with(a, parked.New, nil, func(ctx context.Context, m *parked.Messages, args []string) error {
			actor, err := a.actor()
			if err != nil {
				return err
			}
			err = m.RemoveConsumer(ctx, operate.Act{Actor: actor, Why: a.settings.why}, args[0], args[1], opts)
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
