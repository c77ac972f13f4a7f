package parked_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

// register registers an instance of a consumer.
func (b *bench) register(c store.Consumer) {
	b.Helper()
	kit.OK(b, kit.Err(b.store.Register(b.Context(), c)))
}

func (b *bench) consumers() []parked.Consumer {
	b.Helper()
	all, err := b.messages.Consumers(b.Context())
	kit.OK(b, err)
	return all
}

func TestConsumersShowInstancesAndBacklog(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		if got := b.consumers(); len(got) != 0 {
			b.Fatalf("consumers are %+v, want none", got)
		}
		b.seed()
		b.register(store.Consumer{Consumer: consumer, Topic: topic, KeyOrder: true, Handler: "charge", Owner: "host/1/a"})
		b.register(store.Consumer{Consumer: consumer, Topic: topic, KeyOrder: true, Handler: "charge", Owner: "host/2/b"})
		b.register(store.Consumer{Consumer: "idle", Topic: topic, Embedded: true, Owner: "host/1/c"})
		b.Exec(`UPDATE once_consumer_instances SET seen_at = ` + b.FromNow(-10*time.Minute) + `, started_at = ` + b.FromNow(-time.Hour) +
			` WHERE owner = 'host/2/b'`)
		b.Exec(`UPDATE once_consumer_instances SET seen_at = ` + b.FromNow(-10*time.Minute) + ` WHERE owner = 'host/1/c'`)
		b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(-time.Hour) + ` WHERE message_id = 'head'`)
		b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(-time.Minute) + ` WHERE message_id = 'due'`)
		kit.OK(b, b.store.Deliver(b.Context(), "stock", []string{"forgotten"}, msg("x", "")))

		all := b.consumers()
		if len(all) != 3 {
			b.Fatalf("len(all) is %d, want 3: %+v", len(all), all)
		}
		forgotten, idle, busy := all[0], all[1], all[2]
		if forgotten.Name != "forgotten" {
			b.Fatalf(`forgotten.Name is %q, want "forgotten"`, forgotten.Name)
		}
		if forgotten.Topic != "stock" {
			b.Fatalf(`forgotten.Topic is %q, want "stock"`, forgotten.Topic)
		}
		if forgotten.Registered {
			b.Fatal("forgotten.Registered is true")
		}
		if forgotten.Waiting != 1 {
			b.Fatalf("forgotten.Waiting is %d, want 1", forgotten.Waiting)
		}

		if idle.Name != "idle" {
			b.Fatalf(`idle.Name is %q, want "idle"`, idle.Name)
		}
		if !idle.Embedded {
			b.Fatal("idle.Embedded is false")
		}
		if idle.Running {
			b.Fatal("idle.Running is true")
		}
		if len(idle.Instances) != 1 {
			b.Fatalf("%d instances, want 1: %+v", len(idle.Instances), idle.Instances)
		}
		if idle.Waiting+idle.Held+idle.Quarantined != 0 {
			b.Fatalf("idle.Waiting+idle.Held+idle.Quarantined is %d, want 0", idle.Waiting+idle.Held+idle.Quarantined)
		}
		if idle.Lag != 0 {
			b.Fatalf("idle.Lag is %v, want 0", idle.Lag)
		}

		if busy.Name != consumer {
			b.Fatalf("busy.Name is %q, want %q", busy.Name, consumer)
		}
		if !busy.Registered || !busy.KeyOrder || !busy.Running || busy.Embedded {
			b.Fatalf("busy is %+v, want it registered, with key order, running and not embedded", busy)
		}
		if busy.Handler != "charge" {
			b.Fatalf(`busy.Handler is %q, want "charge"`, busy.Handler)
		}
		if busy.Program == "" {
			b.Fatal("busy.Program is empty")
		}
		if got := time.Since(busy.SeenAt).Seconds(); math.Abs(got) > 60 {
			b.Fatalf("time.Since(busy.SeenAt).Seconds is %v, want 0, give or take 60", got)
		}
		if len(busy.Instances) != 2 {
			b.Fatalf("%d instances, want 2: %+v", len(busy.Instances), busy.Instances)
		}
		if busy.Instances[0].Owner != "host/2/b" {
			b.Fatalf(`busy.Instances[0].Owner is %q, want "host/2/b"`, busy.Instances[0].Owner)
		}
		if busy.Instances[0].Running {
			b.Fatal("busy.Instances[0].Running is true")
		}
		if !busy.Instances[1].Running {
			b.Fatal("busy.Instances[1].Running is false")
		}
		want := []int{3, 0, 2, 1, 1}
		if got := []int{busy.Waiting, busy.Claimed, busy.Held, busy.Failing, busy.Quarantined}; !slices.Equal(got, want) {
			b.Fatalf("busy.Waiting, busy.Claimed, busy.Held, busy.Failing, busy.Quarantined are %v, want %v", got, want)
		}
		if got := busy.Lag.Seconds(); math.Abs(got-3600) > 60 {
			b.Fatalf("busy.Lag.Seconds is %v, want 3600, give or take 60", got)
		}

		if got := b.claim(time.Hour); len(got) != 2 {
			b.Fatalf("len(claim(time.Hour)) is %d, want 2: %+v", len(got), got)
		}
		busy = b.consumers()[2]
		want = []int{3, 2, 2, 1, 1}
		if got := []int{busy.Waiting, busy.Claimed, busy.Held, busy.Failing, busy.Quarantined}; !slices.Equal(got, want) {
			b.Fatalf("busy.Waiting, busy.Claimed, busy.Held, busy.Failing, busy.Quarantined are %v, want %v", got, want)
		}
		if busy.Lag != 0 {
			b.Fatalf("busy.Lag is %v, want 0", busy.Lag)
		}
		b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(-time.Minute) + ` WHERE message_id = 'failed'`)
		if got := b.consumers()[2].Lag.Seconds(); math.Abs(got-60) > 30 {
			b.Fatalf("consumers()[2].Lag.Seconds is %v, want 60, give or take 30", got)
		}
	})
}

