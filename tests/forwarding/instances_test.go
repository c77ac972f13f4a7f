package forwarding

import (
	"bytes"
	"context"
	"database/sql"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// The size of TestInstancesComeAndGo. docs/instances.md has the figures of
//
//	go test ./tests/forwarding -run TestInstancesComeAndGo -v -timeout 1h -args -forwarders 20 -consumers 50 -for 10m
var (
	forwarders = flag.Int("forwarders", 6, "instances of the forwarder in TestInstancesComeAndGo")
	consumers  = flag.Int("consumers", 10, "instances of consumers in TestInstancesComeAndGo, five of each")
	comeAndGo  = flag.Duration("for", 20*time.Second, "how long instances come and go in TestInstancesComeAndGo")
)

// lease is the default of forwarder.Config.Lease.
const lease = 15 * time.Second

// fleet has many instances on one database, each with a pool of its own, as if it were a process.
type fleet struct {
	*flow

	dsn    string
	topics []string
}

// instance stops by itself if Close is called, and dies if its pool is closed.
type instance struct {
	name  string
	pool  *sql.DB
	close func() error
	ended chan error
}

func (f *fleet) pool(name string) *sql.DB {
	f.Helper()
	return openDB(f.T, fmt.Sprintf("%s&application_name=%s", f.dsn, name))
}

func (f *fleet) forwarder() *instance {
	f.Helper()
	i := &instance{name: "forwarder", pool: f.pool("forwarder")}
	publisher, err := rabbit.NewPublisher(toQueues(f.url), rabbit.PublisherConfig{Logger: f.log})
	kit.OK(f, err)
	fwd, err := forwarder.New(i.pool, publisher, forwarder.Config{Logger: f.log, KeepSent: time.Hour})
	kit.OK(f, err)
	i.close = func() error { err := fwd.Close(); _ = publisher.Close(); return err }
	i.ended = kit.Go(func() error { return fwd.Run(context.WithoutCancel(f.Context())) })
	return i
}

// consumer starts an instance of one of the consumers. There are five instances of each.
func (f *fleet) consumer(n int) *instance {
	f.Helper()
	topic := f.topics[n%len(f.topics)]
	i := &instance{name: "consumer", pool: f.pool("consumer")}
	subscriber, err := rabbit.NewSubscriber(toQueues(f.url), rabbit.SubscriberConfig{Logger: f.log})
	kit.OK(f, err)
	consumer, err := once.NewConsumer(i.pool, once.ConsumerConfig{Logger: f.log})
	kit.OK(f, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, watermill.NopLogger{})
	kit.OK(f, err)
	consumer.AddHandler(router, topic, topic, subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, msg.UUID)
			return nil, err
		})
	i.close = router.Close
	i.ended = kit.Go(func() error { return router.Run(context.WithoutCancel(f.Context())) })
	return i
}

// stop closes an instance, or closes its pool first, so that it can do nothing more in the database, and
// gives back nothing.
func (f *fleet) stop(i *instance, dies bool) {
	if dies {
		_ = i.pool.Close()
	}
	err := i.close()
	if ended := <-i.ended; !dies && (err != nil || ended != nil) {
		f.Errorf("a %s has ended with %v, %v", i.name, err, ended)
	}
	_ = i.pool.Close()
}

// cost is what all instances have used so far: processor time of this process and of PostgreSQL in
// seconds, transactions and statements. The statements of BEGIN and COMMIT count, too.
type cost [4]float64

