package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/reconcile"
)

// reconcileFileJSON is the JSON output of "once reconcile ask" and "once reconcile
// answer".
type reconcileFileJSON struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

func (a *app) reconcileAskCommand() *cobra.Command {
	var (
		config reconcile.SenderConfig
		file   string
	)
	cmd := &cobra.Command{
		Use:   "ask",
		Short: "Write the question of the sender's side",
		Args:  noArgs,
		RunE: checked(func() error { return needsTopics(&config) },
			a.withTables(func(ctx context.Context, db database, _ []string) error {
				config.Schema = db.tables
				s, err := reconcile.NewSender(db.DB, config)
				if err != nil {
					return usageError{err}
				}
				f, err := s.Question(ctx)
				if err != nil {
					return err
				}
				return a.writeStep(f, file)
			})),
	}
	addSenderFlags(cmd.Flags(), &config)
	cmd.Flags().StringVar(&file, "file", "", "file to write (default: standard output)")
	return cmd
}

func (a *app) reconcileAnswerCommand() *cobra.Command {
	var (
		config reconcile.ReceiverConfig
		file   string
	)
	cmd := &cobra.Command{
		Use:   "answer FILE",
		Short: "Write the answer of the consumers' side to a question",
		Args:  oneFile,
		RunE: checked(func() error { return needsConsumers(&config) },
			a.withTables(func(ctx context.Context, db database, args []string) error {
				config.Schema = db.tables
				r, err := reconcile.NewReceiver(db.DB, config)
				if err != nil {
					return usageError{err}
				}
				question, err := a.readStep(args[0])
				if err != nil {
					return err
				}
				f, err := r.Answer(ctx, question)
				if err != nil {
					return err
				}
				return a.writeStep(f, file)
			})),
	}
	addReceiverFlags(cmd.Flags(), &config)
	cmd.Flags().StringVar(&file, "file", "", "file to write (default: standard output)")
	return cmd
}

func (a *app) reconcileReadCommand() *cobra.Command {
	var (
		config reconcile.SenderConfig
		file   string
		keep   bool
	)
	cmd := &cobra.Command{
		Use:   "read FILE",
		Short: "Read an answer at the sender's side, and report the differences",
		Long: `Read an answer at the sender's side, and report the differences. If very much differs,
the next question is written to --file: answer it, and read that answer.`,
		Args: oneFile,
		RunE: checked(func() error { return needsTopics(&config) },
			a.withTables(func(ctx context.Context, db database, args []string) error {
				config.Schema = db.tables
				s, err := reconcile.NewSender(db.DB, config)
				if err != nil {
					return usageError{err}
				}
				answer, err := a.readStep(args[0])
				if err != nil {
					return err
				}
				result, err := s.Read(ctx, answer)
				if err != nil {
					return err
				}
				out := reconcileJSON{Reports: append([]reconcile.Report{}, result.Reports...)}
				if result.Question != nil {
					if file == "" {
						return errors.New("very much differs, so another question is necessary: repeat the command with --file NEXT")
					}
					if _, err := writeFile(file, result.Question); err != nil {
						return err
					}
					out.Next = file
				}
				if keep {
					if err := keepReports(ctx, db, out.Reports); err != nil {
						return err
					}
				}
				return a.printReports(out)
			})),
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&config.Topics, "topic", nil, "the topics of the question, separated by commas")
	config.LongestDelay = 24 * time.Hour
	flags.Var(duration(&config.LongestDelay), "longest-delay", "longest time from sending to handling, for ids without a time")
	flags.StringVar(&file, "file", "", "file to write the next question to, if one is necessary")
	addKeep(flags, &keep)
	return cmd
}
