package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"

	"github.com/watermill-once/once/schema"
)

// producer measures the transactions of one driver with a number of writers. The first kind of
// transaction has no event. The other kinds are compared with it.
type producer struct {
	driver  producerDriver
	writers int
	series  []*series // two for each kind of transaction: the rate and the processor time
	untimed bool      // the processor time of the server cannot be measured
}

const (
	perTransaction = "tx/s"
	microseconds   = "µs"
)

// producers measures how much an event slows down its transaction. No forwarder runs during the
// measurement.
func (b *bench) producers(ctx context.Context) ([]row, error) {
	var all []*producer
	var measurements []measurement
	for _, writers := range []int{1, 8, 32} {
		for _, driver := range producerDrivers() {
			p := newProducer(driver, writers)
			all = append(all, p)
			measurements = append(measurements, measurement{p.series, func(ctx context.Context) ([]float64, error) {
				return b.produced(ctx, p)
			}})
		}
	}
	if err := b.turns(ctx, measurements...); err != nil {
		return nil, err
	}
	var rows []row
	for _, p := range all {
		rows = append(rows, p.rows()...)
	}
	return rows, nil
}

func newProducer(driver producerDriver, writers int) *producer {
	p := &producer{driver: driver, writers: writers}
	for _, kind := range driver.kinds {
		id := fmt.Sprintf("producer-%s-%s-%d", driver.name, kind.name, writers)
		p.series = append(p.series,
			&series{id: id, what: fmt.Sprintf("%s; %s, writers: %d", kind.what, driver.what, writers), unit: perTransaction},
			&series{id: id + "-cpu", what: "processor time of PostgreSQL and Go for it", unit: microseconds})
	}
	return p
}

// rows returns a row with the rate of each kind of transaction. For each kind except the
// first, it also returns a row with the processor time that a transaction of this kind
// uses more than a transaction of the first kind.
func (p *producer) rows() []row {
	bare, bareTime := *p.series[0], *p.series[1]
	rows := []row{bare.row()}
	for n, kind := range p.driver.kinds[1:] {
		rate, used := *p.series[2*n+2], *p.series[2*n+3]
		rows = append(rows, rate.against(bare, kind.floors[p.writers]))
		if !p.untimed {
			for i := range used.values {
				used.values[i] -= bareTime.values[i]
			}
			rows = append(rows, used.named("", "the same, less that of the transaction without an event").atMost(kind.limits[p.writers]))
		}
		if kind.name == stockKind { // ours is the kind before it
			ours := p.series[2*n].named("-stock", "ours against stock Watermill's, same driver")
			rows = append(rows, ours.against(rate, 1))
		}
	}
	return rows
}

const createOrders = `
	CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, total bigint NOT NULL)`

// turnsOfKinds is the number of slices into which a run is divided. Every kind of
// transaction runs in each slice, so that a disturbance of the machine affects all kinds.
const turnsOfKinds = 8

func (b *bench) produced(ctx context.Context, p *producer) (values []float64, err error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return nil, err
	}
	defer closing(db, &err)
	if err := db.prepareProducers(ctx); err != nil {
		return nil, err
	}
	pools, err := p.driver.open(ctx, db.dsn)
	if err != nil {
		return nil, err
	}
	defer pools.Close()
	totals := make([]produced, len(p.driver.kinds))
	for slice := range turnsOfKinds + 1 {
		for n, kind := range p.driver.kinds {
			one, err := b.slice(ctx, db, p, func(ctx context.Context) error { return kind.once(ctx, pools) })
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind.name, err)
			}
			if slice > 0 { // the first slice is not counted, because it opens the connections
				totals[n].add(one)
			}
		}
	}
	for _, t := range totals {
		each := (t.used.postgres + t.used.own) / time.Duration(max(t.committed, 1))
		values = append(values, rate(int(t.committed), t.took), float64(each)/float64(time.Microsecond))
	}
	return values, nil
}

// produced contains the number of transactions that the writers have committed, the
// duration, and the processor time that was used.
type produced struct {
	committed int64
	took      time.Duration
	used      processor
}

func (p *produced) add(q produced) {
	p.committed += q.committed
	p.took += q.took
	p.used = p.used.plus(q.used)
}

