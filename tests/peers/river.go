package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// args contains the arguments of a River job. They have the same content as the events.
type args struct {
	ID      string `json:"id"`
	Content string `json:"content"`
}

func (args) Kind() string { return "order_placed" }

// worker handles a River job. It writes the effect and completes the job in one
// transaction, so that a job has one effect.
type worker struct {
	river.WorkerDefaults[args]

	s       *scene
	handled *handled
}

func (w *worker) Work(ctx context.Context, job *river.Job[args]) error {
	w.handled.begin(job.Args.ID)
	err := pgx.BeginFunc(ctx, w.s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, effect, job.Args.ID); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.handled.end()
	}
	return err
}

// withRiver returns a function for the field open of a peer. The function tune changes
// the configuration of River.
func withRiver(tune func(c *river.Config)) func(ctx context.Context, s *scene) (commit, work, error) {
	return func(ctx context.Context, s *scene) (commit, work, error) {
		driver := riverpgxv5.New(s.pool)
		migrator, err := rivermigrate.New(driver, nil)
		if err != nil {
			return nil, nil, err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return nil, nil, err
		}
		inserter, err := river.NewClient(driver, &river.Config{})
		if err != nil {
			return nil, nil, err
		}
		commit := func(ctx context.Context, id string) error {
			return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, business, id); err != nil {
					return err
				}
				_, err := inserter.InsertTx(ctx, tx, args{id, content}, nil)
				return err
			})
		}
		work := func(ctx context.Context, handled *handled) error {
			workers := river.NewWorkers()
			river.AddWorker(workers, &worker{s: s, handled: handled})
			config := &river.Config{
				Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
				Workers: workers,
			}
			tune(config)
			client, err := river.NewClient(driver, config)
			if err != nil {
				return err
			}
			if err := client.Start(context.WithoutCancel(ctx)); err != nil {
				return err
			}
			<-ctx.Done()
			return client.Stop(context.WithoutCancel(ctx))
		}
		return commit, work, nil
	}
}

// asDocumented keeps River's defaults, with 100 workers as in River's documentation.
func asDocumented(*river.Config) {}

// oftener makes River look for jobs more often than by default.
func oftener(c *river.Config) {
	c.FetchCooldown = river.FetchCooldownMin
	c.FetchPollInterval = 20 * time.Millisecond
}
