package dedup

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// The first hundred transactions are checked, then every 32nd. After a handler has ended
// its transaction, all are checked.
func TestSampleOfCheckedTransactions(t *testing.T) {
	t.Parallel()
	s := &dialect.Sample{}
	for n := 1; n <= 256; n++ {
		if got, want := s.Next(), n <= 100 || n%32 == 0; got != want {
			t.Errorf("transaction %d is checked: %t", n, got)
		}
	}
	s.All()
	if !s.Next() {
		t.Error("a transaction is not checked after one that its handler ended")
	}
}

func TestKeysAreRememberedLongerThanTheirDuplicatesArrive(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for want, c := range map[time.Duration]Config{
		30 * day:                {Retention: 30 * day, MaxDuplicateAge: 7 * day},
		7*day + time.Hour:       {Retention: 7 * day, MaxDuplicateAge: 7 * day},
		7*day + 61*time.Minute:  {Retention: 7*day + 61*time.Minute, MaxDuplicateAge: 7 * day},
		8*day + 1*time.Hour + 1: {Retention: 8 * day, MaxDuplicateAge: 8*day + 1},
	} {
		if got := c.keyRetention(); got != want {
			t.Errorf("%+v: %v, want %v", c, got, want)
		}
	}
}

func TestIDsOfUpTo255BytesAreUsable(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		strings.Repeat("x", 255): "",
		strings.Repeat("x", 256): "it is 256 bytes long, more than 255",
		"":                       "it is empty",
		"a\xff":                  "it is not valid UTF-8",
		"a\x00":                  "it contains NUL",
	} {
		if got := unusable(id); got != want {
			t.Errorf("%.10q: %q, want %q", id, got, want)
		}
	}
}

// once.Plugin compares the values that Part returns with the values of other packages.
func TestPartDescribesTheInbox(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	config := Config{
		Schema: schema.Config{Dialect: schema.SQLite}, Consumer: "payments", Retention: 9 * 24 * time.Hour,
		Batch: Batch{Size: 10, Concurrency: 3},
	}
	inbox, err := New(db.DB, config)
	kit.OK(t, err)
	p := inbox.Part()
	if p.Name != "dedup" || p.DB != db.DB || p.Schema.Dialect != schema.SQLite || p.Logger == nil || p.Consumer != "payments" || p.Outbox ||
		p.Retention != 9*24*time.Hour || p.BatchSize != 10 || p.BatchInFlight != 40 || p.Run == nil ||
		!slices.Equal(p.Tables, []string{"inbox", "parked", "replays"}) {
		t.Errorf("%+v", p)
	}
	config.SweptElsewhere = true
	config.Outbox = func(*sql.Tx) message.Publisher { return nil }
	inbox, err = New(db.DB, config)
	kit.OK(t, err)
	if p := inbox.Part(); p.Run != nil || !p.Outbox {
		t.Errorf("%+v", p)
	}
}

// lags records the observations of all histograms.
type lags struct {
	noop.MeterProvider

	seen []float64
}

func (l *lags) Meter(string, ...metric.MeterOption) metric.Meter { return lagMeter{lags: l} }

type lagMeter struct {
	noop.Meter

	lags *lags
}

func (m lagMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return lagHistogram{lags: m.lags}, nil
}

type lagHistogram struct {
	noop.Float64Histogram

	lags *lags
}

func (lagHistogram) Enabled(context.Context) bool { return true }

func (h lagHistogram) Record(_ context.Context, value float64, _ ...metric.RecordOption) {
	h.lags.seen = append(h.lags.seen, value)
}

// The lag is recorded only if the sender's clock is at most a minute ahead, and the
// message has waited for less than a year.
func TestLagThatCannotBeTrueIsNotMeasured(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(time.Now().UnixMilli())
	for lag, want := range map[time.Duration][]float64{
		time.Second:                         {1},
		-time.Second:                        {0},
		-time.Minute + time.Millisecond:     {0},
		-time.Minute:                        nil,
		365*24*time.Hour - time.Second:      {365*24*3600 - 1},
		365 * 24 * time.Hour:                nil,
		365*24*time.Hour + time.Millisecond: nil,
	} {
		l := &lags{}
		c := &call{instruments: &instruments{lag: telemetry.NewMeter(l, "dedup").Delays("once.dedup.lag", "", telemetry.Label{
			Key: telemetry.Since, Values: []string{"created", "published"},
		})}}
		c.stamps[sincePublished] = meta.Stamp(now.Add(-lag))
		if c.recordLag(now); !slices.Equal(l.seen, want) {
			t.Errorf("a lag of %v is measured as %v, want %v", lag, l.seen, want)
		}
	}
}