func (b *bench) slice(ctx context.Context, db *database, p *producer, once func(ctx context.Context) error) (did produced, err error) {
	before, timed, err := db.processor(ctx)
	if err != nil {
		return did, err
	}
	start := time.Now()
	if did.committed, err = produce(ctx, p.writers, b.producing/turnsOfKinds, once); err != nil {
		return did, err
	}
	did.took = time.Since(start)
	after, _, err := db.processor(ctx)
	did.used, p.untimed = after.minus(before), p.untimed || !timed
	return did, err
}

func (d *database) prepareProducers(ctx context.Context) error {
	if err := schema.Up(ctx, d.DB, schema.Config{}); err != nil {
		return err
	}
	stock, err := wsql.NewPublisher(d.DB, wsql.PublisherConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if err := stock.Publish(stockTopic, newMessage()); err != nil { // creates the publisher's table
		return err
	}
	_, err = d.ExecContext(ctx, createOrders)
	return err
}

// produce runs the given number of writers during a period. Each writer calls
// once repeatedly. produce returns the number of calls that succeeded.
func produce(ctx context.Context, writers int, period time.Duration, once func(ctx context.Context) error) (int64, error) {
	var (
		working   sync.WaitGroup
		committed atomic.Int64
	)
	errs := make([]error, writers)
	end := time.Now().Add(period)
	for n := range writers {
		working.Go(func() {
			for time.Now().Before(end) && errs[n] == nil {
				if errs[n] = once(ctx); errs[n] == nil {
					committed.Add(1)
				}
			}
		})
	}
	working.Wait()
	return committed.Load(), errors.Join(errs...)
}

func findPgbench() (path string, found bool) {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path, true
	}
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench") // an error would mean that the pattern is invalid
	if len(installed) == 0 {
		return "", false
	}
	return slices.Max(installed), true
}

// pgbenchScript runs the statements that once.Consumer runs for a message, each in its
// own round trip. Its ids increase, like the ids of messages.
const pgbenchScript = `
\set n :n + 1
BEGIN;
INSERT INTO once_inbox (message_id, consumer, digest)
	VALUES (lpad((:n * 100 + :client_id)::text, 36, '0'), 'bench', sha256('payload'))
	ON CONFLICT (message_id, consumer) DO NOTHING;
INSERT INTO orders (customer, total) VALUES ('a customer''s name', 4200);
COMMIT;
`

var (
	pgbenchCount = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	pgbenchRate  = regexp.MustCompile(`tps = ([0-9.]+) \(without initial connection time\)`)
)

// pgbench measures how many transactions per second the database commits with the statements of
// pgbenchScript.
func (b *bench) pgbench(ctx context.Context, program string) (_ float64, err error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return 0, err
	}
	defer closing(db, &err)
	if err := schema.Up(ctx, db.DB, schema.Config{}); err != nil {
		return 0, err
	}
	for _, statement := range []string{createOrders, `CHECKPOINT`} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	script, err := os.CreateTemp("", "once-bench-*.sql")
	if err != nil {
		return 0, err
	}
	defer os.Remove(script.Name())
	_, err = script.WriteString(pgbenchScript)
	if err := errors.Join(err, script.Close()); err != nil {
		return 0, err
	}
	seconds := max(1, int(b.producing/time.Second))
	command := exec.CommandContext(ctx, program, "--no-vacuum", "--file", script.Name(), "--define", "n=0",
		"--client", strconv.Itoa(inFlight), "--jobs", "2", "--time", strconv.Itoa(seconds), db.dsn)
	out, err := command.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w: %s", err, out)
	}
	count, tps := pgbenchCount.FindSubmatch(out), pgbenchRate.FindSubmatch(out)
	if count == nil || tps == nil {
		return 0, fmt.Errorf("the output of pgbench contains no number of transactions: %s", out)
	}
	var orders, inbox int
	err = db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM once_inbox)`).Scan(&orders, &inbox)
	if err != nil {
		return 0, err
	}
	if done, _ := strconv.Atoi(string(count[1])); orders != done || inbox != done {
		return 0, fmt.Errorf("pgbench did %d transactions, but there are %d orders and %d ids", done, orders, inbox)
	}
	return strconv.ParseFloat(string(tps[1]), 64)
}
