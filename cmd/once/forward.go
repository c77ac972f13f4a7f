package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/operate/health"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

const (
	topologyPubSub = "pubsub" // a topic is a fanout exchange
	topologyQueue  = "queue"  // a topic is a queue
)

type brokerOptions struct {
	topology, namePrefix string
}

func (a *app) addBrokerFlags(flags *pflag.FlagSet, to *brokerOptions) {
	to.topology = topologyPubSub
	flags.StringVar(&a.settings.amqpURL, "amqp-url", "", "RabbitMQ: amqp://user@host:5672/vhost, or amqps://")
	flags.Var(oneOf(&to.topology, topologyPubSub, topologyQueue), "topology", "a topic is a fanout exchange (pubsub) or a queue (queue)")
	flags.StringVar(&to.namePrefix, "amqp-prefix", "", "put this before a topic to get the name of its exchange or queue")
	fromEnv(flags, "amqp-url", "topology", "amqp-prefix")
}

func (a *app) broker(o brokerOptions) (amqp.Config, error) {
	if _, err := amqp091.ParseURI(a.settings.amqpURL); err != nil { // err may quote the password
		return amqp.Config{}, usagef("the broker's address (not shown, it may contain a password) must be amqp:// or amqps://user@host/vhost")
	}
	name := func(topic string) string { return o.namePrefix + topic }
	var config amqp.Config
	if o.topology == topologyQueue {
		config = amqp.NewDurableQueueConfig(a.settings.amqpURL)
		config.Publish.GenerateRoutingKey = name
	} else {
		config = amqp.NewDurablePubSubConfig(a.settings.amqpURL, nil)
		config.Exchange.GenerateName = name
	}
	config.Marshaler = rabbit.Marshaler{}
	return config, nil
}

type forwardOptions struct {
	broker              brokerOptions
	forwarder           forwarder.Config
	listen              string
	connections         int
	afterDead           string
	logFormat, logLevel string
	grace, maxLag       time.Duration
}

const forwardHelp = `Send the messages in the outbox to RabbitMQ until a signal comes. Run any number of
instances; they share the outbox. A signal stops the process within --grace: it sends
nothing more, and waits for confirms. A second signal ends it at once.

The process serves /health/live, /health/ready and /metrics (Prometheus) on --listen.

  ONCE_DSN=postgres://forwarder@db/shop ONCE_AMQP_URL=amqp://shop@rabbit/ once forward --listen :9464`