func (f *fleet) cost() cost {
	f.Helper()
	var usage syscall.Rusage
	kit.OK(f, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return cost{
		time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds(),
		childrenOf(parentOf(kit.One[int](f, f.db, `SELECT pg_backend_pid()`))).Seconds(),
		kit.One[float64](f, f.db, `SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database`),
		kit.One[float64](f, f.db, `SELECT sum(calls) FROM pg_stat_statements`),
	}
}

// costDuring waits for the time idle, and returns what the fleet has used in each second of it.
func (f *fleet) costDuring(idle time.Duration) (each cost) {
	f.Helper()
	before, began := f.cost(), time.Now()
	<-time.After(idle)
	after, took := f.cost(), time.Since(began).Seconds()
	for i := range each {
		each[i] = (after[i] - before[i]) / took
	}
	return each
}

// tell logs what each of n instances uses, without what others use.
func (f *fleet) tell(what string, all, others cost, n int) {
	f.Helper()
	for i := range all {
		all[i] = (all[i] - others[i]) / float64(n)
	}
	f.Logf("each %s takes %.2f %% of a core in its process, and %.2f %% in PostgreSQL, for %.1f transactions and %.1f statements a second",
		what, 100*all[0], 100*all[1], all[2], all[3])
}

// stat returns the fields of a process after its name, which may contain spaces. Only Linux has them.
func stat(pid int) []string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return make([]string, 20) // it has ended
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

func parentOf(pid int) int { parent, _ := strconv.Atoi(stat(pid)[1]); return parent }

// childrenOf returns the processor time of a process, and of its children, also of those that have ended.
func childrenOf(pid int) (all time.Duration) {
	used := func(fields []string) {
		for _, field := range fields {
			ticks, _ := strconv.Atoi(field)
			all += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	used(stat(pid)[11:15])
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		child, _ := strconv.Atoi(filepath.Base(process))
		if fields := stat(child); fields[1] == strconv.Itoa(pid) {
			used(fields[11:13])
		}
	}
	return all
}

// Many instances share one database, and some of them come and go: half of them stop, and half of them die
// with their leases. No slot is without an owner for longer than a lease after the lease of its last owner
// has ended, and every event takes effect once.
func TestInstancesComeAndGo(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivatePostgres(t, "max_connections=1000", "shared_preload_libraries=pg_stat_statements")
	f := &fleet{flow: newFlow(t, openDB(t, server.DSN("postgres")), kit.Rabbit(t).URL), dsn: server.DSN("postgres")}
	f.exec(`CREATE EXTENSION pg_stat_statements`)
	f.exec(`CREATE TABLE effects (message_id text)`)
	kit.OK(t, schema.Up(t.Context(), f.db, schema.Config{}))
	for range (*consumers + 4) / 5 {
		f.topics = append(f.topics, kit.Broker{}.Name("topic"))
	}
	var all []*instance
	defer func() {
		for _, i := range all {
			f.stop(i, false)
		}
	}()

	idle := *comeAndGo / 4
	for range *forwarders {
		all = append(all, f.forwarder())
	}
	share := (64 + *forwarders - 1) / *forwarders // the last instances may have none
	f.eventually("the forwarders share the slots", func() bool {
		return f.count(`once_slots WHERE lease_until > now()`) == 64 &&
			f.count(fmt.Sprintf(`(SELECT owner FROM once_slots GROUP BY owner HAVING count(*) > %d) AS o`, share)) == 0
	})
	<-time.After(idle / 2) // the pauses between polls grow
	ofForwarders := f.costDuring(idle)
	f.tell("idle forwarder", ofForwarders, cost{}, *forwarders)
	for n := range *consumers {
		all = append(all, f.consumer(n))
	}
	f.eventually("the consumers run", func() bool { return f.count(`once_consumer_instances`) == *consumers })
	<-time.After(idle / 2)
	f.tell("idle consumer", f.costDuring(idle), ofForwarders, *consumers)
	t.Logf("%d connections of idle instances", f.connections())

	events := f.comeAndGo(all)
	f.eventually("every event has its effect", func() bool { return f.count(`once_outbox`) == 0 && f.count(`effects`) >= events })
	if n := f.count(`effects`); n != events {
		t.Errorf("%d effects of %d events", n, events)
	}
}

func (f *fleet) connections() int {
	return f.count(`pg_stat_activity WHERE application_name IN ('forwarder', 'consumer')`)
}

// comeAndGo replaces instances while events are written, and returns the number of events.
func (f *fleet) comeAndGo(all []*instance) (events int) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	var working sync.WaitGroup
	working.Go(func() {
		for ctx.Err() == nil {
			msg := message.NewMessage(watermill.NewUUID(), []byte("{}"))
			outbox.SetOrderingKey(msg, fmt.Sprint("key", events%100))
			if err := f.tryPublish(f.topics[events%len(f.topics)], msg); err != nil {
				f.Errorf("the writer: %v", err)
				return
			}
			events++
			<-time.After(20 * time.Millisecond)
		}
	})
	longest, most := time.Duration(0), 0
	working.Go(func() {
		since := map[string]time.Time{}
		for ctx.Err() == nil {
			now := time.Now()
			ownerless := map[string]time.Time{}
			for _, slot := range kit.Lines(f, f.db, `SELECT slot::text FROM once_slots WHERE owner IS NULL OR lease_until < now()`) {
				if ownerless[slot] = since[slot]; ownerless[slot].IsZero() {
					ownerless[slot] = now
				}
				longest = max(longest, now.Sub(ownerless[slot]))
			}
			since, most = ownerless, max(most, f.connections())
			<-time.After(100 * time.Millisecond)
		}
	})

	began, stopped, died := time.Now(), 0, 0
	for time.Since(began) < *comeAndGo {
		n := rand.IntN(len(all))
		dies := stopped > died
		f.stop(all[n], dies)
		if dies {
			died++
		} else {
			stopped++
		}
		if n < *forwarders {
			all[n] = f.forwarder()
		} else {
			all[n] = f.consumer(n - *forwarders)
		}
		<-time.After(time.Second)
	}
	cancel()
	working.Wait()
	f.Logf("%d instances have stopped and %d have died in %v; a slot was without an owner for at most %v; at most %d connections; %d events",
		stopped, died, time.Since(began).Round(time.Second), longest.Round(time.Second/10), most, events)
	if longest > lease {
		f.Errorf("a slot was without an owner for %v", longest)
	}
	return events
}
