package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
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
	Limit        *consumerLimitJSON `json:"limit,omitempty"`
}

// Actor, Why and Since are left out if the limit is in the configuration.
type consumerLimitJSON struct {
	PerSecond     float64   `json:"per_second"`
	Burst         int       `json:"burst"`
	UsedPerSecond float64   `json:"used_per_second"`
	Actor         string    `json:"actor,omitempty"`
	Why           string    `json:"why,omitempty"`
	Since         time.Time `json:"since,omitzero"`
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

// Topics contains those whose pause or limit was changed.
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
	return group("consumers", "Consumers with their instances and messages: list, pause, limit, remove",
		a.consumersListCommand(), a.consumersPauseCommand(), a.consumersResumeCommand(), a.consumersLimitCommand(), a.consumersRemoveCommand())
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
	if l := c.Limit; l != nil {
		j.Limit = &consumerLimitJSON{l.PerSecond, l.Burst, math.Round(l.Used*10) / 10, l.Actor, l.Why, l.Since}
	}
	for _, i := range c.Instances {
		j.Instances = append(j.Instances, consumerInstance{i.Owner, i.Program, i.Handler, i.StartedAt, i.SeenAt, i.Running, i.Failing})
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
			text += pausedText(consumers) + limitedText(consumers)
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

func limitedText(consumers []parked.Consumer) string {
	var b strings.Builder
	for _, c := range consumers {
		l := c.Limit
		if l == nil {
			continue
		}
		by := "in its configuration"
		if l.Actor != "" {
			by = fmt.Sprintf("since %s UTC, by %s: %s", at(l.Since), plain(l.Actor), plain(l.Why))
		}
		fmt.Fprintf(&b, "\nConsumer %q of topic %q is limited to %v messages per second, burst %d, of which %.1f start, %s",
			c.Name, c.Topic, l.PerSecond, l.Burst, l.Used, by)
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

// consumersChange returns a command that changes the topics of a consumer. For each changed topic, it
// prints the text done and the topic. If no topic was changed, it prints done alone.
func (a *app) consumersChange(
	use string, needsWhy bool,
	change func(ctx context.Context, m *parked.Messages, who operate.Act, name, topic string) (topics []string, done string, err error),
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
			topics, done, err := change(ctx, m, who, args[0], topic)
			if err != nil {
				return err
			}
			text := done + "\n"
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
	cmd := a.consumersChange("pause", true,
		func(ctx context.Context, m *parked.Messages, who operate.Act, name, topic string) ([]string, string, error) {
			topics, err := m.PauseConsumer(ctx, who, name, topic)
			if len(topics) == 0 {
				return nil, fmt.Sprintf("Consumer %q was already paused.", name), err
			}
			return topics, "Paused", err
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
	cmd := a.consumersChange("resume", false,
		func(ctx context.Context, m *parked.Messages, who operate.Act, name, topic string) ([]string, string, error) {
			topics, err := m.ResumeConsumer(ctx, who, name, topic)
			if errors.Is(err, parked.ErrNotPaused) {
				err = fmt.Errorf("%w (once consumers list shows the pauses)", err)
			}
			return topics, "Resumed", err
		})
	cmd.Short = "Let a paused consumer handle its messages again"
	return cmd
}

func (a *app) consumersLimitCommand() *cobra.Command {
	var (
		limit parked.Limit
		none  bool
	)
	change := func(ctx context.Context, m *parked.Messages, who operate.Act, name, topic string) ([]string, string, error) {
		topics, err := m.LimitConsumer(ctx, who, name, topic, limit)
		done := fmt.Sprintf("Limited to %v per second:", limit.PerSecond)
		switch {
		case none && len(topics) == 0:
			done = "No limit was set for consumer " + strconv.Quote(name) + "."
		case none:
			done = "Removed the limit of"
		}
		return topics, done, err
	}
	cmd := a.consumersChange("limit", true, change)
	cmd.Short = "Limit how many messages of a consumer start per second; needs --why"
	cmd.Long = `Limit how many messages of a consumer start per second, in all its instances together,
for example because a service that its handler calls accepts only so many calls. Every
instance uses the new limit within a second. It replaces the one in the configuration,
until it is removed with --none. Messages that wait cost no attempt.

  once consumers limit payments --per-second 50 --burst 10 --why "as the provider asks"
  once consumers limit payments --none --why "the provider is fast again"`
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		set := cmd.Flags().Changed("per-second")
		switch {
		case none && (set || cmd.Flags().Changed("burst")):
			return usagef("--none removes the limit: leave --per-second and --burst out")
		case !none && !set:
			return usagef("%s needs --per-second, or --none", cmd.CommandPath())
		case !none && limit.PerSecond == 0:
			return usagef("--per-second is 0: to stop the consumer, pause it; to remove its limit, use --none")
		}
		return check(cmd, args)
	}
	cmd.Flags().Float64Var(&limit.PerSecond, "per-second", 0, "how many messages may start per second, such as 50 or 0.2")
	cmd.Flags().IntVar(&limit.Burst, "burst", 0, "how many more may start at once (default: the messages of a second)")
	cmd.Flags().BoolVar(&none, "none", false, "remove the limit that was set; that of the configuration applies, if any")
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