// Consumers finds a consumer by its messages that are waiting, held or in quarantine.
// The lag comes from the oldest due message of all tenants.
func TestConsumersAreFoundByTheirMessages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for i, state := range []string{"waiting", "held", "quarantined", "resolved"} {
			for _, topic := range []string{"a", "b"} {
				b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, ordering_key, tenant, digest, envelope, state, crashes, due_at)
					VALUES ($1, $2, $3, $3, $3, $4, $4, $1, 0, `+b.FromNow(-time.Duration(i+1)*time.Minute)+`)`, state, topic, state+topic, []byte{})
			}
		}
		b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, tenant, digest, envelope, state, crashes, due_at)
			VALUES ('crashed', 'a', 'c', '', $1, $1, 'waiting', 1, `+b.FromNow(-time.Hour)+`), ('waiting', 'a', 'w', 'zz', $1, $1, 'waiting', 0, `+
			b.FromNow(-2*time.Hour)+`)`, []byte{})
		var found []string
		for _, c := range b.consumers() {
			found = append(found, fmt.Sprintf("%s/%s %d %d %d %v", c.Name, c.Topic, c.Waiting, c.Held, c.Quarantined, c.Lag.Round(time.Minute)))
		}
		want := []string{
			"crashed/a 1 0 0 1h0m0s", "held/a 0 1 0 0s", "held/b 0 1 0 0s", "quarantined/a 0 0 1 0s",
			"quarantined/b 0 0 1 0s", "waiting/a 2 0 0 2h0m0s", "waiting/b 1 0 0 1m0s",
		}
		if !slices.Equal(found, want) {
			b.Fatalf("found is %q, want %q", found, want)
		}
	})
}

func TestCountsOfConsumersStopAtTheLimit(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(parked.CountLimit+500, "busy")
		c := b.consumers()[0]
		if c.Waiting != parked.CountLimit {
			b.Fatalf("c.Waiting is %d, want %d", c.Waiting, parked.CountLimit)
		}
		if got := c.Lag.Seconds(); math.Abs(got-60) > 50 {
			b.Fatalf("c.Lag.Seconds is %v, want 60, give or take 50", got)
		}
	})
}

// The result is bounded, even if each message belongs to a different consumer.
func TestConsumersAreBounded(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(1002, "busy")
		b.Exec(`UPDATE once_parked SET consumer = 'c' || id`)
		if n := len(b.consumers()); n != 1000 {
			b.Fatalf("got %d consumers, want 1,000", n)
		}
	})
}

