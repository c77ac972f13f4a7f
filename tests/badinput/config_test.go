package badinput

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/oncetest"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/mover"
	outboxops "github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// setting contains the error that a constructor returned for an invalid Config. The
// field names contains the words that the error must contain, separated by spaces.
type setting struct {
	err   error
	names string
}

// refusing is a testing.TB that records its failure.
type refusing struct {
	testing.TB

	err error
}

// Run runs f in a goroutine of its own, because Fatalf ends the goroutine that calls
// it.
func (r *refusing) Run(_ string, f func(*refusing)) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(r)
	}()
	<-ended
	return r.err == nil
}

func (r *refusing) Fatalf(format string, args ...any) {
	r.err = fmt.Errorf(format, args...)
	runtime.Goexit()
}

var badSchema = schema.Config{Dialect: "oracle", Schema: "a b", Prefix: "1"}

func settings(t *testing.T, db *sql.DB) map[string]setting {
	t.Helper()
	makeOutbox := func(c outbox.Config) error { _, err := outbox.New(c); return err }
	makeForwarder := func(db *sql.DB, p message.Publisher, c forwarder.Config) error {
		_, err := forwarder.New(db, p, c)
		return err
	}
	makeMover := func(db *sql.DB, c mover.Config) error { _, err := mover.New(db, c); return err }
	makeDedup := func(db *sql.DB, c dedup.Config) error { _, err := dedup.New(db, c); return err }
	makeRetry := func(db *sql.DB, c retry.Config) error { _, err := retry.New(db, c); return err }
	makeLetters := func(db *sql.DB, c operate.Config) error { _, err := dead.New(db, c); return err }
	makeParked := func(db *sql.DB, c operate.Config) error { _, err := parked.New(db, c); return err }
	makePending := func(db *sql.DB, c operate.Config) error { _, err := outboxops.New(db, c); return err }
	makeSentLog := func(db *sql.DB, c operate.Config) error { _, err := dead.NewSentLog(db, c); return err }
	makeQuarantine := func(db *sql.DB, c operate.Config) error { _, err := quarantine.New(db, c); return err }
	makePoison := func(db *sql.DB, c poison.Config) error { _, err := poison.New(db, c); return err }
	makeInbox := func(db *sql.DB, c durable.Config) error { _, err := durable.New(db, c); return err }
	makeSequence := func(c sequence.Config) error { _, err := sequence.New(c); return err }
	makeLocal := func(db *sql.DB, c embedded.Config) error { _, err := embedded.New(db, c); return err }
	makeConsumer := func(db *sql.DB, c once.ConsumerConfig) error { _, err := once.NewConsumer(db, c); return err }
	makePublisher := func(c wamqp.Config, p rabbit.PublisherConfig) error { _, err := rabbit.NewPublisher(c, p); return err }
	makeSubscriber := func(c wamqp.Config, s rabbit.SubscriberConfig) error {
		_, err := rabbit.NewSubscriber(c, s)
		return err
	}
	makeTest := func(c oncetest.Config) error {
		r := refusing{TB: t}
		r.Run("", func(r *refusing) { oncetest.Run(r, c) })
		return r.err
	}
	amqp := wamqp.NewDurableQueueConfig("amqp://localhost")
	policy := func(p retry.Policy) error { return makeRetry(db, retry.Config{Policy: p}) }
	tx := dedup.TxFromContext

	return map[string]setting{
		"schema: all at once":           {badSchema.Validate(), "Dialect Schema Prefix"},
		"schema: with a quote":          {schema.Config{Schema: `a"`}.Validate(), "Schema"},
		"schema: with a line end":       {schema.Config{Prefix: "a\n"}.Validate(), "Prefix"},
		"schema: a schema of 64 bytes":  {schema.Config{Schema: strings.Repeat("s", 64)}.Validate(), "Schema"},
		"schema: a prefix of 64 bytes":  {schema.Config{Prefix: strings.Repeat("p", 64)}.Validate(), "Prefix"},
		"schema: a placeholder":         {schema.Config{Prefix: "{outbox}"}.Validate(), "Prefix"},
		"schema: a schema for SQLite":   {schema.Config{Dialect: schema.SQLite, Schema: "a"}.Validate(), "Schema"},
		"schema: a dialect in capitals": {schema.Config{Dialect: "SQLite"}.Validate(), "Dialect"},
		"schema: nothing to create in":  {schema.Up(t.Context(), nil, badSchema), "db Dialect"},
		"schema: nothing to look at":    {schema.Check(t.Context(), nil, badSchema), "db Dialect"},
		"schema: no pool to look at":    {schema.Check(t.Context(), (*sql.DB)(nil), schema.Config{}), "db"},

		"outbox: all at once":         {makeOutbox(outbox.Config{Schema: badSchema, MaxPayload: -1}), "Dialect Schema Prefix MaxPayload"},
		"outbox: a large MaxPayload":  {makeOutbox(outbox.Config{MaxPayload: math.MaxInt}), "MaxPayload"},
		"outbox: a little MaxPayload": {makeOutbox(outbox.Config{MaxPayload: -1 << 62}), "MaxPayload"},
		"outbox: no transaction":      {outbox.InTx(t.Context(), nil, nil), "db work"},

		"forwarder: all at once": {makeForwarder(nil, nil, forwarder.Config{
			Schema: badSchema, BatchSize: -1, Window: -1, BufferBytes: -1, Workers: -1, PollMin: -1, PollMax: -2, StallTimeout: -1,
			Lease: -1, MaxAttempts: -1, CloseTimeout: -1, KeepSent: -1, AfterDead: -1,
		}), "db publisher Dialect Schema Prefix BatchSize Window BufferBytes Workers PollMin PollMax StallTimeout Lease MaxAttempts " +
			"CloseTimeout KeepSent AfterDead"},
		"forwarder: all too large": {makeForwarder(db, discard{}, forwarder.Config{
			BatchSize: math.MaxInt, Window: math.MaxInt, BufferBytes: math.MaxInt, Workers: math.MaxInt, MaxAttempts: math.MaxInt,
			AfterDead: math.MaxInt,
		}), "BatchSize Window BufferBytes Workers MaxAttempts AfterDead"},
		"forwarder: no db":                 {makeForwarder(nil, discard{}, forwarder.Config{}), "db"},
		"forwarder: no publisher":          {makeForwarder(db, nil, forwarder.Config{}), "publisher"},
		"forwarder: PollMax below PollMin": {makeForwarder(db, discard{}, forwarder.Config{PollMin: time.Second, PollMax: time.Millisecond}), "PollMax"},
		"forwarder: a short Lease":         {makeForwarder(db, discard{}, forwarder.Config{Lease: time.Millisecond}), "Lease"},
		"forwarder: a short KeepSent":      {makeForwarder(db, discard{}, forwarder.Config{KeepSent: time.Second}), "KeepSent"},

		"mover: all at once": {makeMover(nil, mover.Config{
			Schema: schema.Config{Prefix: "1"}, ForwarderTopic: "a b", MessagesTable: "a;b", OffsetsTable: `"a"b"`, BatchSize: -1, PollInterval: -1, MaxPayload: -1,
		}), "db Prefix ForwarderTopic MessagesTable OffsetsTable BatchSize PollInterval"},
		"mover: SQLite":             {makeMover(db, mover.Config{Schema: schema.Config{Dialect: schema.SQLite}}), "Dialect"},
		"mover: a large BatchSize":  {makeMover(db, mover.Config{BatchSize: math.MaxInt}), "BatchSize"},
		"mover: a large MaxPayload": {makeMover(db, mover.Config{MaxPayload: math.MaxInt}), "MaxPayload"},
		"mover: a quote in a topic": {makeMover(db, mover.Config{ForwarderTopic: `a"b`}), "ForwarderTopic MessagesTable OffsetsTable"},
		"mover: a table with a NUL": {makeMover(db, mover.Config{MessagesTable: "\"a\x00\""}), "MessagesTable"},
		"mover: a table of a query": {makeMover(db, mover.Config{OffsetsTable: "(SELECT 1)"}), "OffsetsTable"},

		"dedup: all at once": {makeDedup(nil, dedup.Config{
			Schema: badSchema, Consumer: long, Idempotent: []string{""}, Content: func(*message.Message) []byte { return nil },
			Retention: -1, MaxDuplicateAge: -2, SweepInterval: -1, LockTimeout: -1, IdleTimeout: -1, Batch: dedup.Batch{Size: -1, Wait: -1},
		}), "db Dialect Schema Prefix Consumer Idempotent Content Retention MaxDuplicateAge SweepInterval LockTimeout IdleTimeout Batch"},
		"dedup: a NUL in Consumer":       {makeDedup(db, dedup.Config{Consumer: "a\x00"}), "Consumer"},
		"dedup: bytes in Consumer":       {makeDedup(db, dedup.Config{Consumer: "a\xff"}), "Consumer"},
		"dedup: Retention is short":      {makeDedup(db, dedup.Config{Retention: time.Hour}), "Retention MaxDuplicateAge"},
		"dedup: MaxDuplicateAge is long": {makeDedup(db, dedup.Config{MaxDuplicateAge: math.MaxInt64}), "MaxDuplicateAge"},
		"dedup: LockTimeout is a moment": {makeDedup(db, dedup.Config{LockTimeout: 1}), "LockTimeout"},

		"retry: all at once": {makeRetry(nil, retry.Config{
			Schema: badSchema, Policy: retry.Policy{Base: -1, Max: -2, Factor: 0.5, Jitter: 2}, Classes: []retry.Class{{}}, KeyOrder: -1,
			CrashBudget: -1, Lease: -1, PollInterval: -1, Concurrency: -1, BufferBytes: -1, UnackedWait: -1,
		}), "db Dialect Schema Prefix Policy.Base Policy.Max Policy.Factor Policy.Jitter Classes[0].Match KeyOrder CrashBudget Lease " +
			"PollInterval Concurrency BufferBytes UnackedWait"},
		"retry: a short Lease":         {makeRetry(db, retry.Config{Lease: 499 * time.Millisecond}), "Lease"},
		"retry: BufferBytes is large":  {makeRetry(db, retry.Config{BufferBytes: math.MaxInt}), "BufferBytes"},
		"retry: Factor is no number":   {policy(retry.Policy{Factor: math.NaN()}), "Policy.Factor"},
		"retry: Jitter is no number":   {policy(retry.Policy{Jitter: math.NaN()}), "Policy.Jitter"},
		"retry: Factor is negative":    {policy(retry.Policy{Factor: math.Inf(-1)}), "Policy.Factor"},
		"retry: Max is below Base":     {policy(retry.Policy{Base: time.Hour, Max: time.Second}), "Policy.Max"},
		"retry: Jitter is infinite":    {policy(retry.Policy{Jitter: math.Inf(1)}), "Policy.Jitter"},
		"retry: KeyOrder is unknown":   {makeRetry(db, retry.Config{KeyOrder: math.MaxInt}), "KeyOrder"},
		"retry: a class without Match": {makeRetry(db, retry.Config{Classes: []retry.Class{{Match: func(error) bool { return true }}, {}}}), "Classes[1].Match"},
		"retry: a class without sense": {makeRetry(db, retry.Config{Classes: []retry.Class{{Match: func(error) bool { return true }, Policy: retry.Policy{Factor: 0.1}}}}), "Classes[0].Policy.Factor"},

		"dead: all at once":           {makeLetters(nil, operate.Config{Schema: badSchema, InboxRetention: -1}), "db Dialect Schema Prefix InboxRetention"},
		"dead: the log":               {makeSentLog(nil, operate.Config{Schema: badSchema, InboxRetention: -1}), "db Dialect Schema Prefix InboxRetention"},
		"parked: all at once":         {makeParked(nil, operate.Config{Schema: badSchema}), "db Dialect Schema Prefix"},
		"operate/outbox: all at once": {makePending(nil, operate.Config{Schema: badSchema}), "db Dialect Schema Prefix"},
		"dead: long ago":              {makeLetters(db, operate.Config{InboxRetention: math.MinInt64}), "InboxRetention"},
		"dead: short lease":           {makeLetters(db, operate.Config{ReplayLease: 499 * time.Millisecond}), "ReplayLease"},

		"poison: all at once":             {makePoison(nil, poison.Config{Schema: badSchema, UnackedWait: -1}), "db Dialect Schema Prefix UnackedWait"},
		"quarantine: all at once":         {makeQuarantine(nil, operate.Config{Schema: badSchema, ReplayLease: -1}), "db Dialect Schema Prefix ReplayLease"},
		"quarantine: a short ReplayLease": {makeQuarantine(db, operate.Config{ReplayLease: 499 * time.Millisecond}), "ReplayLease"},

		"durable: all at once":   {makeInbox(nil, durable.Config{Schema: badSchema, BatchSize: -1, Ahead: -1, BatchWait: -1, KeepHandled: -1, UnackedWait: -1}), "db Dialect Schema Prefix BatchSize Ahead BatchWait KeepHandled UnackedWait"},
		"durable: all too large": {makeInbox(db, durable.Config{BatchSize: math.MaxInt, Ahead: math.MaxInt, BatchWait: math.MaxInt64}), "BatchSize Ahead BatchWait"},

		"sequence: all at once":       {makeSequence(sequence.Config{Schema: badSchema, Policy: -1, Window: -1, AfterWindow: -1}), "Dialect Schema Prefix Tx Policy Window AfterWindow"},
		"sequence: all unknown":       {makeSequence(sequence.Config{Tx: tx, Policy: 9, AfterWindow: 9}), "Policy AfterWindow"},
		"sequence: OnGap and another": {makeSequence(sequence.Config{Tx: tx, AfterWindow: sequence.Apply, OnGap: func(context.Context, *sql.Tx, sequence.Gap) (sequence.AfterWindow, error) { return 0, nil }}), "AfterWindow OnGap"},

		"embedded: all at once": {makeLocal(nil, embedded.Config{Schema: badSchema}), "db Dialect Schema Prefix"},

		"once: all at once": {makeConsumer(nil, once.ConsumerConfig{
			Durable: durable.Config{BatchSize: -1}, Dedup: dedup.Config{LockTimeout: -1}, Retry: retry.Config{CrashBudget: -1},
			Poison: poison.Config{UnackedWait: -1}, Sequence: &sequence.Config{Window: -1},
		}), "db BatchSize LockTimeout CrashBudget UnackedWait Window"},
		"once: parts of two schemas":         {makeConsumer(db, once.ConsumerConfig{Retry: retry.Config{Schema: schema.Config{Prefix: "other_"}}}), "Schema"},
		"once: a schema that is none":        {makeConsumer(db, once.ConsumerConfig{Schema: badSchema}), "Dialect Schema Prefix"},
		"once: a durable one without a name": {makeConsumer(db, once.ConsumerConfig{DurableConsumers: []string{"a", ""}}), "DurableConsumers"},
		"once: one name for all":             {makeConsumer(db, once.ConsumerConfig{Dedup: dedup.Config{Consumer: "a"}}), "Dedup.Consumer"},

		"oncetest: all at once": {makeTest(oncetest.Config{
			Messages: []*message.Message{nil, {}}, Tables: []string{""}, Ignore: []string{""}, Timeout: -1,
			Dedup: dedup.Config{Schema: badSchema, Consumer: long, LockTimeout: -1, Batch: dedup.Batch{Size: -1}},
		}), "DB Handler Reset Messages[0] Messages[1] Tables Ignore Timeout Dialect Schema Prefix Consumer LockTimeout Batch.Size"},
		"oncetest: nothing at all": {makeTest(oncetest.Config{}), "DB Handler Reset Messages"},

		"publisher: all at once": {makePublisher(wamqp.Config{}, rabbit.PublisherConfig{
			Window: -1, WindowBytes: -1, ConfirmTimeout: -1, ReadyTimeout: -1, DialTimeout: -1, WriteTimeout: -1, CloseTimeout: -1,
		}), "Connection.AmqpURI Exchange.GenerateName Publish.GenerateRoutingKey Window WindowBytes ConfirmTimeout ReadyTimeout DialTimeout " +
			"WriteTimeout CloseTimeout"},
		"publisher: a large Window": {makePublisher(amqp, rabbit.PublisherConfig{Window: math.MaxInt}), "Window"},
		"publisher: no AMQP":        {makePublisher(wamqp.NewDurableQueueConfig("redis://localhost"), rabbit.PublisherConfig{}), "Connection.AmqpURI"},
		"publisher: a broken port":  {makePublisher(wamqp.NewDurableQueueConfig("amqp://localhost:port"), rabbit.PublisherConfig{}), "Connection.AmqpURI"},

		"subscriber: all at once": {makeSubscriber(wamqp.Config{Consume: wamqp.ConsumeConfig{Qos: wamqp.QosConfig{PrefetchCount: -1, PrefetchSize: 1}}}, rabbit.SubscriberConfig{
			InFlight: -1, NackMin: -1, NackMax: -2, ReadyTimeout: -1, CloseTimeout: -1, DialTimeout: -1, WriteTimeout: -1,
		}), "Connection.AmqpURI Queue.GenerateName Exchange.GenerateName PrefetchCount PrefetchSize InFlight NackMin NackMax " +
			"ReadyTimeout CloseTimeout DialTimeout WriteTimeout"},
		"subscriber: a large InFlight": {makeSubscriber(amqp, rabbit.SubscriberConfig{InFlight: math.MaxInt}), "InFlight"},
	}
}

