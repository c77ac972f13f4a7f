package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate/reconcile"
)

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
				question, err := s.Question(ctx)
				if err != nil {
					return err
				}
				return a.writeStep(question, file)
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
				answer, err := r.Answer(ctx, question)
				if err != nil {
					return ofFile(args[0], err)
				}
				return a.writeStep(answer, file)
			})),
	}
	addReceiverFlags(cmd.Flags(), &config)
	cmd.Flags().StringVar(&file, "file", "", "file to write (default: standard output)")
	return cmd
}

func (a *app) reconcileReadCommand() *cobra.Command {
	var (
		config reconcile.SenderConfig
		keep   bool
	)
	cmd := &cobra.Command{
		Use:   "read FILE",
		Short: "Read an answer at the sender's side, and report the differences",
		Args:  oneFile,
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
				reports, err := s.Read(ctx, answer)
				if err != nil {
					return ofFile(args[0], err)
				}
				return a.report(ctx, db, keep, reports)
			})),
	}
	flags := cmd.Flags()
	flags.Var(nameList(&config.Topics), "topic", "the topics of the question, separated by commas")
	config.LongestDelay = 24 * time.Hour
	flags.Var(duration(&config.LongestDelay), "longest-delay", "longest time from sending to handling, for ids without a time")
	addKeep(flags, &keep)
	return cmd
}

func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usagef("%s needs one file", cmd.CommandPath())
	}
	return nil
}

// mostStep is more than any question or answer, see reconcile.Sender.Read.
const mostStep = 257 << 20

// readStep reads "-" from standard input.
func (a *app) readStep(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(a.stdin, mostStep))
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usageError{err}
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, mostStep))
}

func ofFile(name string, err error) error {
	if name == "-" || !errors.Is(err, reconcile.ErrFile) {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// writeStep writes "" to standard output.
func (a *app) writeStep(step []byte, name string) error {
	if name == "" {
		_, err := a.stdout.Write(step)
		return err
	}
	n, err := writeFile(name, bytes.NewReader(step))
	if err != nil {
		return err
	}
	return a.print(reconcileFileJSON{name, n}, fmt.Sprintf("Wrote %s, %d bytes.\n", name, n))
}

// writeFile renames a temporary file, so that an earlier one remains if the process dies.
func writeFile(name string, from io.WriterTo) (n int64, err error) {
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	n, err = from.WriteTo(file)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return n, err
	}
	return n, os.Rename(file.Name(), name)
}