// With many consumers, fewer messages of each are counted.
func TestCountsOfManyConsumersStopEarlier(t *testing.T) {
	kit.Long(t)
	eachDatabase(t, func(b *bench) {
		b.fill(20_200, "busy")
		for consumers, limit := range map[int]int{100: 1000, 101: 100} {
			b.Exec(fmt.Sprintf(`UPDATE once_parked SET consumer = 'c' || (id %% %d)`, consumers))
			all := b.consumers()
			if len(all) != consumers {
				b.Fatalf("got %d consumers, want %d", len(all), consumers)
			}
			for _, c := range all {
				if want := min(limit, 20_200/consumers); c.Waiting != want || c.CountLimit != limit {
					b.Fatalf("%d consumers: %s has %d messages, want %d, and its limit is %d", consumers, c.Name, c.Waiting, want, c.CountLimit)
				}
			}
		}
	})
}

// Consumers knows every topic of a consumer and counts its quarantine, even if another
// topic has many entries with lower IDs.
func TestConsumersCountTheQuarantineOfEachTopic(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(parked.CountLimit+500, "busy")
		b.Exec(`UPDATE once_parked SET state = 'quarantined', message_id = 'first ' || message_id`)
		first := b.consumers()[0].Topic
		b.fill(400, "busy")
		b.Exec(`UPDATE once_parked SET topic = 'later', state = 'quarantined' WHERE state = 'waiting'`)
		got := map[string]int{}
		for _, c := range b.consumers() {
			got[c.Topic] = c.Quarantined
		}
		if want := map[string]int{first: parked.CountLimit, "later": 400}; !maps.Equal(got, want) {
			b.Errorf("the quarantine has %v by topic, want %v", got, want)
		}
	})
}

// Consumers reads few pages, even if many messages wait. ONCE_TEST_ROWS is the number of
// waiting messages.
func TestConsumersReadsFewPages(t *testing.T) {
	kit.Long(t)
	rows := 12_000
	if text := os.Getenv("ONCE_TEST_ROWS"); text != "" {
		kit.OK(t, kit.Err(fmt.Sscan(text, &rows)))
	}
	b := newBench(t, kit.EmptyPostgres(t))
	for i := range 10 {
		b.fill(rows/10, fmt.Sprint("busy", i))
	}
	b.Exec(`UPDATE once_parked SET state = 'quarantined' WHERE id % 10 = 1`)
	b.Exec(`UPDATE once_parked SET state = 'held', ordering_key = 'k' WHERE id % 10 = 2`)
	b.Exec(`UPDATE once_parked SET priority_class = 'retry', attempts = 1 WHERE id % 10 = 3`)
	b.Exec(`UPDATE once_parked SET crashes = 1, token = 't' WHERE id % 10 = 4`)
	b.Exec(`UPDATE once_parked SET state = 'resolved' WHERE id % 10 = 5`)
	for _, step := range []string{"", "VACUUM ANALYZE once_parked"} {
		if step != "" {
			b.Exec(step)
		}
		var all []parked.Consumer
		fastest := time.Hour // the minimum of several runs, because the machine may be busy
		for range 5 {
			began := time.Now()
			all = b.consumers()
			fastest = min(fastest, time.Since(began))
		}
		b.Logf("%d rows, %q: %v", rows, step, fastest)
		if len(all) != 10 {
			b.Fatalf("len(all) is %d, want 10: %+v", len(all), all)
		}
		want := []int{min(rows*7/100, parked.CountLimit), min(rows/100, parked.CountLimit)}
		if got := []int{all[0].Waiting, all[0].Held}; !slices.Equal(got, want) {
			b.Fatalf("all[0].Waiting, all[0].Held are %v, want %v", got, want)
		}
		for name, query := range parked.ConsumerQueries(b.messages) {
			var plan []byte
			tx, err := b.BeginTx(b.Context(), &sql.TxOptions{})
			kit.OK(b, err)
			args := []any{}
			if name != "names" {
				args = append(args, `{busy0,busy1,busy2,busy3,busy4,busy5,busy6,busy7,busy8,busy9}`,
					`{busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic,busy topic}`)
			}
			kit.OK(b, tx.QueryRowContext(b.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query, args...).Scan(&plan))
			kit.OK(b, tx.Rollback())
			pages := kit.PagesRead(b, plan)
			b.Logf("%s: %d pages", name, pages)
			if !json.Valid(plan) {
				b.Fatalf("the plan is no JSON: %s", plan)
			}
			if pages >= 10*8*parked.CountLimit {
				b.Fatalf("pages is %d, want less than %d: %s: %s", pages, 10*8*parked.CountLimit, name, plan)
			}
		}
	}
}