// At most four messages run in separate transactions at the same time; with SQLite,
// which has one writer, only one. A waiting message stops waiting when its context
// ends. Retry must learn whether the handler was called for it in a batch before.
func TestFewMessagesOfABatchRunAlone(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		inbox, err := New(db.DB, Config{
			Schema: config, Consumer: "payments", Logger: kit.Logger(t), Batch: Batch{Size: 2, Wait: time.Hour},
		})
		kit.OK(t, err)
		entered, leave := make(chan string, 10), make(chan struct{})
		h := inbox.BatchMiddleware(func(msg *message.Message) ([]*message.Message, error) {
			if strings.HasPrefix(msg.UUID, "fails") {
				return nil, errors.New(msg.UUID)
			}
			entered <- msg.UUID
			<-leave
			return nil, nil
		})
		deliver := func(ctx context.Context, id string) <-chan error {
			ended, msg := make(chan error, 1), message.NewMessage(id, nil)
			msg.SetContext(parkedrows.WithTried(ctx, msg, !strings.HasPrefix(id, "fails"))) // the others failed before
			go func() {
				_, err := h(msg)
				ended <- err
			}()
			return ended
		}
		most := 4
		if db.Dialect == "sqlite" {
			most = 1
		}
		var all []<-chan error
		for n := range most {
			all = append(all, deliver(t.Context(), string(rune('a'+n))))
			<-entered
		}
		ctx, cancel := context.WithCancel(t.Context())
		waiting := deliver(ctx, "waits")
		cancel()
		if err := <-waiting; err == nil || !chain.Of(err).NotCalled || !errors.Is(err, context.Canceled) || len(entered) != 0 {
			t.Errorf("the message beyond %d: %v, %d more have begun", most, err, len(entered))
		}
		if db.Dialect == "postgres" { // with SQLite, no batch can run meanwhile
			ctx, cancel := context.WithCancel(t.Context())
			one, other := deliver(ctx, "fails 1"), deliver(ctx, "fails 2")
			var err error
			select { // one of them leaves the batch and waits, the other one ends with its own error
			case err = <-one:
				one = other
			case err = <-other:
			}
			if v := chain.Of(err); v.Kind != chain.Failed || v.NotCalled {
				t.Errorf("the message that stays in the batch: %v", err)
			}
			cancel()
			if err := <-one; chain.Of(err).Kind != chain.Undecided || chain.Of(err).NotCalled || !errors.Is(err, context.Canceled) {
				t.Errorf("the message that leaves the batch: %v", err)
			}
		}
		close(leave)
		for _, ended := range all {
			kit.Check(t, <-ended)
		}
		kit.Check(t, <-deliver(t.Context(), "later"))
	})
}

// Parked messages may be large. One transaction reads at least one message, and no more
// messages than fit into a megabyte.
func TestParkedMessagesAreReadInSmallBatches(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for _, c := range []struct {
		sizes []int64
		want  int
	}{
		{[]int64{5}, 1},
		{[]int64{2 * limit, 1}, 1},
		{[]int64{limit, 1}, 1},
		{[]int64{limit - 1, 1}, 2},
		{[]int64{limit - 1, 2}, 1},
		{[]int64{limit / 2, limit/2 - 1, 1, 1}, 3},
	} {
		if got := fits(c.sizes); got != c.want {
			t.Errorf("of %v the first %d are read, want %d", c.sizes, got, c.want)
		}
	}
}

// A sweep may remove the row of a message just before the row is compared with a copy
// of the message. This is no failure of the copy: its next attempt inserts the row
// again.
func TestRowThatIsGoneWhenItIsComparedIsNoFailure(t *testing.T) {
	t.Parallel()
	r, id := &batchRun{batcher: &batcher{Inbox: &Inbox{}, consumer: "payments"}}, identity{id: "m1", digest: [32]byte{1}}
	if err := r.compareDigest(id, nil); !errors.Is(err, dialect.ErrUnchanged) || !chain.Of(err).NotCalled {
		t.Errorf("got %v", err)
	}
	if err := r.compareDigest(id, id.digest[:]); !errors.Is(err, errAlreadyHandled) {
		t.Errorf("the same content: %v", err)
	}
	if err := r.compareDigest(id, []byte("x")); !errors.Is(err, ErrCollision) {
		t.Errorf("other content: %v", err)
	}
}

// If the rows that must stay cannot be read, the day is not emptied.
func TestDayStaysIfItsRowsCannotBeKept(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	config := schema.Config{Inbox: schema.ByDay}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	inbox, err := New(db.DB, Config{Schema: config})
	kit.OK(t, err)
	d := inbox.day(&calendar{schema: "public"}, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC))
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	for _, query := range []string{inbox.sql.days.create(d), `CREATE TEMPORARY TABLE once_kept (n integer)`} {
		kit.Exec(t, tx, query)
	}
	if kept, err := inbox.emptyDay(t.Context(), tx, d); kept != 0 || err == nil || !strings.Contains(err.Error(), "once_kept") {
		t.Errorf("%d rows are kept, %v", kept, err)
	}
}

// An unreachable database affects each message of a batch. A lock affects only one
// message.
func TestOnlyAFailureOfTheWholeDatabaseEndsABatch(t *testing.T) {
	t.Parallel()
	away, lock := chain.NotCalled(errors.New("away")), chain.NotCalled(&pq.Error{Code: "55P03"})
	for _, c := range []struct {
		dialect schema.Dialect
		err     error
		want    bool
	}{
		{schema.PostgreSQL, away, true},
		{schema.PostgreSQL, lock, false},
		{schema.PostgreSQL, errors.New("failed"), false},
		{schema.SQLite, away, true},
		{schema.SQLite, lock, true},
	} {
		d, err := dialect.New(schema.Config{Dialect: c.dialect})
		kit.OK(t, err)
		b := &batcher{Inbox: &Inbox{dialect: d}}
		if got := b.databaseFailed(c.err); got != c.want {
			t.Errorf("%s: %v: %t", c.dialect, c.err, got)
		}
	}
	for _, err := range []*pq.Error{{Code: "40P01"}, {Code: "40001"}} {
		if !conflicted(err) {
			t.Errorf("%s is no conflict", err.Code)
		}
	}
	if conflicted(lock) {
		t.Error("a lock that is not free is a conflict")
	}
}