func (a *app) forwardCommand() *cobra.Command {
	o := forwardOptions{
		forwarder:   forwarder.Config{Window: 1024, MaxAttempts: 20, Lease: 15 * time.Second},
		connections: 8, grace: 25 * time.Second, maxLag: time.Minute, afterDead: "send", logFormat: "text", logLevel: "info",
	}
	cmd := &cobra.Command{
		Use:   "forward",
		Short: "Run a forwarder: send the messages in the outbox to RabbitMQ",
		Long:  forwardHelp,
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.forward(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	a.addBrokerFlags(flags, &o.broker)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:9464", "address of the health and metrics endpoints")
	flags.Var(atLeast(&o.forwarder.Window, 1), "window", "most messages without a confirm")
	flags.Var(atLeast(&o.forwarder.MaxAttempts, 1), "max-attempts", "refusals after which a message becomes a dead letter")
	flags.Var(duration(&o.forwarder.KeepSent), "keep-sent", "how long sent messages stay in the sent log (default: no log)")
	flags.Var(duration(&o.forwarder.Lease), "lease", "time without the database after which another instance takes over")
	flags.Var(oneOf(&o.afterDead, "send", "block"), "after-dead", "messages behind a dead letter of their ordering key: send or block them")
	flags.StringVar(&o.forwarder.Destination, "destination", "", "name of the broker (default: its address without credentials)")
	flags.Var(nameList(&o.forwarder.Topics), "topics", "topics with metrics of their own, separated by commas")
	flags.Var(atLeast(&o.connections, 4), "connections", "most connections to the database")
	flags.Var(duration(&o.grace), "grace", "longest time that stopping takes")
	flags.Var(duration(&o.maxLag), "max-lag", "/health/ready says degraded if a message waits for longer")
	flags.Var(oneOf(&o.logFormat, "text", "json"), "log-format", "format of the log on standard error")
	flags.Var(oneOf(&o.logLevel, "debug", "info", "warn", "error"), "log-level", "least important lines of the log")
	fromEnv(flags, "listen", "window", "max-attempts", "keep-sent", "lease", "after-dead", "destination", "topics", "connections",
		"grace", "max-lag", "log-format", "log-level")
	return cmd
}

func (a *app) forward(ctx context.Context, o forwardOptions) error {
	switch {
	case a.settings.json:
		return usagef("once forward has no --json: use --log-format json")
	case a.settings.amqpURL == "":
		return usagef("no broker: set ONCE_AMQP_URL or --amqp-url to amqp://user@host:5672/vhost")
	}
	broker, err := a.broker(o.broker)
	if err != nil {
		return err
	}
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(o.connections)
	db.SetMaxIdleConns(o.connections)
	if err := schema.Check(ctx, db.DB, db.tables); err != nil {
		return errors.Join(fmt.Errorf("%w%s", err, remedy(err)), db.Close())
	}
	metrics, err := newMetrics()
	if err != nil {
		return errors.Join(err, db.Close())
	}
	logger := watermill.NewSlogLogger(a.logger(o.logFormat, o.logLevel))
	publisher, err := rabbit.NewPublisher(broker, rabbit.PublisherConfig{
		Window: o.forwarder.Window, Logger: logger, MeterProvider: metrics.provider,
	})
	if err != nil {
		return errors.Join(usageError{err}, db.Close())
	}
	config := o.forwarder
	config.Schema, config.Logger, config.MeterProvider = db.tables, logger, metrics.provider
	if o.afterDead == "block" {
		config.AfterDead = forwarder.BlockKey
	}
	fwd, err := forwarder.New(db.DB, publisher, config)
	if err != nil {
		return errors.Join(usageError{err}, publisher.Close(), db.Close())
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return errors.Join(usagef("--listen: %w", err), publisher.Close(), db.Close())
	}
	health, err := health.New(db.DB, health.Config{
		Schema:      db.tables,
		Running:     map[string]<-chan struct{}{"forwarder": fwd.Running()},
		Brokers:     map[string]health.Pinger{"broker": publisher},
		NeedsBroker: true, // without the broker, the process has no work
		MaxLag:      o.maxLag,
		Stopping:    ctx.Done(),
	})
	if err != nil {
		return errors.Join(usageError{err}, listener.Close(), publisher.Close(), db.Close())
	}
	web := newWeb(listener, metrics.handler, health.Handler())
	logger.Info("Forwarder process starts", watermill.LogFields{
		"version": version(), "listen": listener.Addr().String(), "destination": publisher.Destination(),
	})
	err = once.Run(ctx, o.grace, web, fwd, publisher, db)
	if err == nil {
		logger.Info("Forwarder process has stopped", nil)
	}
	return errors.Join(err, metrics.close())
}

func (a *app) logger(format, level string) *slog.Logger {
	var least slog.Level
	_ = least.UnmarshalText([]byte(level)) // the flag allows valid levels only
	options := &slog.HandlerOptions{Level: least}
	out := hiding{a}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(out, options))
	}
	return slog.New(slog.NewTextHandler(out, options))
}

// hiding writes to standard error, without passwords.
type hiding struct{ app *app }

func (h hiding) Write(line []byte) (int, error) {
	if _, err := h.app.stderr.Write([]byte(h.app.hide(string(line)))); err != nil {
		return 0, err
	}
	return len(line), nil
}