func TestRemoveConsumer(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
		b.register(store.Consumer{Consumer: consumer, Topic: "else", Owner: "host/1/b"})
		remove := func(opts parked.RemoveOptions) error {
			return b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, opts)
		}
		err := remove(parked.RemoveOptions{})
		if !errors.Is(err, parked.ErrRunning) {
			b.Fatalf("got %v, want ErrRunning", err)
		}
		if err == nil || !strings.Contains(err.Error(), "host/1/a") {
			b.Fatalf(`got %v, want an error with "host/1/a"`, err)
		}
		b.Exec(`UPDATE once_consumers SET seen_at = ` + b.FromNow(-3*time.Minute))
		err = remove(parked.RemoveOptions{})
		if !errors.Is(err, parked.ErrNotEmpty) {
			b.Fatalf("got %v, want ErrNotEmpty", err)
		}
		if want := "waiting, held, quarantined; cancel or discard them first"; err == nil || !strings.Contains(err.Error(), want) {
			b.Fatalf("got %v, want an error with %q", err, want)
		}
		b.WantNumber(2, `SELECT COUNT(*) FROM once_consumers`)

		kit.OK(b, remove(parked.RemoveOptions{Force: true}))
		if err := remove(parked.RemoveOptions{}); !errors.Is(err, parked.ErrConsumerNotFound) {
			b.Fatalf("remove: got %v, want ErrConsumerNotFound", err)
		}
		b.WantNumber(1, `SELECT COUNT(*) FROM once_consumers`)
		b.WantNumber(1, `SELECT COUNT(*) FROM once_consumer_instances`)
		if got, want := b.Audits(), []string{"ann | remove | topic:orders.placed | payments |  | order 7 is void"}; !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}
		kit.OK(b, b.messages.RemoveConsumer(b.Context(), ann, consumer, "else", parked.RemoveOptions{}))
		if got := b.consumers(); len(got) != 1 { // it still has messages
			b.Fatalf("%d consumers, want 1: %+v", len(got), got)
		}
		err = b.messages.RemoveConsumer(b.Context(), operate.Act{Actor: "ann"}, consumer, topic, parked.RemoveOptions{})
		if err == nil || !strings.Contains(err.Error(), "Why is empty") {
			b.Fatalf(`got %v, want an error with "Why is empty"`, err)
		}

		b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
		if err := remove(parked.RemoveOptions{Force: true}); err != nil {
			b.Fatalf("%v: with Force it goes although it runs", err)
		}
	})
}

// If the database cannot remove a consumer, RemoveConsumer returns the error and does not
// report the consumer as removed.
func TestRemoveConsumerReturnsTheErrorOfTheDatabase(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it stays'; END $$`)
	b.Exec(`CREATE TRIGGER refuse BEFORE DELETE ON once_consumers FOR EACH ROW EXECUTE FUNCTION refuse()`)
	err := b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, parked.RemoveOptions{Force: true})
	if err == nil || !strings.Contains(err.Error(), "it stays") {
		b.Fatalf(`got %v, want an error with "it stays"`, err)
	}
	b.WantNumber(1, `SELECT COUNT(*) FROM once_consumers`)
}

// An instance that ends removes its row, and an instance that died is forgotten after an
// hour.
func TestInstancesEnd(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for _, owner := range []string{"a", "b", "c"} {
			b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: owner})
		}
		kit.OK(b, b.store.Leave(b.Context(), consumer, topic, "a"))
		b.Exec(`UPDATE once_consumer_instances SET seen_at = ` + b.FromNow(-2*time.Hour) + ` WHERE owner = 'b'`)
		b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "c"})
		c := b.consumers()[0]
		if len(c.Instances) != 1 {
			b.Fatalf("%d instances, want 1: %+v", len(c.Instances), c.Instances)
		}
		if c.Instances[0].Owner != "c" {
			b.Fatalf(`c.Instances[0].Owner is %q, want "c"`, c.Instances[0].Owner)
		}
	})
}