// An invalid configuration is refused with one error that names all invalid fields. The
// constructor does not panic.
func TestInvalidConfigsAreRefused(t *testing.T) {
	t.Parallel()
	for name, s := range settings(t, kit.SQLite(t).DB) {
		t.Run(name, func(t *testing.T) {
			if s.err == nil {
				t.Fatal("accepted")
			}
			for field := range strings.SplitSeq(s.names, " ") {
				if !strings.Contains(s.err.Error(), field) {
					t.Errorf("%s is not named:\n%v", field, s.err)
				}
			}
		})
	}
}

// Invalid consumer names are refused. The names are stored in the tables, and a name
// that a table cannot store unchanged would never be found again.
func TestInvalidConsumerNamesAreRefused(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t).DB
	config := schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db, config))
	retries, err := retry.New(db, retry.Config{Schema: config})
	kit.OK(t, err)
	transport, err := embedded.New(db, embedded.Config{Schema: config})
	kit.OK(t, err)
	for name, c := range map[string]struct{ consumer, topic, says string }{
		"no consumer":             {"", topic, "consumer"},
		"consumer of 256 bytes":   {long[:256], topic, "consumer"},
		"consumer with a NUL":     {"a\x00", topic, "consumer"},
		"consumer of other bytes": {"a\xff", topic, "consumer"},
		"topic of 256 bytes":      {consumer, long[:256], "topic"},
		"topic with a NUL":        {consumer, "a\x00", "topic"},
		"topic of other bytes":    {consumer, "a\xff", "topic"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			sub := retries.Subscriber(c.consumer, transport.Subscriber())
			_, err := sub.Subscribe(ctx, c.topic)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that names the %s", err, c.says)
			}
			cancel()
			kit.Check(t, sub.Close())
		})
	}
}
