package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	writers   = 8   // concurrent transactions of producers
	perSecond = 100 // commits per second when latency is measured
	connected = 32  // connections of each pool
)

// peer is one of the systems that are compared. It commits an event or a job together
// with a transaction, and handles it.
type peer struct {
	who   string
	share int // the peer gets 1/share of the messages

	// open prepares the database, and returns two functions. The function commit commits a
	// transaction with a business row and an event or a job with the given id. The function
	// work handles events or jobs until its context ends. For each id, it calls
	// handled.begin when the worker's transaction begins, and handled.end when this
	// transaction is committed. If work is nil, only the function commit is measured.
	open func(ctx context.Context, s *scene) (commit commit, work work, err error)
}

type (
	commit func(ctx context.Context, id string) error
	work   func(ctx context.Context, handled *handled) error
)

// scene is a new database, and the broker.
type scene struct {
	dsn, url string
	pool     *pgxpool.Pool
	first    func() error // called before the pool is closed; may be nil
	close    func() error
}

// business is the statement with which the transaction of a producer writes its business
// row. effect is the statement with which the transaction of a worker writes its row.
const (
	business = `INSERT INTO orders (id) VALUES ($1)`
	effect   = `INSERT INTO effects (id) VALUES ($1)`
)

func newScene(ctx context.Context, dsn, url string) (*scene, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("PG_DSN is not a connection string") // the error of pgx may contain the password
	}
	admin, err := pgx.ConnectConfig(ctx, config.ConnConfig.Copy())
	if err != nil {
		return nil, err
	}
	name := pgx.Identifier{"once_peers_" + uuid.NewString()}.Sanitize()
	if _, err := admin.Exec(ctx, `CREATE DATABASE `+name); err != nil {
		return nil, errors.Join(err, admin.Close(ctx))
	}
	drop := func() error {
		ctx := context.WithoutCancel(ctx)
		_, err := admin.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`)
		return errors.Join(err, admin.Close(ctx))
	}
	config.ConnConfig.Database = name[1 : len(name)-1]
	config.MaxConns = connected
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	s := &scene{dsn: config.ConnConfig.ConnString(), url: url, pool: pool}
	s.close = func() error {
		var err error
		if s.first != nil {
			err = s.first()
		}
		pool.Close() // waits for all connections
		return errors.Join(err, drop())
	}
	_, err = pool.Exec(ctx, `CREATE TABLE orders (id text PRIMARY KEY); CREATE TABLE effects (id text NOT NULL)`)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// handled counts the worker's transactions, and records when each of them began.
type handled struct {
	wanted int

	mu      sync.Mutex
	began   map[string]time.Time
	ended   int
	reached chan struct{}
}

func newHandled(wanted int) *handled {
	return &handled{wanted: wanted, began: make(map[string]time.Time, wanted), reached: make(chan struct{})}
}

func (h *handled) begin(id string) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, again := h.began[id]; !again {
		h.began[id] = now
	}
}

func (h *handled) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended++; h.ended == h.wanted {
		close(h.reached)
	}
}

// row is a line of the table.
type row struct {
	what, who, unit string
	values          []float64
}

func (r row) summary() (low, middle, high float64) {
	sorted := slices.Sorted(slices.Values(r.values))
	return sorted[0], sorted[(len(sorted)-1)/2], sorted[len(sorted)-1]
}

// measure runs all peers in turns, so that a disturbance of the machine affects all of them.
func measure(ctx context.Context, dsn, url string, o options) ([]row, error) {
	var rows []row
	add := func(what, who, unit string, value float64) {
		fmt.Fprintf(os.Stderr, "%-40s %-40s %8.4g %s\n", what, who, value, unit)
		i := slices.IndexFunc(rows, func(r row) bool { return r.what == what && r.who == who })
		if i < 0 {
			i = len(rows)
			rows = append(rows, row{what: what, who: who, unit: unit})
		}
		rows[i].values = append(rows[i].values, value)
	}
	steps := []struct {
		what string
		run  func(ctx context.Context, s *scene, p peer, o options, add func(what, unit string, value float64)) error
	}{
		{"transactions, 8 writers", produce},
		{"a backlog is worked off", backlog},
		{"commit to worker, 100/s", latency},
	}
	for range o.runs {
		for _, step := range steps {
			for _, p := range peers {
				s, err := newScene(ctx, dsn, url)
				if err != nil {
					return nil, err
				}
				err = step.run(ctx, s, p, o, func(what, unit string, value float64) { add(step.what+what, p.who, unit, value) })
				if err := errors.Join(err, s.close(), ctx.Err()); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", step.what, p.who, err)
				}
			}
		}
	}
	return rows, nil
}

// produce measures committed transactions per second.
func produce(ctx context.Context, s *scene, p peer, o options, add func(what, unit string, value float64)) error {
	commit, _, err := p.open(ctx, s)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, o.lasting)
	defer cancel()
	var n atomic.Int64
	began := time.Now()
	err = each(writers, func(int) error {
		for limited.Err() == nil {
			if err := commit(ctx, uuid.NewString()); err != nil {
				return err
			}
			n.Add(1)
		}
		return nil
	})
	add("", "tx/s", float64(n.Load())/time.Since(began).Seconds())
	return err
}

// backlog measures how many events or jobs are handled per second, from the start of the
// worker until the last one is handled.
func backlog(ctx context.Context, s *scene, p peer, o options, add func(what, unit string, value float64)) error {
	commit, work, err := p.open(ctx, s)
	if err != nil || work == nil {
		return err
	}
	count := o.messages / p.share
	if err := each(writers, func(writer int) error {
		for n := writer; n < count; n += writers {
			if err := commit(ctx, uuid.NewString()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, `CHECKPOINT`); err != nil {
		return err
	}
	h := newHandled(count)
	began := time.Now()
	return during(ctx, s, work, h, func() error {
		err := h.await(ctx)
		add("", "per s", float64(count)/time.Since(began).Seconds())
		return err
	})
}

// latency measures the time from the return of the function commit until the worker's
// transaction begins.
func latency(ctx context.Context, s *scene, p peer, o options, add func(what, unit string, value float64)) error {
	commit, work, err := p.open(ctx, s)
	if err != nil || work == nil {
		return err
	}
	count := int(o.lasting.Seconds() * perSecond)
	warm := perSecond / 2 // during the first commits, connections are opened
	h := newHandled(count + warm)
	committed := make([]time.Time, count+warm)
	ids := make([]string, count+warm)
	return during(ctx, s, work, h, func() error {
		began := time.Now()
		err := each(writers, func(writer int) error {
			for n := writer; n < len(ids); n += writers {
				if err := wait(ctx, began.Add(time.Duration(n)*time.Second/perSecond)); err != nil {
					return err
				}
				ids[n] = uuid.NewString()
				if err := commit(ctx, ids[n]); err != nil {
					return err
				}
				committed[n] = time.Now()
			}
			return nil
		})
		if err := errors.Join(err, h.await(ctx)); err != nil {
			return err
		}
		var took []float64
		for n := warm; n < len(ids); n++ {
			took = append(took, max(0, float64(h.began[ids[n]].Sub(committed[n]))/float64(time.Millisecond)))
		}
		slices.Sort(took)
		add(": p50", "ms", took[len(took)/2])
		add(": p99", "ms", took[len(took)*99/100])
		return nil
	})
}

// during runs the function work until the function do returns. Then it checks that every
// event or job had one effect.
func during(ctx context.Context, s *scene, work work, h *handled, do func() error) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- work(working, h) }()
	err := do()
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	var n, distinct int
	if err := s.pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT id) FROM effects`).Scan(&n, &distinct); err != nil {
		return err
	}
	if n != h.wanted || distinct != h.wanted {
		return fmt.Errorf("%d effects of %d messages, want %d", n, distinct, h.wanted)
	}
	return nil
}

func (h *handled) await(ctx context.Context) error {
	select {
	case <-h.reached:
		return nil
	case <-time.After(5 * time.Minute):
		return errors.New("not all were handled within five minutes")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func wait(ctx context.Context, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// each calls the function do with the numbers from 0 to n-1, concurrently, and returns
// the errors.
func each(n int, do func(n int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}