// A consumer of two topics is shown twice, each time with its own registration, instances
// and messages.
func TestConsumerOfTwoTopicsIsShownForEach(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for topic, messages := range map[string]int{"t": 1, "u": 2} {
			b.register(store.Consumer{Consumer: "c", Topic: topic, Handler: "handler of " + topic, Owner: "host/1/" + topic})
			for n := range messages {
				kit.OK(b, b.store.Deliver(b.Context(), topic, []string{"c"}, msg(fmt.Sprint(topic, n), "")))
			}
			b.Exec(`UPDATE once_parked SET due_at = `+b.FromNow(-time.Duration(messages)*time.Hour)+` WHERE topic = $1`, topic)
		}
		var got []string
		for _, c := range b.consumers() {
			var owners []string
			for _, i := range c.Instances {
				owners = append(owners, i.Owner)
			}
			got = append(got, fmt.Sprintf("%s %s %s %v %d %v", c.Name, c.Topic, c.Handler, owners, c.Waiting, c.Lag.Round(time.Hour)))
		}
		if want := []string{"c t handler of t [host/1/t] 1 1h0m0s", "c u handler of u [host/1/u] 2 2h0m0s"}; !slices.Equal(got, want) {
			b.Errorf("the consumers are %q, want %q", got, want)
		}
	})
}

// A consumer runs if any of its instances runs, whichever started first.
func TestConsumerRunsIfAnInstanceRuns(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for n, owner := range []string{"a", "b", "c"} {
			b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: owner})
			b.Exec(`UPDATE once_consumer_instances SET started_at = `+b.FromNow(time.Duration(n)*time.Minute)+` WHERE owner = $1`, owner)
		}
		for running, want := range map[string]bool{"a": true, "b": true, "c": true, "none": false} {
			b.Exec(`UPDATE once_consumer_instances SET seen_at = `+b.FromNow(-10*time.Minute)+` WHERE owner <> $1`, running)
			b.Exec(`UPDATE once_consumer_instances SET seen_at = `+b.FromNow(0)+` WHERE owner = $1`, running)
			if got := b.consumers()[0].Running; got != want {
				b.Errorf("%s runs: the consumer is running: %t, want %t", running, got, want)
			}
		}
	})
}

// The limit also applies to the sum of claimed and other messages.
func TestSumsOfConsumersStopAtTheLimit(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(parked.CountLimit+500, "busy")
		b.Exec(`UPDATE once_parked SET priority_class = 'retry', attempts = 1, crashes = id % 2`)
		c := b.consumers()[0]
		if c.Waiting != parked.CountLimit || c.Failing != parked.CountLimit {
			b.Errorf("%d messages wait, %d have failed; want %d of each", c.Waiting, c.Failing, parked.CountLimit)
		}
	})
}

// A consumer has messages if one of its messages waits, is claimed, is held or is in
// quarantine. Messages of another topic or another consumer do not count.
func TestConsumerWithOneMessageIsNotEmpty(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for set, state := range map[string]string{
			`crashes = 0`:                        "waiting",
			`crashes = 1`:                        "waiting", // claimed
			`state = 'held', ordering_key = 'k'`: "held",
			`state = 'quarantined'`:              "quarantined",
		} {
			b.Exec(`DELETE FROM once_parked`)
			for n, to := range [][2]string{{consumer, topic}, {consumer, "else"}, {"another", topic}} {
				kit.OK(b, b.store.Deliver(b.Context(), to[1], []string{to[0]}, msg(fmt.Sprint("m", n), "")))
			}
			b.Exec(`UPDATE once_parked SET ` + set)
			b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
			b.Exec(`UPDATE once_consumers SET seen_at = ` + b.FromNow(-time.Hour))
			err := b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, parked.RemoveOptions{})
			want := "the consumer has messages: " + state + "; cancel or discard"
			if !errors.Is(err, parked.ErrNotEmpty) || !strings.Contains(err.Error(), want) {
				b.Errorf("%s: got %v, want %q", set, err, want)
			}
			b.Exec(`DELETE FROM once_parked WHERE message_id = 'm0'`)
			if err := b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, parked.RemoveOptions{}); err != nil {
				b.Errorf("%s: only others have messages: %v", set, err)
			}
		}
	})
}
